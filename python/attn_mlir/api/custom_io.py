"""`CustomIO`: the tensors besides q, k and v that an AttentionEngine gets with each call."""

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from attn_mlir.api.inputs import Problem
from attn_mlir.errors import ArgumentError
from attn_mlir.frontend.named_tensors import VOCABULARY, Dim, SymbolicTensor
from attn_mlir.frontend.tensors import ELEMENTS


class CustomIO:
    """Names further input tensors and their dimensions: CustomIO({"mask": (1, "heads", "seq_len", "seq_len_kv")}).

    A dimension is a number or one of "batch", "heads", "heads_kv", "seq_len", "seq_len_kv", "dimqk", "dimv". They are passed after q, k and
    v, in this order. In functions, `custom_fwd_inputs.input_tensors["mask"]` used as a number is the element at the
    current position; it can also be indexed, as in input_tensors["table"][h, kv_idx - q_idx].
    """

    def __init__(self, input_tensors: Mapping[str, Sequence[Dim]] | None = None) -> None:
        if not isinstance(input_tensors or {}, Mapping):
            raise ArgumentError(f"CustomIO takes a dictionary of names and dimensions, got {type(input_tensors).__name__}")
        self.input_tensors = {name: _declared(name, dims) for name, dims in (input_tensors or {}).items()}

    def scan_key(self) -> tuple[Any, ...]:
        return tuple(tensor.scan_key() for tensor in self.input_tensors.values())

    def __repr__(self) -> str:
        return f"CustomIO({ {name: tensor.dims for name, tensor in self.input_tensors.items()} })"


def _declared(name: Any, dims: Any) -> SymbolicTensor:
    if not isinstance(name, str):
        raise ArgumentError(f"CustomIO takes names of tensors as strings, got {name!r}")
    if isinstance(dims, str) or not isinstance(dims, Sequence):
        raise ArgumentError(f'CustomIO: the dimensions of `{name}` are a tuple such as (1, "heads", "seq_len", "seq_len_kv"), got {dims!r}')
    for dim in dims:
        known = dim in VOCABULARY or dim == "1" if isinstance(dim, str) else isinstance(dim, int) and not isinstance(dim, bool) and dim > 0
        if not known:
            words = ", ".join(f'"{word}"' for word in VOCABULARY)
            raise ArgumentError(f"CustomIO: `{name}` has the dimension {dim!r}; use {words} or a positive number")
    return SymbolicTensor(name, tuple(dims))


def check_custom(
    declared: Mapping[str, SymbolicTensor],
    given: Sequence[Any],
    problem: Problem,
    after: str = "q, k and v",
    where: str = "custom_fwd_inputs",
) -> dict[str, torch.Tensor]:
    """The custom inputs of a call by name. Raises ArgumentError for one that does not fit its declaration.

    `after` are the inputs before them, and `where` the argument that declares them.
    """
    if len(given) != len(declared):
        names = ", ".join(declared) or "none"
        raise ArgumentError(f"the call passes {len(given)} custom inputs after {after}, but {where} names {len(declared)}: {names}")
    for tensor, value in zip(declared.values(), given, strict=True):
        _check(tensor, value, problem, where)
    return dict(zip(declared, given, strict=True))


def _check(tensor: SymbolicTensor, value: Any, problem: Problem, where: str) -> None:
    what = f"the custom input `{tensor.name}`"
    if not isinstance(value, torch.Tensor):
        raise ArgumentError(f"{what} must be a torch.Tensor, got {type(value).__name__}")
    if value.layout != torch.strided or value.is_quantized:
        raise ArgumentError(f"{what} must be a plain strided tensor, got layout {value.layout}")
    if value.dim() != len(tensor.dims):
        raise ArgumentError(f"{what} has shape {list(value.shape)}, but {where} declares {tensor.dims}")
    if value.dtype not in ELEMENTS:
        raise ArgumentError(f"{what} has dtype {value.dtype}: use one of {', '.join(str(d).removeprefix('torch.') for d in ELEMENTS)}")
    if value.device != problem.device:
        raise ArgumentError(f"{what} is on {value.device} but q is on {problem.device}: move it there")
    for position, (dim, size) in enumerate(zip(tensor.dims, value.shape, strict=True)):
        wanted = problem.sizes[VOCABULARY[dim]] if isinstance(dim, str) else dim
        if size != wanted:
            meant = f'"{dim}" is {wanted} in this call' if isinstance(dim, str) else f"{where} declares {dim}"
            raise ArgumentError(f"{what} has size {size} in dimension {position}, but {meant}")
