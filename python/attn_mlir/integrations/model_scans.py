"""Mamba-2's scan and the delta rules of transformers' models, by `attn_mlir.mamba2` and `attn_mlir.fla`.

Functions are replaced where the models look them up.

Models bind these functions when their module is imported, with a decorator of transformers' `hub_kernels`: to the package `mamba_ssm`
or `fla` where it is installed, else to PyTorch code of their own. So modules that are loaded already get other functions for those that the
decorator made, and another decorator makes them in modules that are loaded later.
"""

import functools
import importlib
import math
import sys
from collections.abc import Callable, Iterator
from types import FunctionType, ModuleType
from typing import Any

import torch
from torch import Tensor

from attn_mlir.api.recurrence_inputs import first_positions
from attn_mlir.api.recurrences import mamba2
from attn_mlir.errors import ArgumentError, UnsupportedError
from attn_mlir.integrations import fla

_DECORATOR = "use_kernel_func_from_hub_with_fallback"
_WITHOUT = "models keep their own scans with register(linear=False)"
Function = Callable[..., Any]


def replace_scans() -> None:
    """Makes Mamba-2's layers of all models run on attn_mlir, those of modules that are imported later among them.

    Raises UnsupportedError where this transformers binds its functions in another way, before anything is replaced.
    """
    hub = _hub()
    if hasattr(getattr(hub, _DECORATOR), "__wrapped__"):
        return
    found = [(module, name, make(function)) for module, name, function, make in _bound(hub)]
    for module, name, function in found:
        setattr(module, name, function)
    _set_decorator(hub, _decorator(getattr(hub, _DECORATOR)))


def restore_scans() -> None:
    """Gives the models back the functions that `replace_scans` replaced."""
    hub = sys.modules.get("transformers.integrations.hub_kernels")
    own = getattr(getattr(hub, _DECORATOR, None), "__wrapped__", None)
    if hub is None or own is None:
        return
    _set_decorator(hub, own)
    for module in _users():
        for name, function in list(vars(module).items()):
            if isinstance(function, FunctionType) and hasattr(function, "attn_mlir_replaces"):
                setattr(module, name, vars(function)["attn_mlir_replaces"])


def _hub() -> ModuleType:
    import transformers

    try:
        hub = importlib.import_module("transformers.integrations.hub_kernels")
    except ImportError:
        hub = None
    if hub is None or not hasattr(hub, _DECORATOR):
        raise UnsupportedError(f"transformers {transformers.__version__} does not say where its linear layers find functions: {_WITHOUT}")
    if getattr(hub, "_kernels_enabled", False):
        raise UnsupportedError(
            "transformers takes functions of linear layers from the package kernels here: set USE_HUB_KERNELS=0 in the environment before "
            f"transformers is imported, or {_WITHOUT}"
        )
    return hub


def _set_decorator(hub: ModuleType, decorator: Function) -> None:
    setattr(hub, _DECORATOR, decorator)
    setattr(sys.modules["transformers.integrations"], _DECORATOR, decorator)  # where models import it from; keeps what it gave once


def _users() -> list[ModuleType]:
    """Modules that have imported the decorator, those of models."""
    modules = list(sys.modules.items())
    return [m for name, m in modules if _DECORATOR in getattr(m, "__dict__", ()) and not name.startswith("transformers.integrations")]


def _bound(hub: ModuleType) -> Iterator[tuple[ModuleType, str, Function, Function]]:
    """The functions of loaded modules that are to be replaced: module, name, function, and what makes the replacement of it."""
    for module in _users():
        known = 0
        for name, function in list(vars(module).items()):
            kernel = _kernel_of(function)
            known += kernel is not None
            if kernel in _REPLACEMENTS:
                yield module, name, function, _REPLACEMENTS[kernel]
        if not known:
            raise UnsupportedError(
                f"{module.__name__} was imported before, and what its linear layers call is not known: "
                f"call register(linear=True) before the model is imported, or {_WITHOUT}"
            )


def _kernel_of(function: Any) -> str | None:
    """The name of the kernel that a function stands for, if transformers' decorator made it."""
    if not isinstance(function, FunctionType) or _DECORATOR not in function.__code__.co_qualname:
        return None
    names = dict(zip(function.__code__.co_freevars, function.__closure__ or (), strict=True))
    return names["func_name"].cell_contents if "func_name" in names else None


def _decorator(own: Function) -> Function:
    """transformers' decorator, and after it the replacement."""

    @functools.wraps(own)
    def with_replacement(func_name: str, *package: Any, **options: Any) -> Function:
        bind = own(func_name, *package, **options)
        make = _REPLACEMENTS.get(func_name)
        return bind if make is None else lambda function: make(bind(function))

    return with_replacement


def _scan(own: Function) -> Function:
    """`mamba_chunk_scan_combined`."""

    @functools.wraps(own)
    def attn_mlir_scan(
        hidden_states: Tensor,
        dt: Tensor,
        A: Tensor,
        B: Tensor,
        C: Tensor,
        chunk_size: int | None = None,
        D: Tensor | None = None,
        z: Tensor | None = None,
        dt_bias: Tensor | None = None,
        initial_states: Tensor | None = None,
        seq_idx: Tensor | None = None,
        cu_seqlens: Tensor | None = None,
        dt_softplus: bool = False,
        dt_limit: tuple[float, float] = (0.0, math.inf),
        return_final_states: bool = False,
        **of_other_layers: Any,
    ) -> Any:
        """As `attn_mlir.mamba2`; options that models hand to all layers are none of its own."""
        return mamba2(
            hidden_states, dt, A, B, C, chunk_size, D, z, dt_bias, initial_states, _sequences(hidden_states, 1, seq_idx, cu_seqlens),
            dt_softplus=dt_softplus, dt_limit=(dt_limit[0], dt_limit[1]), return_final_states=return_final_states,
        )  # fmt: skip

    return _marked(attn_mlir_scan, own)


def _fused(own: Function) -> Function:
    """`mamba_split_conv1d_scan_combined`: with None the model computes its parts one after the other."""

    @functools.wraps(own)
    def in_parts(*arguments: Any, **options: Any) -> None:
        return None

    return _marked(in_parts, own)


def _convolution(own: Function) -> Function:
    """`causal_conv1d_fn`, which is the model's own but for packed sequences: transformers' PyTorch code refuses these."""
    installed = _is_installed(own)

    @functools.wraps(own)
    def convolution(hidden_states: Tensor, weight: Tensor, bias: Tensor | None = None, **options: Any) -> Tensor:
        sequences = _sequences(hidden_states, 2, options.get("seq_idx"), options.get("cu_seqlens"))
        if sequences is None or installed:
            return own(hidden_states, weight, bias, **options)
        return _packed_convolution(hidden_states, weight, bias, sequences, options.get("activation"))

    return _marked(convolution, own)


def _delta(name: str) -> Function:
    """What makes the replacement of one of fla's functions."""

    def make(own: Function) -> Function:
        function = getattr(fla, name)

        @functools.wraps(own)
        def attn_mlir_delta(query: Tensor, key: Tensor, value: Tensor, *arguments: Any, **options: Any) -> Any:
            """As `attn_mlir.integrations.fla`; on GPUs, where the delta rule is not there yet, the model's own."""
            return (function if query.device.type == "cpu" else own)(query, key, value, *arguments, **options)

        return _marked(attn_mlir_delta, own)

    return make


_DELTA_RULES = ("chunk_delta_rule", "chunk_gated_delta_rule", "fused_recurrent_gated_delta_rule", "chunk_kda", "fused_recurrent_kda")
_REPLACEMENTS: dict[str | None, Function] = {
    "mamba_chunk_scan_combined": _scan,
    "mamba_split_conv1d_scan_combined": _fused,
    "causal_conv1d_fn": _convolution,
    **{name: _delta(name) for name in _DELTA_RULES},
}


def _marked(function: Function, own: Function) -> Function:
    vars(function)["attn_mlir_replaces"] = own
    return function


def _is_installed(own: Function) -> bool:
    """Whether a function of transformers' decorator was bound to that of a package."""
    names = dict(zip(own.__code__.co_freevars, own.__closure__ or (), strict=True))
    return "is_new_implementation" in names and bool(names["is_new_implementation"].cell_contents)


def _sequences(x: Tensor, axis: int, seq_idx: Tensor | None, cu_seqlens: Tensor | None) -> Tensor | None:
    """The number of the sequence of each position, [B, T]; None: there is one. `axis`: that of x along which positions are."""
    length = x.shape[axis]
    if seq_idx is None and cu_seqlens is not None:
        positions = torch.arange(length, device=x.device)
        seq_idx = torch.bucketize(positions, cu_seqlens[1:].to(positions.dtype), right=True)[None]
    if seq_idx is None:
        return None
    if seq_idx.dim() != 2 or seq_idx.shape[1] != length:
        raise ArgumentError(
            f"seq_idx must be [batch, positions], with {length} positions, got shape {list(seq_idx.shape)}: "
            "packed sequences need use_cache=False, or all positions in one call"
        )
    return seq_idx.expand(x.shape[0], -1)


def _packed_convolution(x: Tensor, weight: Tensor, bias: Tensor | None, sequences: Tensor, activation: str | None) -> Tensor:
    """A causal convolution of each channel that reads no other sequence; x is [B, C, T], weight [C, W], sequences [B, T]."""
    from transformers.activations import ACT2FN

    length, width = x.shape[2], weight.shape[1]
    number = first_positions(sequences).long().cumsum(1)[:, None]
    before, numbers = (torch.nn.functional.pad(values, (width - 1, 0), value=-1) for values in (x.to(weight.dtype), number))
    taps = [
        weight[:, tap, None] * before[..., tap : tap + length].where(numbers[..., tap : tap + length] == number, 0.0)
        for tap in range(width)
    ]
    o = functools.reduce(torch.add, taps)
    if bias is not None:
        o = o + bias[:, None]
    return (ACT2FN[activation](o) if activation is not None else o).to(x.dtype)
