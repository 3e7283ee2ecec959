"""`create_block_mask` and `create_mask`, and FlexAttention's helpers that combine mask functions."""

import inspect
import warnings
from collections.abc import Callable
from typing import Any

import torch

from attn_mlir.api.graph_parts import constant_in_graphs
from attn_mlir.errors import ArgumentError
from attn_mlir.flex import blocks
from attn_mlir.flex.block_mask import BlockMask, SymbolicBlockMask, write_order

Mask = Callable[..., Any]
DEFAULT_BLOCK = 128


class ModError(ArgumentError, AssertionError):
    """A function has the wrong number of arguments; torch raises an AssertionError."""


class CombineError(ArgumentError, RuntimeError):
    """What is to be combined is no function; torch raises a RuntimeError."""


def noop_mask(batch: Any, head: Any, token_q: Any, token_kv: Any) -> Any:
    """The mask that keeps everything."""
    return batch.new_ones((), dtype=torch.bool)


def and_masks(*mask_mods: Mask) -> Mask:
    """The mask of what all of the mask functions keep."""
    _check_masks(mask_mods)

    def and_mask(b: Any, h: Any, q_idx: Any, kv_idx: Any) -> Any:
        kept = noop_mask(b, h, q_idx, kv_idx)
        for mask in mask_mods:
            kept = kept & mask(b, h, q_idx, kv_idx)
        return kept

    return and_mask


def or_masks(*mask_mods: Mask) -> Mask:
    """The mask of what any of the mask functions keeps."""
    _check_masks(mask_mods)

    def or_mask(b: Any, h: Any, q_idx: Any, kv_idx: Any) -> Any:
        kept = b.new_zeros((), dtype=torch.bool)
        for mask in mask_mods:
            kept = kept | mask(b, h, q_idx, kv_idx)
        return kept

    return or_mask


def _check_masks(mask_mods: tuple[Mask, ...]) -> None:
    if not all([callable(mask) for mask in mask_mods]):
        raise CombineError(f"All inputs should be callable mask_mods: {mask_mods}")


def create_block_mask(
    mask_mod: Mask,
    B: int | None,
    H: int | None,
    Q_LEN: int,
    KV_LEN: int,
    device: Any = None,
    BLOCK_SIZE: int | tuple[int, int] = DEFAULT_BLOCK,
    _compile: bool = False,
    separate_full_blocks: bool = True,
    compute_dq_write_order: bool = False,
    dq_kv_order: bool = True,
) -> BlockMask:
    """The BlockMask of mask_mod(b, h, q_idx, kv_idx) for B batches, H heads (None or 1: any number), Q_LEN queries and KV_LEN keys.

    Nothing is evaluated here: `flex_attention` compiles the function itself. Tables (`kv_num_blocks` and the others, as torch has them)
    are computed when they are first read, on `device`, which is torch's accelerator, or the CPU where there is none.
    separate_full_blocks: False lists full blocks among the partial ones. compute_dq_write_order, dq_kv_order: metadata for
    torch's FLASH backward, made of the tables; nothing here reads it. _compile: deprecated by torch, and the same here.
    Raises AssertionError where mask_mod does not take four indices.
    """
    if _positional(mask_mod) != 4:
        raise ModError(f"create-block_mask requires a mask_mod function! Got {mask_mod}")
    if _compile and not torch.compiler.is_compiling():
        warnings.warn("_compile=True has no effect: a block mask of attn_mlir is not evaluated", DeprecationWarning, stacklevel=2)
    if not isinstance(dq_kv_order, bool):
        raise ArgumentError("dq_kv_order must be a bool when using create_block_mask")
    block = (BLOCK_SIZE, BLOCK_SIZE) if isinstance(BLOCK_SIZE, int) else (BLOCK_SIZE[0], BLOCK_SIZE[1])
    sizes = (1 if B is None else B, 1 if H is None else H, Q_LEN, KV_LEN)
    if block[0] < 1 or block[1] < 1:
        raise ArgumentError(f"BLOCK_SIZE must be positive, got {BLOCK_SIZE}")
    if sizes[0] < 1 or sizes[1] < 1 or sizes[2] < 0 or sizes[3] < 0:
        raise ArgumentError(f"B and H must be positive, Q_LEN and KV_LEN not negative, got {sizes}")
    mask = SymbolicBlockMask(mask_mod, sizes, block, _device(device), separate_full_blocks)
    if compute_dq_write_order:
        _add_write_order(mask, dq_kv_order)
    return mask


def create_mask(mod_fn: Callable[..., Any], B: int | None, H: int | None, Q_LEN: int, KV_LEN: int, device: Any = None) -> torch.Tensor:
    """The mask itself, bool [B, H, Q_LEN, KV_LEN], of a mask function, or of a score_mod: false where that makes 0 to -inf.

    It takes as much memory as all scores: for looking at small masks.
    """
    sizes = (1 if B is None else B, 1 if H is None else H, Q_LEN, KV_LEN)
    mask_mod = mod_fn
    if _positional(mod_fn) == 5:

        def mask_mod(b: Any, h: Any, q_idx: Any, kv_idx: Any) -> Any:
            return ~torch.isneginf(mod_fn(torch.zeros((), device=q_idx.device), b, h, q_idx, kv_idx))

    where = _device(device)
    b, h = torch.meshgrid(torch.arange(sizes[0], device=where), torch.arange(sizes[1], device=where), indexing="ij")
    queries, keys = (torch.arange(size, device=where).expand(b.numel(), size) for size in sizes[2:])
    return blocks.positions(mask_mod, b.flatten(), h.flatten(), queries, keys, sizes).view(sizes)


def _positional(function: Callable[..., Any]) -> int:
    """How many arguments without a default a function takes. Raises AssertionError unless they are 4 or 5."""
    if hasattr(function, "__code__"):
        count = function.__code__.co_argcount - len(getattr(function, "__defaults__", None) or ())
        if hasattr(function, "__self__"):
            count -= 1
    else:
        parameters = inspect.signature(function).parameters.values()
        count = len([parameter for parameter in parameters if parameter.default is inspect.Parameter.empty])
    if count not in (4, 5):
        raise ModError(f"Expected 4 or 5 positional args, got {count}")
    return count


@constant_in_graphs
def _accelerator() -> torch.device:
    # A build for CUDA names its accelerator where there is none, too.
    found = torch.accelerator.current_accelerator() if torch.accelerator.is_available() else None
    return found or torch.device("cpu")


def _device(device: Any) -> torch.device:
    if device is None:
        return _accelerator()
    return device if isinstance(device, torch.device) else torch.device(device)


def _add_write_order(mask: SymbolicBlockMask, descending: bool) -> None:
    mask.dq_write_order, mask.dq_write_order_full = write_order(mask, descending)
    mask.dq_kv_order_spt = descending
