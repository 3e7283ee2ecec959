"""Block masks, ours or FlexAttention's, where a mask function is taken: their mask_mod, if it says what their blocks say."""

import ctypes
import importlib
import sys
import weakref
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from types import FunctionType
from typing import TYPE_CHECKING, Any, TypeAlias

import torch
from torch._C._functorch import is_functorch_wrapped_tensor
from torch.utils._python_dispatch import _disable_current_modes

from attn_mlir.api.block_mask import BlockMask
from attn_mlir.errors import ArgumentError

if TYPE_CHECKING:
    from torch.nn.attention.flex_attention import BlockMask as FlexBlockMask

Mask: TypeAlias = "Callable[..., Any] | BlockMask | FlexBlockMask | str | None"
GivenBlocks: TypeAlias = "Callable[..., Any] | BlockMask | FlexBlockMask | torch.Tensor | str | None"
_FLEX = "torch.nn.attention.flex_attention"
_WHOLE = 1 << 30
"""The block size of masks that FlexAttention makes where it is given none; they fit any length."""
_SAMPLES = 1 << 21
_SMALL = 1 << 14
"""Tables of so many bytes are compared as bytes."""
_NAMES = (("batch size", "B"), ("number of heads", "Hq"), ("length", "Sq"), ("length of k", "Skv"))
_compared: "weakref.WeakKeyDictionary[Any, tuple[Any, Snapshot]]" = weakref.WeakKeyDictionary()


class Snapshot:
    """Tables of a block mask as they were at one time.

    Those on the CPU are copied, since changes through numpy, `.data` and in inference mode leave no trace; of others, which would
    have to be waited for, the versions are kept.
    """

    def __init__(self, tables: Sequence[torch.Tensor | None]) -> None:
        self._tables = [(table, *(_memory(table) if table is not None and _is_small(table) else _UNREAD)) for table in tables]
        with _disable_current_modes():
            self._states = [(table, _state(table)) for table in tables if table is not None and not _is_small(table)]

    def holds(self, tables: Sequence[torch.Tensor | None]) -> bool:
        """Whether these are the same tables, and nobody has changed them."""
        if len(tables) != len(self._tables):
            return False
        # The bytes of small tables are compared in place, in a fraction of the time that torch.equal takes.
        for table, (known, place, shape, memory, content) in zip(tables, self._tables, strict=True):
            if table is not known:
                return False
            if memory is None or table is None:
                continue
            if table.data_ptr() != place or table.shape != shape or not table.is_contiguous() or memory.raw != content:
                return False
        if not self._states:
            return True
        # Asked at every call: leaving modes takes ten times as long where there are none.
        with _disable_current_modes() if torch._C._len_torch_dispatch_stack() else nullcontext():
            return all([_is_still(table, state) for table, state in self._states])


_UNREAD = (0, None, None, b"")


def _memory(table: torch.Tensor) -> tuple[int, torch.Size, Any, bytes]:
    """Where a small table is, its shape, its memory and what that held. The memory is looked at only while the table is still there."""
    place = table.data_ptr()
    memory = (ctypes.c_char * table.nbytes).from_address(place)
    return place, table.shape, memory, memory.raw


def _is_small(table: torch.Tensor) -> bool:
    """Whether a table is plain memory of the CPU, of few bytes."""
    if type(table) is not torch.Tensor or table.device.type != "cpu" or not 0 < table.nbytes <= _SMALL:
        return False
    return table.is_contiguous() and not is_functorch_wrapped_tensor(table)


def changes_unseen(table: torch.Tensor | None) -> bool:
    """Whether a table can change without a sign that does not have to be waited for."""
    return table is not None and table.is_inference() and table.device.type != "cpu"


def _state(table: torch.Tensor) -> Any:
    if changes_unseen(table):
        return None
    return table.detach().clone() if table.device.type == "cpu" else (table._version, table.data_ptr())


def _is_still(table: torch.Tensor, state: Any) -> bool:
    if state is None:
        return False
    if isinstance(state, torch.Tensor):
        return torch.equal(table, state)
    return state == (table._version, table.data_ptr())


def is_block_mask(mask: Any) -> bool:
    """Whether this is no function but a mask with sizes."""
    if mask is None or type(mask) is FunctionType:
        return False
    return isinstance(mask, BlockMask) or (_FLEX in sys.modules and isinstance(mask, sys.modules[_FLEX].BlockMask))


def function_of(mask: Any) -> Callable[..., Any]:
    """The mask function of a block mask. Raises ArgumentError where the blocks say something else."""
    if isinstance(mask, BlockMask):
        return mask.mask_mod
    function = mask.mask_mod
    if getattr(mask, "symbolic", False):  # of attn_mlir.flex.create_block_mask: its blocks are computed of the function
        return function
    if function is getattr(sys.modules[_FLEX], "_sliced_mask_mod_error", None):
        raise ArgumentError(
            "this BlockMask is a slice of another, which has no mask_mod of its own: pass a mask function for these positions, "
            "as in lambda b, h, q_idx, kv_idx: whole.mask_mod(b, h, q_idx + offset, kv_idx)"
        )
    known = _compared.get(mask)
    if known is None or known[0] is not function or not known[1].holds(tables_of(mask)):
        now = Snapshot(tables_of(mask))
        compare_with_function(mask, function)
        _compared[mask] = function, now
    return function


def with_function(functions: tuple[Any, ...]) -> tuple[Any, ...]:
    """The functions of an attention, with the mask function in place of a block mask."""
    return (*functions[:4], function_of(functions[4]), functions[5]) if is_block_mask(functions[4]) else functions


def sizes_of(mask: Any) -> tuple[int, ...] | None:
    """For how many batches, heads, queries and keys a block mask is; 1 batch or head: for any number. None: for all sizes."""
    if isinstance(mask, BlockMask):
        return mask.sizes
    if tuple(mask.BLOCK_SIZE) == (_WHOLE, _WHOLE):
        return None
    if getattr(mask, "symbolic", False):
        return mask.shape
    shape = (*mask.kv_num_blocks.shape[:-1], *mask.seq_lengths)
    return (*(1 for _ in range(4 - len(shape))), *shape)


def check_sizes(given: tuple[int, ...] | None, sizes: Mapping[str, int]) -> None:
    """Checks that a block mask was made for a call of these sizes. Raises ArgumentError."""
    if given is None:
        return
    for (name, key), size in zip(_NAMES, given, strict=True):
        wanted = sizes[key]
        if size != wanted and not (size == 1 and key in ("B", "Hq")):
            raise ArgumentError(
                f"block_mask was made for a {name} of {size}, but it is {wanted} in this call; pass the mask function itself instead"
            )


def tables_of(mask: Any) -> list[torch.Tensor]:
    """The tables of the blocks that FlexAttention's block mask keeps: counts and indices of partial ones, then of full ones."""
    names = ("kv_num_blocks", "kv_indices", "full_kv_num_blocks", "full_kv_indices")
    return [table for name in names if (table := getattr(mask, name)) is not None]


@_disable_current_modes()  # the blocks are real also where a graph is made of tensors without data
def compare_with_function(mask: Any, function: Callable[..., Any]) -> None:
    """Compares the tables of FlexAttention's block mask with a mask function: nothing is kept of blocks left out, all of full ones.

    Corners and middles of blocks tell most that differ; the analysis of blocks, which evaluates what it leaves open, tells the others.
    Raises ArgumentError where they differ.
    """
    tables = tables_of(mask)
    if tuple(mask.BLOCK_SIZE) == (_WHOLE, _WHOLE):
        return
    some, full = _blocks(*tables[:2]), _blocks(*tables[2:]) if len(tables) == 4 else torch.zeros_like(tables[1], dtype=torch.bool)
    some, full = (blocks.reshape((1,) * (4 - blocks.dim()) + tuple(blocks.shape)) for blocks in (some | full, full))
    where = torch.nonzero(~some | full)
    where = where[(where[:, 2:] * where.new_tensor(mask.BLOCK_SIZE) < where.new_tensor(mask.seq_lengths)).all(-1)]
    if where.shape[0] > _SAMPLES // 5:
        where = where[:: -(-where.shape[0] * 5 // _SAMPLES)]
    b, h, q_block, k_block = where.unsqueeze(1).expand(-1, 5, -1).unbind(-1)
    parts = torch.tensor([[0.0, 0.0], [0.0, 1.0], [1.0, 0.0], [1.0, 1.0], [0.5, 0.5]], device=where.device)
    places = []
    for blocks, size, length, part in zip((q_block, k_block), mask.BLOCK_SIZE, mask.seq_lengths, parts.unbind(-1), strict=True):
        places.append((blocks * size + (part * (size - 1)).long()).clamp(max=length - 1))
    kept = _evaluate(function, [x.flatten() for x in (b, h, *places)])
    wanted = full[tuple(where.unbind(-1))].unsqueeze(1).expand(-1, 5).flatten()
    if not (torch.equal(kept, wanted) and _every_position_fits(mask, function, some, full)):
        raise ArgumentError(
            "the blocks of this BlockMask are not those that its mask_mod keeps, as of one that from_kv_blocks made, or a slice: "
            "pass a mask function, which may read a tensor, as in lambda b, h, q_idx, kv_idx: pattern[q_idx // 128, kv_idx // 128]"
        )


def _every_position_fits(mask: Any, function: Callable[..., Any], some: torch.Tensor, full: torch.Tensor) -> bool:
    blocks = importlib.import_module("attn_mlir.flex.blocks")
    rows, columns = (-(-length // size) for length, size in zip(mask.seq_lengths, mask.BLOCK_SIZE, strict=True))
    if full.shape[2] < rows or full.shape[3] < columns:
        return False
    some, full = (pattern[:, :, :rows, :columns] for pattern in (some, full))
    classes = blocks.block_classes(function, (*full.shape[:2], *mask.seq_lengths), tuple(mask.BLOCK_SIZE), full.device)
    return bool(((classes == blocks.EMPTY) | some).all() and ((classes == blocks.FULL) | ~full).all())


def _blocks(counts: torch.Tensor, indices: torch.Tensor) -> torch.Tensor:
    """Which blocks a table lists: the first ones of each row of `indices`."""
    listed = torch.arange(indices.shape[-1], device=indices.device) < counts.unsqueeze(-1)
    places = torch.where(listed, indices, 0).long()  # what a row lists beyond its count may be anything
    return torch.zeros(indices.shape, dtype=torch.int32, device=indices.device).scatter_add(-1, places, listed.int()) > 0


def _evaluate(function: Callable[..., Any], indices: list[torch.Tensor]) -> torch.Tensor:
    if not indices[0].numel():
        return indices[0].bool()
    try:
        return torch.vmap(function)(*indices).bool()
    except Exception as error:
        raise ArgumentError(f"the mask_mod of this BlockMask cannot be compared with its blocks: it raised {error!r}") from error
