"""Programs of linear attentions: what they check and compute besides what those of attentions do."""

import dataclasses
import itertools
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar

import torch

from attn_mlir import driver
from attn_mlir.errors import ArgumentError, UnsupportedError
from attn_mlir.runtime import compute
from attn_mlir.runtime.programs import Program
from attn_mlir.runtime.reads import LookedAt
from attn_mlir.runtime.row_values import score_of

_WITHOUT = {
    "jvp": "linear attention has no forward-mode derivative yet: use reverse mode, as in torch.autograd.grad or torch.func.vjp",
    "bwd2": "linear attention has no second derivative yet: pass create_graph=False, or detach the first gradient",
}


_BY_POSITION = (("decay",), ("erase",), ("erase_key",), ("removed_key",))
"""Inputs that have positions, if they have four dimensions."""


@dataclasses.dataclass(frozen=True)
class LinearRun:
    """A compiled program, or one of its derivatives; sequences without positions are answered without it.

    Long sequences are computed by what `split` makes of a number: the program that scans segments of so many positions at the same time.
    `segment` is this number, 0 for none, None for what the device would rather have.
    `ordered` numbers the results whose memory has the order of the layout where they have a head's columns; the others are contiguous.
    """

    program: driver.CompiledFunction
    ordered: tuple[int, ...]
    state_result: int | None
    """Which result, where there are no positions, is what the input `state_source` is: the state does not change then."""
    state_source: int | None
    segment: int | None
    split: Callable[[int], driver.CompiledFunction]
    given: int | None = None
    """How many results a caller gets; what there is beyond them is for the backward, and has the sizes of segments."""
    erases: bool = False
    """Whether it is a delta rule, for which devices choose segments in another way."""

    def run(self, inputs: Sequence[Any], layout: str = "bhsd") -> list[torch.Tensor]:
        """See `driver.CompiledFunction.run`."""
        if 0 not in (*inputs[0].shape[:3], inputs[2].shape[1]):
            made = self._chosen(inputs).run(inputs, layout)
            return [_in_order(result, i in self.ordered) for i, result in enumerate(made)] if layout == "bshd" else made
        made = self.program.results(inputs)
        results = [torch.zeros(tuple(shape), dtype=dtype, device=inputs[0].device) for shape, dtype in made]
        if self.state_result is not None and self.state_source is not None:
            results[self.state_result].copy_(inputs[self.state_source])
        return results

    def _chosen(self, inputs: Sequence[Any]) -> driver.CompiledFunction:
        """The program for tensors of these sizes."""
        segment = self.segment_for(inputs)
        return self.split(segment) if segment else self.program

    def segment_for(self, inputs: Sequence[Any]) -> int:
        """See `driver.CompiledFunction.segment_for`; 0 where sequences are no longer than a segment."""
        chosen = self.program.segment_for_delta if self.erases else self.program.segment_for
        segment = chosen(inputs) if self.segment is None else self.segment
        return segment if segment < inputs[2].shape[2] else 0

    def results(self, inputs: Sequence[Any]) -> list[tuple[Any, Any]]:
        """See `driver.CompiledFunction.results`."""
        made = self.program.results(inputs)
        return made if self.given is None or len(made) == self.given else self._chosen(inputs).results(inputs)

    def stages(self) -> dict[str, str]:
        """See `driver.CompiledFunction.stages`; those of segments where their length is given."""
        return (self.split(self.segment) if self.segment else self.program).stages()


def _in_order(result: torch.Tensor, follows: bool) -> torch.Tensor:
    """A result in the memory order of [B, T, H, D] where it `follows` that layout and has rank 4, contiguous where not.

    No view, which autograd would not let its owner change in place.
    """
    if not follows or result.dim() != 4:
        return result.contiguous()
    if result.transpose(1, 2).is_contiguous():
        return result
    return compute.empty([(result.shape, result.dtype)], result.device, "bshd")[0].copy_(result)


def results(q: torch.Tensor, v: torch.Tensor, given: Mapping[str, torch.Tensor], final: bool) -> list[tuple[Any, torch.dtype]]:
    """Shape and dtype of o and, with `final`, of the final state; `given` are inputs besides q, k and v, by name."""
    o = (tuple(v.shape), q.dtype)
    if not final:
        return [o]
    sequences = given["cu_seqlens"].shape[0] - 1 if "cu_seqlens" in given else v.shape[0]
    return [o, ((sequences, v.shape[1], q.shape[3], v.shape[3]), score_of(q))]


@dataclasses.dataclass(eq=False)
class LinearProgram(Program):
    """A traced linear attention. Its first captures are `inputs`, of those that `frontend.linear` names."""

    reads_results: ClassVar[bool] = False
    has_kernel: ClassVar[bool] = False

    inputs: tuple[str, ...] = ()
    segment: int | None = None
    """Of how many positions are segments, scanned at the same time; 0: sequences are whole, None: as sizes and device ask for."""
    _offsets: LookedAt = dataclasses.field(default_factory=LookedAt)

    def _texts(self, function: str) -> tuple[str, str, str]:
        if function in _WITHOUT:
            raise UnsupportedError(_WITHOUT[function])
        return self.text, self.located, function

    def _whole(self, compile_for: Callable[..., driver.CompiledFunction], function: str, wrt: str) -> LinearRun:
        # A delta rule's segments have gradients of another kind, which take longer: they are chosen for a forward pass alone.
        erases = "attn.erase" in self.text
        whole = "cu_seqlens" in self.inputs or (self.segment is None and erases and function != "")
        made, segment = compile_for(0), 0 if whole else self.segment
        initial = 3 + self.inputs.index("initial_state") if "initial_state" in self.inputs else None
        if function != "bwd":
            return LinearRun(made, (0, self.made), 1 if self.outputs else None, initial, segment, compile_for, self.made, erases)
        ordered = sorted(self.position(name) for name in wrt.split("+"))
        follow = tuple(number for number, position in enumerate(ordered) if self.follows_layout(position))
        # The gradient of the final state comes last of all arguments.
        target = ordered.index(initial) if initial in ordered and self.outputs else None
        return LinearRun(made, follow, target, -1, segment, compile_for)

    def sizes(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> dict[str, int]:
        """See `Program.sizes`; H is the number of heads of v and o."""
        return {**super().sizes(q, k, v), "H": v.shape[1]}

    def ordered(self, results: int) -> tuple[int, ...]:
        """See `Program.ordered`; a state has no positions, and what is kept for the backward begins with a tensor that has."""
        return (0, self.made)

    def follows_layout(self, place: int) -> bool:
        """See `Program.follows_layout`; a decay for each position and channel is one of q's kind."""
        return super().follows_layout(place) or self.inputs[place - 3 : place - 2] in _BY_POSITION

    def is_empty(self, sizes: dict[str, int]) -> bool:
        """See `Program.is_empty`; without positions there is still a final state."""
        return False

    def results(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, captures: Sequence[Any]) -> list[tuple[Any, torch.dtype]]:
        """See `Program.results`."""
        return results(q, v, dict(zip(self.inputs, captures, strict=False)), bool(self.outputs))

    def fill_empty(self, rows: Sequence[torch.Tensor]) -> None:
        """Nothing to do: `LinearRun` gives the final state of no positions."""

    def check(self, captures: Sequence[Any], sizes: dict[str, int], device: torch.device) -> None:
        """See `Program.check`; cu_seqlens must be boundaries of sequences, since kernels trust them."""
        super().check(captures, sizes, device)
        if "cu_seqlens" in self.inputs:
            offsets, length = captures[self.inputs.index("cu_seqlens")], sizes["Sq"]
            self._offsets.once((id(offsets), length), [offsets], lambda: _check_offsets(offsets, length))


def _check_offsets(offsets: torch.Tensor, length: int) -> None:
    numbers = offsets.tolist()
    if numbers[0] != 0 or numbers[-1] != length:
        raise ArgumentError(
            f"cu_seqlens must start at 0 and end at the number of positions, {length}; it runs from {numbers[0]} to {numbers[-1]}"
        )
    if any(a > b for a, b in itertools.pairwise(numbers)):
        raise ArgumentError("cu_seqlens must not decrease: sequence n is the positions from cu_seqlens[n] to cu_seqlens[n + 1]")
