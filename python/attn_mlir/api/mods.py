"""Score functions: `mod(score, b, h, q_idx, kv_idx)` gives the changed score; and `rope`, for query_mod and key_mod."""

from collections.abc import Callable
from typing import Any

import torch

from attn_mlir.api.makers import maker
from attn_mlir.api.mask_strings import window_of
from attn_mlir.api.masks import Align, check_align
from attn_mlir.errors import ArgumentError
from attn_mlir.frontend.elementary import approximate_tanh, tanh
from attn_mlir.frontend.partners import covers, rotate_half
from attn_mlir.frontend.sizes import kv_len, q_len

ScoreMod = Callable[[Any, Any, Any, Any, Any], Any]
ElementMod = Callable[[Any, Any, Any, Any, Any], Any]


def alibi_slopes(heads: int, device: Any = None) -> torch.Tensor:
    """The slopes of the ALiBi paper, [heads]: 2 ** (-8 (h + 1) / heads) where heads is a power of two.

    Otherwise those of the next smaller power of two, followed by every second one of the next larger.
    """
    if heads < 1:
        raise ArgumentError(f"heads must be at least 1, got {heads}")
    whole = 1 << (heads.bit_length() - 1)
    first = torch.arange(1, whole + 1, dtype=torch.float32, device=device) / whole
    more = (2 * torch.arange(heads - whole, dtype=torch.float32, device=device) + 1) / (2 * whole)
    return torch.exp2(-8.0 * torch.cat([first, more]))


@maker
def alibi(slopes: torch.Tensor, absolute: bool = False, align: Align = "top_left") -> ScoreMod:
    """Adds slope * (kv_idx - position); with absolute=True, subtracts slope * |kv_idx - position|, which under a causal mask is the same.

    `slopes` is [heads] or [batch, heads], 1 repeats. The position of a query is q_idx, or with align="bottom_right" q_idx + Skv - Sq,
    so that the last query meets the last key.
    """
    check_align(align)
    slope, shift = _slope(slopes), align == "bottom_right"

    def signed(score: Any, b: Any, h: Any, q_idx: Any, kv_idx: Any) -> Any:
        return score + slope(b, h) * (kv_idx - (q_idx + (kv_len() - q_len()) if shift else q_idx))

    def distance(score: Any, b: Any, h: Any, q_idx: Any, kv_idx: Any) -> Any:
        return score - slope(b, h) * abs(kv_idx - (q_idx + (kv_len() - q_len()) if shift else q_idx))

    return distance if absolute else signed


@maker
def alibi_with_mask(slopes: torch.Tensor, mask: str = "0") -> ScoreMod:
    """ALiBi as CK's kernels add it beside a mask, a string as `masks.parse` takes it; `slopes` as in `alibi`.

    With a causal mask slope * kv_idx is added, which gives the o, but not the lse, of slope * (kv_idx - position). With other masks slope
    times the distance is subtracted: from the top left for "t:", "xt:" and "g:", from the bottom right for "b:", "xb:" and without a mask.
    """
    left, right, shift, _ = window_of(mask)
    if left is not None or right != 0:
        return alibi(slopes, absolute=True, align="bottom_right" if shift or mask == "0" else "top_left")
    slope = _slope(slopes)
    return lambda score, b, h, q_idx, kv_idx: score + slope(b, h) * kv_idx


def _slope(slopes: Any) -> Callable[[Any, Any], Any]:
    """The slope of a batch and head."""
    if not isinstance(slopes, torch.Tensor) or slopes.dim() not in (1, 2):
        raise ArgumentError("slopes must be a tensor, [heads] or [batch, heads]; alibi_slopes(heads) makes the usual ones")
    if slopes.dim() == 1 and slopes.shape[0] != 1:
        return lambda b, h: slopes[h]
    repeats = tuple(size == 1 for size in slopes.shape)
    return lambda b, h: slopes[tuple([0 if one else i for one, i in zip(repeats, (b, h)[2 - len(repeats) :], strict=True)])]


@maker
def softcap(cap: float, approximate: bool = False) -> ScoreMod:
    """cap * tanh(score / cap): keeps scores within -cap and cap.

    With `approximate` by `attn_mlir.approximate_tanh`, whose error is at most cap * 2^-11: quicker on NVIDIA GPUs.
    """
    bounded = approximate_tanh if approximate else tanh
    return lambda score, b, h, q_idx, kv_idx: cap * bounded(score / cap)


@maker
def bias(bias: torch.Tensor) -> ScoreMod:
    """Adds `bias`, of any shape that broadcasts to [B, H, Sq, Skv]: fewer dimensions are the last ones, 1 repeats.

    Any float dtype and strides will do. Its gradient is summed over what it repeats for.
    """
    if not isinstance(bias, torch.Tensor) or bias.dim() > 4:
        raise ArgumentError("bias must be a tensor of at most 4 dimensions, [batch, head, query, key]")
    repeats = tuple(size == 1 for size in bias.shape)

    def add_bias(score: Any, b: Any, h: Any, q_idx: Any, kv_idx: Any) -> Any:
        position = (b, h, q_idx, kv_idx)[4 - len(repeats) :]
        index = tuple(0 if repeated else i for repeated, i in zip(repeats, position, strict=True))
        return score + (bias[index] if index else bias)

    return add_bias


additive_bias = bias
"""`bias` by its longer name."""


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
