"""Engines of functions that have names, so that they can be pickled; processes that are spawned import this module."""

from typing import Any

import torch

from attn_mlir import AttentionEngine, CustomIO, LinearAttentionEngine, OnlineSoftmax, meta_tensor

BIASED = CustomIO({"bias": ("heads",)})


def scaled(score: Any, custom_fwd_inputs: Any, b: Any, h: Any, q_idx: Any, kv_idx: Any) -> Any:
    return score * 0.25


def biased(score: Any, custom_fwd_inputs: Any, b: Any, h: Any, q_idx: Any, kv_idx: Any) -> Any:
    return score * 0.25 + custom_fwd_inputs.input_tensors["bias"] * kv_idx


def causal(b: Any, h: Any, q_idx: Any, kv_idx: Any) -> Any:
    return q_idx >= kv_idx


def doubled(q: Any, custom_io: Any) -> Any:
    return q * 2


class Mine(OnlineSoftmax):
    """A row function of the user's own, with something it was made with."""

    def __init__(self, note: str) -> None:
        super().__init__()
        self.note = note


class Learned(torch.nn.Module):
    """A score function with a parameter."""

    def __init__(self) -> None:
        super().__init__()
        self.slope = torch.nn.Parameter(torch.tensor(0.1))

    def forward(self, score: Any, custom_fwd_inputs: Any, b: Any, h: Any, q_idx: Any, kv_idx: Any) -> Any:
        return score * 0.25 + self.slope * kv_idx


class Named(AttentionEngine):
    """An engine with an attribute of its own, made by fewer arguments."""

    def __init__(self, name: str) -> None:
        super().__init__(meta(), BIASED, biased, causal, online_func=Mine("named"))
        self.name = name


def meta(heads: int = 4, groups: int = 2) -> tuple[Any, ...]:
    return tuple(meta_tensor("B", h, s, 16, dtype=torch.float32) for h, s in ((heads, "S"), (groups, "K"), (groups, "K")))


def softmax_engine(**options: Any) -> AttentionEngine:
    """Biased causal softmax."""
    return AttentionEngine(meta(), BIASED, biased, causal, online_func=Mine("here"), **options)


def linear_engine() -> LinearAttentionEngine:
    return LinearAttentionEngine(meta(2, 2), q_mod=doubled)


def run(engine: Any, tensors: list[torch.Tensor]) -> torch.Tensor:
    """What another process computes."""
    return engine(*tensors)
