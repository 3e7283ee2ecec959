"""The check of what lists of keys hold: by waiting for the device that they are on, or by what its kernels told until now."""

import torch

from attn_mlir.backends.graph_capture import is_captured
from attn_mlir.backends.prepared import ListShapes, PreparedLists
from attn_mlir.errors import ArgumentError
from attn_mlir.runtime.checked import is_checked
from attn_mlir.runtime.key_lists import check_range, check_twice

_WAITED: set[ListShapes] = set()
"""Sizes whose first call waited, so that it tells of its own lists."""
_MOST = 4096


def check_numbers(index: torch.Tensor, blocks: int, keys: int) -> None:
    """Checks that a tensor lists blocks that there are, waiting for its device. Raises ArgumentError."""
    if not index.numel() or is_captured(index.device):
        return
    low, high = torch.stack(torch.aminmax(index)).tolist()  # which waits once
    check_range(low, high, blocks, keys)
    if is_checked():
        numbers = index.sort(-1).values
        twice = torch.zeros_like(numbers, dtype=torch.bool)
        twice[..., 1:] = (numbers[..., 1:] == numbers[..., :-1]) & (numbers[..., 1:] >= 0)
        check_twice(numbers.cpu().numpy(), twice.cpu().numpy())


def check_at_call(lists: PreparedLists, index: torch.Tensor, blocks: int, keys: int) -> None:
    """`check_numbers` where kernels tell nothing of lists, or `ATTN_MLIR_CHECK` asks for it. What they left is not told again later."""
    if lists.wrong is not None and not is_checked():
        return
    try:
        check_numbers(index, blocks, keys)
    except ArgumentError:
        if lists.wrong is not None:
            lists.wrong(True)
        raise


def check_prepared(lists: PreparedLists, index: torch.Tensor, shapes: ListShapes) -> None:
    """The same of lists that were made of a tensor, once all kernels of a call have been started, which read nothing outside.

    The first call of such sizes waits; others tell what is known by now, which may be of an earlier call, and leave theirs to later ones.
    """
    if lists.wrong is None:
        return  # `check_numbers` was asked before
    wait = shapes not in _WAITED and not is_captured(index.device)  # nobody looks while a graph is captured
    wrong = lists.wrong(wait)
    if wrong is None:
        if wait:
            if len(_WAITED) >= _MOST:
                _WAITED.clear()
            _WAITED.add(shapes)
        return
    if wait:
        check_numbers(index, shapes.blocks, shapes.keys)
    tell_wrong(wrong)


def tell_wrong(wrong: tuple[int, int, int] | None) -> None:
    """Raises ArgumentError for what `PreparedLists.wrong` told."""
    if wrong is None:
        return
    number, blocks, keys = wrong
    raise ArgumentError(
        f"key_index of this call or one before held {number}, but there were {blocks} blocks of {keys} keys: give 0 to {blocks - 1}, "
        "or -1 for no block. ATTN_MLIR_CHECK=1 in the environment tells at the call itself"
    )
