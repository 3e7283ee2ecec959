"""Linear attentions for `compile_ahead`: what a library of one is to hold."""

import dataclasses
from collections.abc import Sequence
from typing import Any

import torch

from attn_mlir.api.inputs import ELEMENTS, MAX_STATE_DIM, check_dims
from attn_mlir.api.linear import LinearAttention
from attn_mlir.api.linear_call import find
from attn_mlir.api.linear_engine import LinearAttentionEngine
from attn_mlir.api.linear_inputs import OFFSETS, STEPS, check_linear
from attn_mlir.api.scale import scale_form
from attn_mlir.backends.ahead.request import LinearRequest
from attn_mlir.errors import ArgumentError, UnsupportedError
from attn_mlir.frontend.emit import Inputs
from attn_mlir.runtime.programs import program_of

__all__ = ["LinearSpec", "linear_form", "traced"]

_DECAYS = ("none", *(form for form, _ in STEPS.values()))


@dataclasses.dataclass(frozen=True)
class LinearSpec:
    """What `compile_ahead` must know of the inputs of a linear attention.

    dtype: that of q, k and v. key_dim: columns of q and k; value_dim: those of v, None: the same. decay: "none", "head" [H], "head channel"
    [H, K], "step" [B, H, T] or "step channel" [B, H, T, K]. initial_state: whether there is one. cu_seqlens: the dtype of offsets of
    sequences, torch.int32 or torch.int64; None: there are none.
    """

    dtype: torch.dtype = torch.float32
    key_dim: int = 64
    value_dim: int | None = None
    decay: str = "step"
    initial_state: bool = False
    cu_seqlens: torch.dtype | None = None


@dataclasses.dataclass(frozen=True)
class _Form:
    """The inputs, and what a decay, states and offsets are like, as `frontend.linear.LinearDefinition` says it."""

    inputs: Inputs
    decay: str
    initial: bool
    offsets: str


def linear_form(attention: LinearAttention | LinearAttentionEngine, inputs: Any) -> _Form:
    """The form of the inputs that were given. Raises ArgumentError."""
    if isinstance(attention, LinearAttentionEngine):
        if inputs is not None:
            raise ArgumentError("a LinearAttentionEngine knows dtype and head dimensions: leave out inputs")
        return _Form(attention._shapes.inputs, attention._decay, False, "")
    if isinstance(inputs, LinearSpec):
        return _form_of(inputs)
    if not isinstance(inputs, (tuple, list)) or not 3 <= len(inputs) <= 6:
        raise ArgumentError(
            "inputs of a linear attention are tensors (q, k, v, decay, initial_state, cu_seqlens), the last of which may be missing, or "
            f"an attn_mlir.LinearSpec(dtype, key_dim); got {type(inputs).__name__}"
        )
    q, k, v, decay, state, offsets = (*inputs, None, None, None)[:6]
    call = check_linear(q, k, v, decay, state, offsets, attention._options.layout)
    return _Form(call.problem.inputs, call.decay_form, state is not None, call.offsets)


def _form_of(spec: LinearSpec) -> _Form:
    if not isinstance(spec.dtype, torch.dtype) or spec.dtype not in ELEMENTS:
        raise ArgumentError(f"dtype is {spec.dtype}: use float32, float16, bfloat16 or float64")
    value_dim = spec.key_dim if spec.value_dim is None else spec.value_dim
    check_dims(MAX_STATE_DIM, key_dim=spec.key_dim, value_dim=value_dim)
    if spec.decay not in _DECAYS:
        raise ArgumentError(f"decay is one of {', '.join(map(repr, _DECAYS))}, got {spec.decay!r}")
    if spec.cu_seqlens is not None and not (isinstance(spec.cu_seqlens, torch.dtype) and spec.cu_seqlens in OFFSETS):
        raise ArgumentError(f"cu_seqlens is torch.int32, torch.int64 or None, got {spec.cu_seqlens!r}")
    offsets = "" if spec.cu_seqlens is None else OFFSETS[spec.cu_seqlens]
    return _Form(Inputs(ELEMENTS[spec.dtype], spec.key_dim, value_dim), spec.decay, bool(spec.initial_state), offsets)


def traced(attention: LinearAttention | LinearAttentionEngine, form: _Form) -> tuple[Any, Any, Sequence[Any], LinearRequest, str]:
    """The trace, its program, the values of captures now, what the library must know besides, and the order of tensors."""
    factor = 0.0
    if isinstance(attention, LinearAttentionEngine):
        entry, scan = attention._find(attention._dtypes, None, form.decay)
        layout, segment = "bhsd", attention._segment
    else:
        scale, final, layout, _, segment, mods, read_before = attention._options
        if mods[5] is not None or read_before:
            raise UnsupportedError("libraries made ahead of time have no delta rule yet: leave erase_mod out, or compile in Python")
        kind, factor = scale_form(scale, form.inputs.head_dim)
        shape = (form.inputs.element, form.inputs.head_dim, form.inputs.value_dim)
        entry, scan = find(attention._mods, (*shape, kind, form.decay, form.initial, final, form.offsets, segment), None)
    found = entry.traced
    given = tuple(found.linear or ())
    linear = LinearRequest(given, 0 if "cu_seqlens" in given else segment or 0, tuple(found.by_head))
    return entry, program_of(entry), entry.captures(scan, factor), linear, layout
