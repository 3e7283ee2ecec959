"""Derives the backward, the tangent and the second backward of an attention."""

from collections.abc import Callable
from dataclasses import dataclass

from attn_mlir.dialects.attn.linear_erase import is_delta
from attn_mlir.mlir import ir
from attn_mlir.passes.base import Pass
from attn_mlir.passes.differentiation import Derivatives, DifferentiationError, Primal
from attn_mlir.passes.differentiation.arguments import is_plain, positions, read_of_input
from attn_mlir.passes.differentiation.linear import LinearDerivatives, LinearPrimal, may_be_apart, refused, usual_interval
from attn_mlir.passes.regions import find_all
from attn_mlir.passes.sequences import pages_of

_MAKERS = {"fwd": "forward", "bwd": "backward", "jvp": "jvp", "bwd2": "second"}


@dataclass(frozen=True)
class Differentiate(Pass):
    """Adds functions that compute derivatives of every function that holds an `attn.attention` or `attn.linear_attention`.

    `functions`, joined by "+": `fwd`, the function with the row values that the backward needs as further results; `bwd`,
    the gradients; `jvp`, the tangent; `bwd2`, the gradients of the backward. `wrt`: names of the arguments, joined by "+"; by
    default all floating tensors. `only` leaves the new functions alone in the module. The gradient of the log decays of a
    linear attention is made of sums over at most `interval` positions, or `channel-interval` (0: as many) where key channels have
    decays of their own: rounding adds up over them, and every interval has states in memory; 0 chooses by the element type. With
    `crossing`, and of the delta rule usually, the sums have no differences, and chunks are whole intervals. With `apart`, delta rules in 16
    bits whose k is what is removed have scans of 16-bit tensors, whose state has one writer each, and sums of differences; with `keep`
    as well, `fwd` of such a rule over sequences of one length also returns what is written and states, which `bwd` takes after the results.
    With `residual`, `fwd` also returns the residual of an o of 16 bits, last and where gradients need products with o; the
    backward functions take it after the saved row values. Of keys in pages (`attn.pages`) there are `fwd`
    and, by q alone, `bwd`, whose pairs `attn-rows-of-pairs` makes an attention of.
    """

    name = "attn-differentiate"
    functions: str = "fwd+bwd"
    wrt: str = ""
    only: bool = False
    interval: int = 0
    channel_interval: int = 0
    crossing: bool = False
    apart: bool = False
    keep: bool = False
    residual: bool = False

    def run(self, module: ir.Operation) -> bool:
        wanted = [name for name in self.functions.split("+") if name]
        for name in wanted:
            if name not in _MAKERS:
                module.location.emit_error(f"{self.name}: functions are {', '.join(_MAKERS)}, got '{name}'")
                return False
        if min(self.interval, self.channel_interval) < 0:
            found = min(self.interval, self.channel_interval)
            module.location.emit_error(f"{self.name}: interval must not be negative, got {found}")
            return False
        for attention in find_all(module, "attn.attention"):
            if not self._differentiate(attention, wanted):
                return False
        return all(self._linear(linear, wanted) for linear in find_all(module, "attn.linear_attention"))

    def _differentiate(self, attention: ir.Operation, wanted: list[str]) -> bool:
        function = attention.parent
        if function is None or function.name != "func.func" or function.regions[0].blocks[0] != attention.block:
            attention.location.emit_error(f"{self.name}: 'attn.attention' must stand directly in a func.func")
            return False
        primal = Primal(function, attention)
        if not is_plain(primal):
            attention.location.emit_error(f"{self.name}: takes a function that returns just one attention of its first three arguments")
            return False
        by_queries = set(wanted) <= {"fwd", "bwd"} and self.wrt == primal.input_names[0]
        if pages_of(attention) is not None and wanted != ["fwd"] and not by_queries:
            attention.location.emit_error(f"{self.name}: keys in pages ('attn.pages') have no derivatives, queries have a gradient alone")
            return False
        read = read_of_input(primal)
        if read is not None:
            read.location.emit_error(f"{self.name}: an element of q, k or v is read: pass the tensor once more, as a further argument")
            return False
        return self._make(primal, lambda wrt: Derivatives(primal, wrt, self.residual), wanted)

    def _linear(self, linear: ir.Operation, wanted: list[str]) -> bool:
        function = linear.parent
        if function is None or function.name != "func.func" or function.regions[0].blocks[0] != linear.block:
            linear.location.emit_error(f"{self.name}: 'attn.linear_attention' must stand directly in a func.func")
            return False
        primal = LinearPrimal(function, linear)
        problem = refused(primal)
        if problem is not None:
            problem[0].location.emit_error(f"{self.name}: {problem[1]}")
            return False
        of_channels = primal.choice("channels") != "none"
        apart = self.apart and is_delta(linear) and may_be_apart(primal)
        crossing = self.crossing or (is_delta(linear) and not apart)
        interval = (of_channels and self.channel_interval) or self.interval or usual_interval(primal, crossing)
        keep = self.keep and apart and "offsets" not in primal.operands
        return self._make(primal, lambda wrt: LinearDerivatives(primal, wrt, interval, crossing, keep), wanted)

    def _make(self, primal: Primal, derivatives: Callable[[list[int]], object], wanted: list[str]) -> bool:
        location = primal.attention.location
        try:
            with location:
                made = derivatives(positions(primal, self.wrt))
                for name in wanted:
                    getattr(made, _MAKERS[name])()
        except DifferentiationError as error:
            (error.location or location).emit_error(f"no derivative: {error}")
            return False
        if self.only:
            primal.function.erase()
        return True
