"""Rotary position embeddings as query_mod and key_mod."""

from collections.abc import Callable
from typing import Any

import torch

from attn_mlir.api.makers import maker
from attn_mlir.errors import ArgumentError
from attn_mlir.frontend.partners import covers, rotate_half

ElementMod = Callable[[Any, Any, Any, Any, Any], Any]


@maker
def rope(cos: torch.Tensor, sin: torch.Tensor, interleaved: bool = False, positions: Any = None) -> ElementMod:
    """Rotates the pair of channels number c of position p by the angle with these cosines and sines, `cos[p, c]` and `sin[p, c]`.

    cos and sin are [positions, R / 2] or [batch, positions, R / 2]: R channels are rotated, those after them stay. A pair is c and
    c + R / 2, as in GPT-NeoX and Llama, or with `interleaved` 2 c and 2 c + 1, as in RoFormer and GPT-J. Tables whose halves repeat,
    [positions, R], are given as `cos[:, : R // 2]`.

    positions: those of q or k, a tensor [length] or [batch, length]; or an integer that is added to the index; None: the index.
    """
    for name, table in (("cos", cos), ("sin", sin)):
        if not isinstance(table, torch.Tensor) or table.dim() not in (2, 3):
            raise ArgumentError(f"{name} must be a tensor, [positions, R / 2] or [batch, positions, R / 2]")
    if cos.shape != sin.shape:
        raise ArgumentError(f"cos and sin must have one shape, got {list(cos.shape)} and {list(sin.shape)}")
    if isinstance(positions, torch.Tensor) and positions.dim() not in (1, 2):
        raise ArgumentError("positions must be a tensor, [length] or [batch, length], or an integer that is added to the index")
    pairs, by_batch = int(cos.shape[-1]), cos.dim() == 3

    def rotate(x: Any, b: Any, h: Any, idx: Any, d: Any) -> Any:
        if isinstance(positions, torch.Tensor):
            place = positions[b, idx] if positions.dim() == 2 else positions[idx]
        else:
            place = idx if positions is None else idx + positions
        channel = (d // 2 if interleaved else d) % pairs
        at = (b, place, channel) if by_batch else (place, channel)
        turned = x * cos[at] + rotate_half(x, interleaved, 2 * pairs) * sin[at]
        return turned if covers(x, 2 * pairs) else torch.where(d < 2 * pairs, turned, x)

    return rotate
