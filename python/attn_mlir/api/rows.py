"""Row functions: from one row of scores to the weights of its keys.

They are written with what every user of attn_mlir has; nothing here is known to the compiler by name.
"""

from collections.abc import Callable
from typing import Any

import torch

from attn_mlir.api.makers import maker
from attn_mlir.errors import ArgumentError
from attn_mlir.frontend.elementary import approximate_tanh, detach, exp, maximum
from attn_mlir.frontend.elementary import relu as _relu
from attn_mlir.frontend.elementary import sigmoid as _sigmoid

__all__ = [
    "approximate_sigmoid",
    "biased_sigmoid",
    "detach",
    "identity",
    "relu",
    "relu_normalized",
    "relu_squared",
    "retention",
    "sigmoid",
    "softmax",
    "softmax1",
    "softmax_sink",
]


def softmax(s: Any) -> Any:
    """exp(s) / sum exp(s)."""
    e = exp(s - s.max())
    return e / e.sum()


def softmax1(s: Any) -> Any:
    """exp(s) / (1 + sum exp(s)): a row may attend to nothing."""
    m = maximum(s.max(), 0.0)
    e = exp(s - m)
    return e / (e.sum() + exp(-m))


@maker
def softmax_sink(sink: Any) -> Callable[..., Any]:
    """exp(s) / (exp(sink) + sum exp(s)); `sink` is a number, or a tensor with one logit for each head or one for all."""
    if isinstance(sink, torch.Tensor) and sink.dim() > 1:
        raise ArgumentError(f"sink must be a number or a tensor of shape [heads] or [], got shape {list(sink.shape)}")
    per_head = isinstance(sink, torch.Tensor) and sink.dim() == 1

    def softmax_with_sink(s: Any, b: Any, h: Any, q_idx: Any) -> Any:
        logit = sink[h] if per_head else sink
        m = maximum(s.max(), logit)
        e = exp(s - m)
        return e / (e.sum() + exp(logit - m))

    return softmax_with_sink


def sigmoid(s: Any) -> Any:
    """1 / (1 + exp(-s)); rows are not normalised."""
    return _sigmoid(s)


def approximate_sigmoid(s: Any) -> Any:
    """0.5 + 0.5 approximate_tanh(s / 2): `sigmoid` with an absolute error of 2^-12, which loses the digits of small weights.

    Quicker on NVIDIA GPUs; use it where weights that matter are not small, so not with a bias of -log(keys).
    """
    return 0.5 + 0.5 * approximate_tanh(0.5 * s)


@maker
def biased_sigmoid(bias: Any) -> Callable[..., Any]:
    """1 / (1 + exp(-(s + bias))); `bias` is a number, or a tensor with one number for each head or one for all."""
    if isinstance(bias, torch.Tensor) and bias.dim() > 1:
        raise ArgumentError(f"bias must be a number or a tensor of shape [heads] or [], got shape {list(bias.shape)}")
    per_head = isinstance(bias, torch.Tensor) and bias.dim() == 1

    def sigmoid_with_bias(s: Any, b: Any, h: Any, q_idx: Any) -> Any:
        return _sigmoid(s + (bias[h] if per_head else bias))

    return sigmoid_with_bias


def relu(s: Any) -> Any:
    """max(s, 0)."""
    return _relu(s)


def relu_squared(s: Any) -> Any:
    """max(s, 0) ** 2."""
    r = _relu(s)
    return r * r


def relu_normalized(s: Any) -> Any:
    """max(s, 0) / sum max(s, 0); a row without positive scores gives 0."""
    r = _relu(s)
    return r / maximum(r.sum(), 1e-30)


def identity(s: Any) -> Any:
    """The scores themselves: attention without a row function."""
    return s


def retention(s: Any) -> Any:
    """s / max(sum |s|, 1), as parallel retention has it; the normaliser gets no gradient."""
    return s / maximum(detach(abs(s).sum()), 1.0)
