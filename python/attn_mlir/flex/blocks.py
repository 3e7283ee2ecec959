"""Which blocks of a mask are empty, partial or full: by the symbolic analysis, and by evaluation where that leaves a block open.

The answer is that of evaluating every position. A causal mask over a million positions has 67 million blocks of 128 x 128; the analysis
decides all but the 8192 on the diagonal, and a few positions of these decide that they are partial.
"""

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from typing import Any

import numpy as np
import torch

from attn_mlir.api.rows import softmax
from attn_mlir.errors import AttnError
from attn_mlir.frontend.cache import Entry
from attn_mlir.frontend.captures import Scan
from attn_mlir.frontend.emit import Inputs
from attn_mlir.frontend.program import Definition, trace
from attn_mlir.frontend.sizes import known

Mask = Callable[..., Any]
Sizes = tuple[int, int, int, int]
EMPTY, PARTIAL, FULL = 0, 1, 2
_POSITIONS = 1 << 21
"""How many positions are evaluated at once."""
_BLOCKS = 1 << 22
"""How many blocks are analysed at once."""
_SMALL = 1 << 20
"""Masks of so many positions are evaluated: tracing them takes longer."""


def block_classes(mask_mod: Mask, sizes: Sizes, block: tuple[int, int], device: torch.device) -> torch.Tensor:
    """int8 [B, H, blocks of queries, blocks of keys]: 0 where a block keeps nothing, 2 where it keeps every position, else 1.

    `sizes` are B, H, queries and keys. A block that reaches beyond the lengths is never full.
    """
    shape = (*sizes[:2], -(-sizes[2] // block[0]), -(-sizes[3] // block[1]))
    grid = None
    if sizes[0] * sizes[1] * sizes[2] * sizes[3] > _SMALL:
        grid = _analysed(mask_mod, sizes, block, shape)
    if grid is None:
        grid = torch.full(shape, PARTIAL, dtype=torch.int8, device="cpu")
    step = max(1, _BLOCKS // max(1, shape[0] * shape[1] * shape[3]))
    for first in range(0, shape[2], step):
        part = grid[:, :, first : first + step]
        _evaluate_partial(part, first, mask_mod, sizes, block, device)
    return grid.to(device)


def _analysed(mask_mod: Mask, sizes: Sizes, block: tuple[int, int], shape: tuple[int, ...]) -> torch.Tensor | None:
    """The classes as far as the analysis knows them: an empty or full block is one; a partial one may be any. None: it cannot tell."""
    from attn_mlir.dialects import loaded
    from attn_mlir.mlir import LOCK, ir
    from attn_mlir.passes.intervals.classify import classify
    from attn_mlir.passes.resolve_masks import ResolveMasks

    try:
        entry = Entry(trace(Definition(softmax, mask_mod=mask_mod, scale=1.0), Inputs("f32", 64, 64)))
        scan: Any = Scan((None, None, None, None, mask_mod, softmax))
        captures = [_array(value) for value in entry.captures(scan, 0.0)]
    except (AttnError, TypeError):  # what cannot be traced, or has no type of numpy's, can be evaluated
        return None
    grid = torch.empty(shape, dtype=torch.int8, device="cpu")
    step = max(1, _BLOCKS // max(1, shape[0] * shape[1] * shape[3]))
    with LOCK, loaded(), ir.Location.unknown():
        module = ir.Module.parse(entry.traced.text)
        if not ResolveMasks().run(module.operation):
            return None
        for first in range(0, shape[2], step):
            rows = (first, min(first + step, shape[2]))
            try:
                found = classify(module.operation, captures, *sizes[2:], *block, batch=sizes[0], heads=sizes[1], rows=rows).grid
            except KeyError:  # an operation without a rule in numpy
                return None
            grid[:, :, rows[0] : rows[1]] = torch.from_numpy(np.ascontiguousarray(found.astype(np.int8)))
    if sizes[2] % block[0]:
        grid[:, :, -1].clamp_(max=PARTIAL)
    if sizes[3] % block[1]:
        grid[..., -1].clamp_(max=PARTIAL)
    return grid


def _array(value: Any) -> Any:
    return value.detach().cpu().numpy() if isinstance(value, torch.Tensor) else value


def _evaluate_partial(grid: torch.Tensor, first: int, mask_mod: Mask, sizes: Sizes, block: tuple[int, int], device: torch.device) -> None:
    """Evaluates the partial blocks of some rows of blocks, of which the first one is `first`, and writes what they are into `grid`.

    Nine positions of a block decide most: where the mask keeps one and leaves out another, the block is partial.
    """
    rows, columns = (torch.tensor(sorted({0, size // 2, size - 1}), device=device) for size in block)
    for some in torch.nonzero(grid == PARTIAL).split(_POSITIONS // 9):
        if not len(some):
            continue
        b, h, q_block, kv_block = some.to(device).unbind(-1)
        q, kv = (q_block + first) * block[0], kv_block * block[1]
        any_kept, all_kept = _any_and_all(mask_mod, (b, h, q, kv), rows, columns, sizes)
        open_ = torch.nonzero(any_kept == all_kept)[:, 0]
        for part in open_.split(max(1, _POSITIONS // (block[0] * block[1]))):
            if not len(part):
                continue
            found = [x[part] for x in (b, h, q, kv)]
            any_kept[part], all_kept[part] = False, True
            step = max(1, _POSITIONS // (len(part) * block[1]))
            for row in range(0, block[0], step):
                lines = torch.arange(row, min(row + step, block[0]), device=device)
                here = _any_and_all(mask_mod, found, lines, torch.arange(block[1], device=device), sizes)
                any_kept[part] |= here[0]
                all_kept[part] &= here[1]
        grid[tuple(some.unbind(-1))] = (any_kept.to(torch.int8) + all_kept.to(torch.int8)).cpu()


def _any_and_all(
    mask_mod: Mask, places: Sequence[torch.Tensor], rows: torch.Tensor, columns: torch.Tensor, sizes: Sizes
) -> tuple[torch.Tensor, torch.Tensor]:
    """Whether some of these rows and columns of each block is kept, and whether all are; positions beyond the lengths are not."""
    b, h, q, kv = places
    queries, keys = q[:, None] + rows, kv[:, None] + columns
    inside = (queries < sizes[2])[:, :, None] & (keys < sizes[3])[:, None, :]
    kept = positions(mask_mod, b, h, queries.clamp(max=sizes[2] - 1), keys.clamp(max=sizes[3] - 1), sizes)
    return (kept & inside).flatten(1).any(1), (kept & inside).flatten(1).all(1)


def positions(mask_mod: Mask, b: torch.Tensor, h: torch.Tensor, queries: torch.Tensor, keys: torch.Tensor, sizes: Sizes) -> torch.Tensor:
    """The mask at `queries` [n, rows] and `keys` [n, columns] of batches and heads b, h [n]: bool [n, rows, columns].

    The function gets one position at a time, under nested vmaps as in FlexAttention.
    """
    nested = torch.vmap(torch.vmap(torch.vmap(_scalar(mask_mod), (None, None, None, 0)), (None, None, 0, None)))
    heads = {"num_heads": sizes[1]} if sizes[1] > 1 else {}
    with _indexing(), known(q_len=sizes[2], kv_len=sizes[3], **heads):
        return nested(b, h, queries, keys)


def _scalar(mask_mod: Mask) -> Mask:
    """The mask function as one whose result depends on the position, as vmap wants it, and is a bool."""

    def kept(b: Any, h: Any, q_idx: Any, kv_idx: Any) -> torch.Tensor:
        result = torch.as_tensor(mask_mod(b, h, q_idx, kv_idx), device=q_idx.device)
        return result.bool() & (kv_idx >= 0)

    return kept


def _indexing() -> Any:
    """Lets `table[index]` of a plain tensor be a lookup under vmap, as torch's own flex_attention does."""
    try:
        from torch._dynamo._trace_wrapped_higher_order_op import TransformGetItemToIndex
    except ImportError:  # torch has renamed it: most lookups need no help
        return nullcontext()
    return TransformGetItemToIndex()
