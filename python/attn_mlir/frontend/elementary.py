"""The functions that the predefined rows, mods and masks use: on traced values, and on tensors."""

from typing import Any

import torch

from attn_mlir.frontend import scope, vocabulary

__all__ = ["approximate_tanh", "detach", "exp", "logical_not", "maximum", "relu", "sigmoid", "tanh"]


def approximate_tanh(x: Any) -> Any:
    """tanh(x) that a backend may approximate with an absolute error of 2^-11, as `tanh.approx` of NVIDIA GPUs does in one instruction.

    Its derivative, 1 - tanh^2, then has one of 2^-10. Backends without such an instruction compute tanh, and so does code inside
    torch.compile, which only sees torch.tanh.
    """
    return torch.tanh(x) if _is_tensor(x) else vocabulary.approximate_tanh(x)


def detach(x: Any) -> Any:
    """The same value without a gradient: what depends on it counts as constant in the backward pass."""
    return x.detach() if _is_tensor(x) else vocabulary.detach(x)


def exp(x: Any) -> Any:
    return torch.exp(x) if _is_tensor(x) else vocabulary.exp(x)


def logical_not(x: Any) -> Any:
    if isinstance(x, bool):
        return not x
    return torch.logical_not(x) if _is_tensor(x) else vocabulary.logical_not(x)


def maximum(a: Any, b: Any) -> Any:
    if not (_is_tensor(a) or _is_tensor(b)):
        return vocabulary.maximum(a, b)
    dtype = a.dtype if isinstance(a, torch.Tensor) else b.dtype
    return torch.maximum(*(x if isinstance(x, torch.Tensor) else torch.full((), x, dtype=dtype, device="cpu") for x in (a, b)))


def relu(x: Any) -> Any:
    return torch.relu(x) if _is_tensor(x) else vocabulary.relu(x)


def sigmoid(x: Any) -> Any:
    return torch.sigmoid(x) if _is_tensor(x) else vocabulary.sigmoid(x)


def tanh(x: Any) -> Any:
    return torch.tanh(x) if _is_tensor(x) else vocabulary.tanh(x)


def _is_tensor(x: Any) -> bool:
    """Inside torch.compile, and where a function is called with tensors. While one is traced, a tensor is captured."""
    return isinstance(x, torch.Tensor) and (torch.compiler.is_dynamo_compiling() or not scope.is_tracing())
