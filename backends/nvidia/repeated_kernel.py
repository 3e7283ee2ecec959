"""The short way through a program that is one kernel: what a run needs is found by the addresses of its inputs."""

import copy
from collections.abc import Sequence
from typing import Any

import torch

from attn_mlir.backends.nvidia import cuda
from attn_mlir.backends.nvidia.launch import LIMIT, CudaLauncher, PackedLaunch


class RepeatedLaunch:
    """A program of one kernel, on inputs of known addresses, shapes and strides that it reads where they are."""

    __slots__ = ("_forms", "_packed", "_transposed", "launcher")

    def __init__(self, launcher: CudaLauncher, results: Sequence[torch.Tensor], transposed: bool = False) -> None:
        """`results` are those of an earlier run; the kernel writes every element of them.

        `transposed`: the first three inputs and the first result are [B, S, H, D].
        """
        self.launcher, self._transposed = launcher, transposed
        self._forms = [(tuple(result.shape), tuple(result.stride()), result.dtype) for result in results]
        self._packed: dict[tuple[int, ...], PackedLaunch] = {}

    def __call__(self, inputs: Sequence[Any]) -> list[torch.Tensor]:
        """The results; the device of the launcher must be the current one."""
        results = [cuda.empty(size, strides, dtype) for size, strides, dtype in self._forms]
        launcher = self.launcher
        if launcher.counts and cuda.is_capturing(launcher.index):
            launcher(self._operands(inputs, results))
            return results
        stream = cuda.current_stream(launcher.index)
        key = (stream, *[result.data_ptr() for result in results])
        packed = self._packed.get(key)
        if packed is None:
            packed = launcher.pack(self._operands(inputs, results), stream)
            if len(self._packed) >= LIMIT:
                self._packed.clear()
            self._packed[key] = packed
        launcher.start(packed)
        return results

    def elsewhere(self) -> "RepeatedLaunch":
        """The same for inputs at other addresses."""
        made = copy.copy(self)
        made._packed = {}
        return made

    def _operands(self, inputs: Sequence[Any], results: Sequence[torch.Tensor]) -> list[Any]:
        """As the kernel takes them: [B, H, S, D]."""
        if not self._transposed:
            return [*inputs, *results]
        return [*transposed(inputs, 3), *transposed(results, 1)]


def key_of(inputs: Sequence[Any], layout: str) -> tuple[Any, ...]:
    """What decides how a program runs: addresses, shapes, strides and types of tensors, and numbers."""
    if len(inputs) == 3:
        q, k, v = inputs
        return (
            layout,
            q.data_ptr(), q.shape, q.stride(), q.dtype, q.is_neg(),
            k.data_ptr(), k.shape, k.stride(), k.dtype, k.is_neg(),
            v.data_ptr(), v.shape, v.stride(), v.dtype, v.is_neg(),
        )  # fmt: skip
    key: list[Any] = [layout]
    for value in inputs:
        if isinstance(value, torch.Tensor):
            key += (value.data_ptr(), value.shape, value.stride(), value.dtype, value.is_neg())
        else:
            key.append(value or repr(value))  # 0.0 == -0.0
    return tuple(key)


def form_of(inputs: Sequence[Any], layout: str) -> tuple[Any, ...] | None:
    """What decides about it but for addresses, of which kernels ask by what they are divisible; None where some tensor has no memory."""
    key: list[Any] = [layout, cuda.index_of(inputs[0])]  # all are on the device of the first
    for value in inputs:
        if isinstance(value, torch.Tensor):
            address = value.data_ptr()
            if not address:
                return None
            key += (address % 16, value.shape, value.stride(), value.dtype, value.is_neg())
        else:
            key.append(value or repr(value))  # 0.0 == -0.0
    return tuple(key)


def is_negated(value: Any) -> bool:
    """Whether a value is a tensor whose elements are the negatives of what its memory holds."""
    return isinstance(value, torch.Tensor) and value.is_neg()


def transposed(values: Sequence[Any], count: int) -> list[Any]:
    """The values, of which the first ones, tensors, have heads and positions exchanged."""
    return [value.transpose(1, 2) if i < count else value for i, value in enumerate(values)]
