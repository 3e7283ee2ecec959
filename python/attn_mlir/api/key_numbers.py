"""The check of what lists of keys hold, which waits for the device that they are on."""

import torch

from attn_mlir.backends.graph_capture import is_captured
from attn_mlir.runtime.checked import is_checked
from attn_mlir.runtime.key_lists import check_range, check_twice


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
