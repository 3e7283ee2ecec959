"""From a BlockMask, ours or torch's, to the mask function that a kernel is compiled of."""

import weakref
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn.attention import flex_attention as torch_flex

from attn_mlir.api.block_mask import BlockMask as EngineBlockMask
from attn_mlir.api.given_masks import Snapshot, changes_unseen, compare_with_function
from attn_mlir.api.inputs import Problem
from attn_mlir.errors import ArgumentError
from attn_mlir.flex.block_mask import SLICED, SymbolicBlockMask, listed_blocks
from attn_mlir.flex.create import noop_mask

Mask = Callable[..., Any]
_WHOLE = 1 << 30
"""The block size of masks that torch makes where it is given none; they fit any length."""
_found: "dict[int, FoundMask]" = {}
"""By the number of the mask, for as long as that lives."""


class FoundMask:
    """The mask function that was found for a BlockMask, and what of the mask it was found for."""

    __slots__ = ("batch_heads", "block", "device", "fits", "function", "given", "lengths", "mask", "tables")

    def __init__(self, mask: Any, function: Mask, batch_heads: tuple[int, int], device: torch.device) -> None:
        number = id(mask)
        self.mask = weakref.ref(mask, lambda _: _forget(number, _))
        self.given, self.block, self.lengths = mask.mask_mod, tuple(mask.BLOCK_SIZE), tuple(mask.seq_lengths)
        self.tables = Snapshot(_tables(mask))
        self.function, self.batch_heads, self.device = function, batch_heads, device
        self.fits: Problem | None = None
        """Inputs that the mask was checked against."""

    def holds(self, mask: Any) -> bool:
        """Whether the mask is what it was: the same function and sizes, the same tables, of the same content."""
        if self.mask() is not mask or self.given is not mask.mask_mod:
            return False
        if self.block != mask.BLOCK_SIZE and self.block != tuple(mask.BLOCK_SIZE):
            return False
        if self.lengths != mask.seq_lengths and self.lengths != tuple(mask.seq_lengths):
            return False
        return self.tables.holds((mask.kv_num_blocks, mask.kv_indices, mask.full_kv_num_blocks, mask.full_kv_indices))


def _tables(mask: Any) -> tuple[Tensor | None, ...]:
    return mask.kv_num_blocks, mask.kv_indices, mask.full_kv_num_blocks, mask.full_kv_indices


class SlicedMaskError(ArgumentError, RuntimeError):
    """A slice of a BlockMask has no mask function; torch raises a RuntimeError."""


class NoMaskError(ArgumentError, AttributeError):
    """What is given as block_mask is none; torch raises an AttributeError."""


class DeviceError(ArgumentError, RuntimeError):
    """A BlockMask is on another device; torch raises a RuntimeError."""


def mask_for(mask: Any, query: Tensor, problem: Problem) -> Mask | None:
    """`mask_function` for inputs whose problem is known, outside of graphs: what was found and checked before is not asked again."""
    known = _found.get(id(mask))
    if known is not None and known.fits is problem and known.holds(mask):
        return known.function
    sizes = problem.sizes
    heads = (sizes["B"], sizes["Hq"], sizes["Sq"]), (sizes["B"], sizes["Hkv"], sizes["Skv"])
    function = mask_function(mask, query, *heads)
    known = _found.get(id(mask))
    if known is not None and known.holds(mask):
        known.fits = problem
    return function


def mask_function(mask: Any, query: Tensor, q_sizes: Sequence[int], kv_sizes: Sequence[int]) -> Mask | None:
    """The mask function of a BlockMask, which is checked against the sizes of a call. None: it keeps everything.

    A mask function that says what the tables say is used alone, so that the compiler can make loop bounds of it. Otherwise the
    tables are captured, and what is kept is what torch keeps: full blocks, and of partial ones what mask_mod says.
    """
    try:
        function, block, lengths = mask.mask_mod, mask.BLOCK_SIZE, mask.seq_lengths
    except AttributeError as error:
        if isinstance(mask, EngineBlockMask):
            raise NoMaskError(
                "block_mask is one of attn_mlir.create_block_mask, which makes those of AttentionEngine: flex_attention takes those of "
                "attn_mlir.flex.create_block_mask, of the same arguments, and torch's"
            ) from error
        raise NoMaskError(
            f"block_mask must be a BlockMask, got {type(mask).__name__}: create_block_mask(mask_mod, B, H, Q_LEN, KV_LEN) makes one of a "
            "function, which may read a tensor, as in lambda b, h, q_idx, kv_idx: mask[q_idx, kv_idx]"
        ) from error
    symbolic = type(mask) is SymbolicBlockMask and mask.symbolic
    known = None
    if symbolic:
        batch_heads, device = mask.batch_heads, mask.device
    elif not torch.compiler.is_dynamo_compiling() and (known := _found.get(id(mask))) is not None and known.holds(mask):
        batch_heads, device = known.batch_heads, known.device
    else:
        known = None
        batch_heads, device = _checked_tables(mask, function)
    whole = block[0] == _WHOLE and block[1] == _WHOLE
    if not whole:
        if lengths[0] != q_sizes[2] or lengths[1] != kv_sizes[2]:
            raise _wrong_lengths(mask, q_sizes[2], kv_sizes[2])
        if batch_heads != (1, 1) and (batch_heads[0] not in (1, q_sizes[0]) or batch_heads[1] not in (1, q_sizes[1])):
            raise ArgumentError(
                f"block_mask was created for block_mask.shape={mask.shape} but got B={q_sizes[0]} and Hq={q_sizes[1]}: "
                "make it for these, or with None for any number"
            )
    where = query.device
    if where != device and not (device.index is None and device.type == where.type):
        raise DeviceError(f"Expect q/k/v and block_mask to be on the same device but got {where} and {device}.")
    if known is not None:
        return known.function
    if symbolic or whole:
        return None if _is_noop(function) else function
    # A graph reads the tables at every call: comparing them with the function would tie it to one mask, and each new one would compile.
    if torch.compiler.is_dynamo_compiling() or any([changes_unseen(table) for table in _tables(mask)]):
        return _of_tables(mask)
    found = FoundMask(mask, function, batch_heads, device)
    found.function = function if _fits(mask) else _of_tables(mask)
    _found[id(mask)] = found
    return found.function


def _forget(number: int, mask: "weakref.ref[Any]") -> None:
    """Drops what was found for a mask that is no more; another one may have its number by now."""
    known = _found.get(number)
    if known is not None and known.mask is mask:
        _found.pop(number, None)


def _checked_tables(mask: Any, function: Mask) -> tuple[tuple[int, int], torch.device]:
    """For how many batches and heads the tables are, and where they lie. Raises errors of what no call can use."""
    if function is SLICED:
        raise SlicedMaskError(
            "Cannot use mask_mod from a sliced BlockMask: set the slice's mask_mod to a function for its positions, "
            "as in lambda b, h, q_idx, kv_idx: whole.mask_mod(b, h, q_idx + offset, kv_idx)"
        )
    counts, size = mask.kv_num_blocks, mask.BLOCK_SIZE[0]
    if size != _WHOLE and counts.shape[-1] * size < mask.seq_lengths[0]:
        raise ArgumentError(
            f"block_mask lists {counts.shape[-1]} rows of blocks of {size} queries, but has seq_lengths={tuple(mask.seq_lengths)}: "
            "give tables for all queries, or the length that they are for"
        )
    batch, heads = (1, 1, *counts.shape[:-1])[-2:]
    return (batch, heads), counts.device


def _wrong_lengths(mask: Any, queries: int, keys: int) -> ArgumentError:
    told = f"block_mask was created for block_mask.shape={mask.shape} but got q_len={queries} and kv_len={keys}. "
    if queries > mask.seq_lengths[0] or keys > mask.seq_lengths[1]:
        return ArgumentError(
            told
            + "As the block mask was created for a smaller length than you're using it for, you likely need to create a new block mask."
        )
    return ArgumentError(
        told + "As the block mask was created for a larger length than you're using it for, you can either 1. create a new block mask "
        "with the correct length, or 2. 'adjust' the existing block mask to the correct length by calling block_mask._adjust(q_len, "
        "kv_len). This essentially 'crops' the block mask to the upper left corner, which does not work for all mask_mods!"
    )


def _is_noop(function: Mask) -> bool:
    return function is noop_mask or function is torch_flex.noop_mask


def _fits(mask: Any) -> bool:
    """Whether the mask function alone says what the tables say."""
    function = mask.mask_mod
    if _is_noop(function):
        return False
    try:
        compare_with_function(mask, function)
    except ArgumentError:
        return False
    return True


def _of_tables(mask: Any) -> Mask:
    """The mask of partial blocks, where mask_mod is asked, and full blocks."""
    rows, columns = mask.BLOCK_SIZE
    partial = _pattern(mask.kv_num_blocks, mask.kv_indices, mask.seq_lengths[1], columns)
    if mask.full_kv_num_blocks is None:
        full = None
    else:
        full = _pattern(mask.full_kv_num_blocks, mask.full_kv_indices, mask.seq_lengths[1], columns)
    function = None if _is_noop(mask.mask_mod) else mask.mask_mod
    if function is None:
        return _reading(partial if full is None else partial | full, (rows, columns))
    some = _reading(partial, (rows, columns))
    if full is None:
        return lambda b, h, q_idx, kv_idx: some(b, h, q_idx, kv_idx) & function(b, h, q_idx, kv_idx)
    every = _reading(full, (rows, columns))
    return lambda b, h, q_idx, kv_idx: (some(b, h, q_idx, kv_idx) & function(b, h, q_idx, kv_idx)) | every(b, h, q_idx, kv_idx)


def _pattern(counts: Tensor, indices: Tensor, keys: int, size: int) -> Tensor:
    """int8 [B, H, blocks of queries, blocks of keys], nonzero where a block is listed."""
    pattern = listed_blocks(counts, indices, -(-keys // size)).to(torch.int8)
    while pattern.dim() < 4:
        pattern = pattern[None]
    return pattern


def _reading(table: Tensor, block: tuple[int, int]) -> Mask:
    """The mask function that reads a pattern; its sizes are constants of the program, being in a tuple."""
    if table.shape[0] > 1 and table.shape[1] > 1:
        return lambda b, h, q_idx, kv_idx: table[b, h, q_idx // block[0], kv_idx // block[1]] != 0
    if table.shape[0] > 1:
        by_batch = table[:, 0]
        return lambda b, h, q_idx, kv_idx: by_batch[b, q_idx // block[0], kv_idx // block[1]] != 0
    if table.shape[1] > 1:
        by_head = table[0]
        return lambda b, h, q_idx, kv_idx: by_head[h, q_idx // block[0], kv_idx // block[1]] != 0
    shared = table[0, 0]
    return lambda b, h, q_idx, kv_idx: shared[q_idx // block[0], kv_idx // block[1]] != 0
