"""Runs AttentionEngines on random inputs, and computes the same densely in float64."""

from collections.abc import Callable
from typing import Any

import torch

from attn_mlir import AttentionEngine, CustomIO, OnlineFunc, OnlineSoftmax, SymbolScalar, Var, meta_tensor

NONE = CustomIO()


def inputs(
    b: int = 2,
    h: int = 4,
    hkv: int | None = None,
    sq: int = 67,
    skv: int | None = None,
    d: int = 32,
    dv: int | None = None,
    dtype: Any = torch.float32,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """q, k, v as [B, S, H, D]."""
    generator = torch.Generator().manual_seed(0)
    hkv, skv, dv = hkv or h, skv or sq, dv or d
    shapes = ((b, sq, h, d), (b, skv, hkv, d), (b, skv, hkv, dv))
    q, k, v = (torch.randn(*shape, generator=generator).to(dtype) for shape in shapes)
    return q, k, v


def meta(*tensors: torch.Tensor) -> tuple[Any, ...]:
    """The qkv_meta of tensors [B, S, H, D]."""
    return tuple(meta_tensor(t.shape[0], t.shape[2], t.shape[1], t.shape[3], dtype=t.dtype) for t in tensors)


def engine(
    qkv: tuple[torch.Tensor, ...], custom: CustomIO = NONE, online_func: OnlineFunc | None = None, **options: Any
) -> AttentionEngine:
    """An AttentionEngine for these tensors, by default softmax."""
    return AttentionEngine(meta(*qkv), custom, online_func=OnlineSoftmax() if online_func is None else online_func, **options)


def grid(qkv: tuple[torch.Tensor, ...]) -> tuple[torch.Tensor, ...]:
    """b, h, q_idx and kv_idx as tensors that broadcast to [B, H, Sq, Skv]."""
    sizes = (qkv[0].shape[0], qkv[0].shape[2], qkv[0].shape[1], qkv[1].shape[1])
    return tuple(torch.arange(size).view(*(size if i == j else 1 for j in range(4))) for i, size in enumerate(sizes))


def scores(qkv: tuple[torch.Tensor, ...]) -> torch.Tensor:
    """q . k in float64, [B, H, Sq, Skv]."""
    q, k = (x.double().transpose(1, 2) for x in qkv[:2])
    return q @ k.repeat_interleave(q.shape[1] // k.shape[1], dim=1).mT


def present(qkv: tuple[torch.Tensor, ...], mask: Callable[..., Any] | None) -> torch.Tensor:
    """The mask, [B, H, Sq, Skv]."""
    full = scores(qkv).shape
    return torch.ones(full, dtype=torch.bool) if mask is None else torch.as_tensor(mask(*grid(qkv))).broadcast_to(full)


def weighted(qkv: tuple[torch.Tensor, ...], p: torch.Tensor) -> torch.Tensor:
    """p @ v as [B, Sq, H, Dv]."""
    v = qkv[2].double().transpose(1, 2)
    return (p @ v.repeat_interleave(p.shape[1] // v.shape[1], dim=1)).transpose(1, 2)


def softmax(qkv: tuple[torch.Tensor, ...], s: torch.Tensor, mask: Callable[..., Any] | None = None) -> torch.Tensor:
    """Softmax attention of changed scores; 0 for fully masked rows."""
    p = s.masked_fill(~present(qkv, mask), -torch.inf).softmax(-1).nan_to_num(0.0)
    return weighted(qkv, p)


def check(result: torch.Tensor, expected: torch.Tensor, tolerance: float = 2e-5) -> None:
    """Relative to the largest expected element."""
    assert result.shape == expected.shape and torch.isfinite(result).all()
    error = (result.double() - expected).abs().max().item()
    assert error <= tolerance * max(expected.abs().max().item(), 1.0), error


class RescaledRetention(OnlineFunc):
    """Retention with a running quotient: the output is rescaled in every step. Its backward is derived."""

    def __init__(self) -> None:
        states = {"abssum": SymbolScalar("abssum", Var("0.0")), "r": SymbolScalar("r", Var("0.0"))}
        super().__init__(states, {"r": SymbolScalar("r", Var("0.0"))})

    @staticmethod
    def online_fwd(scores: Any, online_rowscales: Any, b: Any, h: Any, q_idx: Any) -> Any:
        abssum = online_rowscales["abssum"] + scores.get_reduce("abssum")
        r = abssum.max(1)
        return scores / r, {"abssum": abssum, "r": r}, online_rowscales["r"] / r

    @staticmethod
    def online_fwd_epilogue(o: Any, online_rowscales: Any, b: Any, h: Any, q_idx: Any) -> Any:
        return o, {"r": online_rowscales["r"]}


class Sink(OnlineFunc):
    """Softmax with one more term in the sum, read from a custom input by head."""

    custom = CustomIO({"sink": ("heads",)})

    def __init__(self) -> None:
        states = {"m": SymbolScalar("m", Var("-inf")), "l": SymbolScalar("l", Var("0"))}
        super().__init__(states, {"lse": SymbolScalar("lse", Var("0"))}, self.custom)

    @staticmethod
    def online_fwd(scores: Any, online_rowscales: Any, b: Any, h: Any, q_idx: Any) -> Any:
        m = online_rowscales["m"].max(scores.get_reduce("max"))
        scale, weights = (online_rowscales["m"] - m).exp(), (scores - m).exp()
        return weights, {"m": m, "l": online_rowscales["l"] * scale + weights.get_reduce("sum")}, scale

    @staticmethod
    def online_fwd_epilogue(o: Any, online_rowscales: Any, b: Any, h: Any, q_idx: Any) -> Any:
        sink = Sink.custom.input_tensors["sink"]
        total = online_rowscales["l"] + (sink - online_rowscales["m"]).exp()
        return o / total, {"lse": total.log() + online_rowscales["m"]}


class WrittenSink(Sink):
    forward = staticmethod(OnlineSoftmax.forward)
    backward = staticmethod(OnlineSoftmax.backward)
