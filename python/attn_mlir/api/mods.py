"""Score functions: `mod(score, b, h, q_idx, kv_idx)` gives the changed score."""

from collections.abc import Callable
from typing import Any

import torch

from attn_mlir.errors import ArgumentError
from attn_mlir.frontend.elementary import approximate_tanh, tanh

ScoreMod = Callable[[Any, Any, Any, Any, Any], Any]


def alibi_slopes(heads: int, device: Any = None) -> torch.Tensor:
    """The slopes of the ALiBi paper, 2 ** (-8 (h + 1) / heads)."""
    if heads < 1:
        raise ArgumentError(f"heads must be at least 1, got {heads}")
    return torch.exp2(-8.0 * torch.arange(1, heads + 1, dtype=torch.float32, device=device) / heads)


def alibi(slopes: torch.Tensor, absolute: bool = False) -> ScoreMod:
    """Adds slopes[h] * (kv_idx - q_idx); with absolute=True, subtracts slopes[h] * |kv_idx - q_idx|.

    Under a causal mask both are the same.
    """
    if not isinstance(slopes, torch.Tensor) or slopes.dim() != 1:
        raise ArgumentError("slopes must be a tensor of shape [heads]; alibi_slopes(heads) makes the usual ones")

    def signed(score: Any, b: Any, h: Any, q_idx: Any, kv_idx: Any) -> Any:
        return score + slopes[h] * (kv_idx - q_idx)

    def distance(score: Any, b: Any, h: Any, q_idx: Any, kv_idx: Any) -> Any:
        return score - slopes[h] * abs(kv_idx - q_idx)

    return distance if absolute else signed


def softcap(cap: float, approximate: bool = False) -> ScoreMod:
    """cap * tanh(score / cap): keeps scores within -cap and cap.

    With `approximate` by `attn_mlir.approximate_tanh`, whose error is at most cap * 2^-11: quicker on NVIDIA GPUs.
    """
    bounded = approximate_tanh if approximate else tanh
    return lambda score, b, h, q_idx, kv_idx: cap * bounded(score / cap)


def additive_bias(bias: torch.Tensor) -> ScoreMod:
    """Adds `bias`, of any shape that broadcasts to [B, H, Sq, Skv]: fewer dimensions are the last ones, 1 repeats."""
    if not isinstance(bias, torch.Tensor) or bias.dim() > 4:
        raise ArgumentError("bias must be a tensor of at most 4 dimensions, [batch, head, query, key]")
    repeats = tuple(size == 1 for size in bias.shape)

    def add_bias(score: Any, b: Any, h: Any, q_idx: Any, kv_idx: Any) -> Any:
        position = (b, h, q_idx, kv_idx)[4 - len(repeats) :]
        index = tuple(0 if repeated else i for repeated, i in zip(repeats, position, strict=True))
        return score + (bias[index] if index else bias)

    return add_bias
