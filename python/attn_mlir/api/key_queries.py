"""The gradient of q where lists say which keys queries see: kernels read listed blocks as pages, as those of the forward pass do.

So sums over keys have one writer, and the same bits in every run; the kernels that follow the inverse of the lists leave them out. What
both compute, the weights of pairs, is computed twice: seven products in place of five, and no sums that meet in memory.
"""

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from attn_mlir.api.key_pages import PagedCall, pages_of
from attn_mlir.api.key_sequences import in_whole, packed_rows
from attn_mlir.errors import CompileError, UnsupportedError
from attn_mlir.runtime.compute import as_dtype_of, or_zeros
from attn_mlir.runtime.dispatch import program_on
from attn_mlir.runtime.orders import output_order
from attn_mlir.runtime.varlen import largest

MEASURED: frozenset[tuple[str, int, int]] = frozenset({("cuda", 128, 64)})
"""Devices, columns of q, k and v, and keys of a tile, where kernels do so: 1.1 ms in place of 1.4 (docs/key-lists.md)."""
FEWEST_ROWS = 64
"""Rows of a sequence, which fill a kernel's block: fewer are better off as steps of a kernel that has keys."""
Tensor = torch.Tensor
_QUERIES, _NONE = "queries", "none"


@dataclass(frozen=True)
class QueryGradient:
    """A backward program by q alone, and what it takes besides tensors that autograd keeps."""

    run: Any
    call: PagedCall
    captures: Sequence[Any]
    rows: Sequence[Tensor]
    """Values of rows that the caller of the forward pass does not get, as they are for sequences: results of it, the last ones."""

    def of(self, inputs: Sequence[Tensor], results: Sequence[Tensor], grads: Sequence[Tensor | None]) -> Tensor:
        """The gradient of q, [B, H, S, D], by tensors with heads first: q, k and v, results of the forward pass, gradients of them."""
        q, k, v = inputs
        made, shapes = self.call.made, self.call.shapes
        given = [or_zeros(grad, result) for grad, result in zip(grads, results, strict=False)]
        kept = [self._packed(x) for x in results[: len(results) - len(self.rows)]]
        packed = [self._packed(q), *kept, *self.rows, *map(self._packed, given)]
        missing = shapes.blocks * shapes.keys - shapes.kv_len
        whole = [torch.nn.functional.pad(x, (0, 0, 0, missing)) if missing else x for x in (k, v)]
        keys = [pages_of(x, made, shapes.blocks).transpose(1, 2) for x in whole]
        with largest(*self.call.most):
            (found,) = self.run.run([packed[0], *keys, *self.captures, *packed[1:]], output_order(self.call.call.layout))
        return in_whole(as_dtype_of(found, q).transpose(1, 2).squeeze(0), made, "bhsd")

    def _packed(self, x: Tensor) -> Tensor:
        """[B, H, S, D], or [B, H, S], as the rows of all sequences, [1, heads of one, rows, D] or [1, heads of one, rows]."""
        columns = x if x.dim() == 4 else x.unsqueeze(3)
        turned = packed_rows(columns, self.call.made).unsqueeze(0).transpose(1, 2)
        return turned if x.dim() == 4 else turned.squeeze(3)


def query_gradient(paged: PagedCall, functions: tuple[Any, ...], results: Sequence[Tensor], tile: int) -> QueryGradient | None:
    """What makes the gradient of q of a call with such results of its forward pass; None where a device has no kernels for it.

    `tile`: keys of a tile of the kernels that have keys, to which mods of q, k and v, and rows that fill no block of a kernel, are left.
    """
    call, device = paged.call, paged.call.problem.device_type
    q, _, v = call.values[:3]
    place = program_on(call).device or device, q.shape[-1], tile
    if place not in MEASURED or q.shape[-1] != v.shape[-1] or paged.most[0] % FEWEST_ROWS or any(f is not None for f in functions[:3]):
        return None
    known = paged.runs.get(_QUERIES) if paged.runs is not None else None
    if known is None:
        known = _compiled(paged, device, len(results))
        if paged.runs is not None:
            paged.runs[_QUERIES] = known
    if known == _NONE:
        return None
    made = call.entry.traced.weights + len(call.entry.traced.outputs)
    first = next(
        (number for number, x in enumerate(results) if number >= made and all(y.dim() == 3 for y in results[number:])), len(results)
    )
    without_tensors = dataclasses.replace(paged, call=call._replace(values=()))  # those that autograd keeps, and copies of them
    return QueryGradient(known, without_tensors, call.values[3:], results[first:])


def _compiled(paged: PagedCall, device: str, results: int) -> Any:
    """The program, or "none"."""
    program = program_on(paged.call)
    try:
        made: Any = program.derivative(device, "bwd", "q")
    except (CompileError, UnsupportedError):
        return _NONE
    known = 3 + len(program.names) + program.made
    compiled = made.program
    return _NONE if getattr(compiled, "slow", {}) or len(compiled.host.arguments) - known != results else made
