"""The derivative functions of one linear attention: its gradients are linear attentions of other tensors.

With w(t, s) the factor between positions, o_t = sum_s w(t, s) (q_t . k_s) v_s is linear in q, k and v, so that

    dq_t = sum_s w(t, s) (do_t . v_s) k_s      a scan in the same direction
    dk_s = sum_t w(t, s) (v_s . do_t) q_t      scans in the other one
    dv_s = sum_t w(t, s) (k_s . q_t) do_t

and the log decay at j is passed by all pairs with s < j <= t: its gradient is the sum over r >= j of q_r . dq_r - k_r . dk_r. States go
along: the initial state with dq, that of the last state's gradient with dk and dv, whose own last state is the initial one's gradient.
"""

from dataclasses import dataclass
from functools import cached_property

from attn_mlir.dialects.attn.linear_erase import eraser, is_delta
from attn_mlir.dialects.attn.linear_recurrence import with_all_heads
from attn_mlir.dialects.attn.rows import reached
from attn_mlir.mlir import ir
from attn_mlir.passes.differentiation.delta_apart import DeltaApart
from attn_mlir.passes.differentiation.delta_backward import DeltaBackward, places_of, refused_delta
from attn_mlir.passes.differentiation.delta_check import certified_delta
from attn_mlir.passes.differentiation.errors import DifferentiationError
from attn_mlir.passes.differentiation.host import HostBuilder
from attn_mlir.passes.differentiation.linear_backward import BackwardBody
from attn_mlir.passes.differentiation.linear_check import LinearCertificate, certified
from attn_mlir.passes.differentiation.linear_model import LinearModel, LinearPrimal
from attn_mlir.passes.regions import block_of, clone_op, find_all, piece


def refused(primal: LinearPrimal) -> tuple[ir.Operation, str] | None:
    """Where and why a function is of a form that is not differentiated."""
    linear, entry = primal.attention, primal.entry
    operations, arguments = [view.operation for view in entry.operations], list(entry.arguments)
    given = [*linear.operands, *(value for each in (eraser(linear),) if each is not None for value in list(each.operands)[1:])]
    plain = given[:3] == arguments[:3] and all(value in arguments for value in given) and len(set(given)) == len(given)
    if not plain or list(operations[-1].operands) != list(linear.results):
        return linear, "takes a function that returns just one linear attention of its arguments, the first three as q, k and v"
    names = set(primal.outputs) - {"final_state"}
    if names:
        return linear, f"differentiates o and final_state, not {', '.join(sorted(names))}"
    if piece(linear, "attn.result") is not None:
        return linear, "differentiates what has no 'attn.result'"
    if piece(linear, "attn.skip") is not None and with_all_heads(linear) != primal.operands["v"]:
        return linear, "differentiates an 'attn.skip' where v has all heads of o"
    if primal.choice("channels") == "value":
        return linear, "differentiates decays of heads and of key channels, not of value channels"
    if is_delta(linear) and (problem := refused_delta(primal)) is not None:
        return linear, problem
    inputs = [value for name, value in primal.operands.items() if name in ("q", "k", "v", "initial_state")]
    inputs += [] if (erase := eraser(linear)) is None else list(erase.operands)
    read = next((op for op in find_all(linear, "tensor.extract") if op.operands[0] in inputs), None)
    advice = "pass the tensor once more, as a further argument"
    return None if read is None else (read, f"an element of q, k, v or initial_state is read: {advice}")


_WIDE = 128
"""Columns of k or v from which on chunks of f32 are small, so that they fit into the memories of GPUs."""


def may_be_apart(primal: LinearPrimal) -> bool:
    """Whether the gradients of a delta rule may come from scans of 16-bit tensors with one writer each."""
    narrow = isinstance(ir.RankedTensorType(primal.operands["q"].type).element_type, (ir.F16Type, ir.BF16Type))
    return narrow and not places_of(primal.attention)[0]


def usual_interval(primal: LinearPrimal, crossing: bool = True) -> int:
    """Positions between the states of which the decays' gradient is made: more for 16 bits, which need less; few for decays of channels.

    Fewer for bf16 where the gradient is summed up over all positions: that of numbers which several of them read. What two pieces of bf16
    leave of states makes errors there that add up from position to position.
    """
    if is_delta(primal.attention) and crossing:  # intervals are whole chunks
        most = max(ir.RankedTensorType(primal.operands[name].type).shape[3] for name in ("k", "v"))
        return 16 if primal.choice("channels") != "none" or most > _WIDE else 32
    element = ir.RankedTensorType(primal.attention.operands[0].type).element_type
    if primal.choice("channels") != "none" or not isinstance(element, (ir.F16Type, ir.BF16Type)):
        return 64
    return 256 if isinstance(element, ir.BF16Type) and _shares_numbers(primal) else 512


def _shares_numbers(primal: LinearPrimal) -> bool:
    """Whether `attn.decay` reads elements of tensors at places that do not depend on the position."""
    found = piece(primal.attention, "attn.decay")
    if found is None:
        return False
    of_position = reached(block_of(found), block_of(found).arguments[3])
    return any(not any(index in of_position for index in read.operands) for read in find_all(found, "tensor.extract"))


@dataclass(eq=False)
class LinearDerivatives(LinearModel):
    """Derivatives of the linear attention of one function, by the arguments `wrt` (positions)."""

    @cached_property
    def certificate(self) -> LinearCertificate:
        """How the scans that make gradients agree with differences."""
        if self.is_delta:
            return certified_delta(*places_of(self.primal.attention), self.primal.choice("channels"), not self.crossing)
        return certified(self.primal.choice("direction") == "forward", self.primal.choice("channels"))

    def forward(self) -> None:
        """`@f_fwd`: the function itself; its backward needs nothing further, or what `keep` tells."""
        host, linear = HostBuilder(self.primal), self.primal.attention
        _ = self.mods, self.decay, self.skip, self.erase  # What has no derivative is to be told before anything is computed.
        types = [r.type for r in linear.results]
        if self.keep:
            kept = DeltaApart(self, host)
            host.build("fwd", [], [*types, *kept.residuals().values()], kept.forward)
        else:
            host.build("fwd", [], types, lambda: list(clone_op(linear, dict(host.mapping)).results))

    def backward(self) -> None:
        """`@f_bwd`: the gradients of the arguments `wrt`."""
        host, linear = HostBuilder(self.primal), self.primal.attention
        _ = self.mods, self.decay, self.skip, self.erase, self.certificate
        kind = BackwardBody if not self.is_delta else DeltaBackward if self.crossing else DeltaApart
        names = ["o", *self.primal.outputs]
        types = [r.type for r in linear.results]
        gradients = ["do", *(f"d_{name}" for name in self.primal.outputs)]
        kept = DeltaApart(self, host).residuals() if self.keep else {}
        further = [*zip(names, types, strict=True), *kept.items(), *zip(gradients, types, strict=True)]
        arguments = list(self.primal.entry.arguments)
        same = [self.primal.operands[name] for name in ("q", "k", "v")]
        results = [arguments[i].type if arguments[i] in same else host.like(arguments[i]) for i in self.wrt]
        host.build("bwd", further, results, lambda: kind(self, host).gradients())

    def jvp(self) -> None:
        """Not derived. Raises DifferentiationError."""
        raise DifferentiationError("the tangent of a linear attention is not derived; its gradients are", self.primal.attention.location)

    def second(self) -> None:
        """Not derived. Raises DifferentiationError."""
        raise DifferentiationError("second derivatives of a linear attention are not derived", self.primal.attention.location)
