"""8-bit inputs and outputs as callers ask for them: scales of q, k, v and o, the output's dtype, and checks of these."""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import torch

from attn_mlir.api.inputs import ALL_ELEMENTS, EIGHT_BIT_ELEMENTS, check_device
from attn_mlir.errors import ArgumentError, UnsupportedError
from attn_mlir.runtime.call import Call, Problem
from attn_mlir.runtime.dispatch import may_carry_tangents, needing_gradient

_CAST = "multiply by the scale and cast, for example k = (k.float() * k_descale).to(torch.bfloat16)"


class Scales(NamedTuple):
    """The arguments of a call about 8-bit numbers."""

    q_descale: Any = None
    k_descale: Any = None
    v_descale: Any = None
    o_scale: Any = None
    out_dtype: torch.dtype | None = None


NONE = Scales()


def scales_of(q_descale: Any, k_descale: Any, v_descale: Any, o_scale: Any, out_dtype: Any) -> Scales:
    """The arguments of a call; NONE itself where there are none, as in nearly all calls."""
    if q_descale is None and k_descale is None and v_descale is None and o_scale is None and out_dtype is None:
        return NONE
    return Scales(q_descale, k_descale, v_descale, o_scale, out_dtype)


_KNOWN: dict[tuple[Any, ...], tuple[Problem, Problem, tuple[tuple[str, bool], ...]]] = {}
"""What `with_scales` found of a problem, by its identity and the forms of the scales: the problem itself, that with scales, and of each
scale its name and whether its first row alone is taken."""
_KNOWN_LIMIT = 512
_PLAIN, _OTHER = (torch.Tensor, torch.nn.Parameter), "other"


def with_scales(problem: Problem, scales: Scales, entries: int | None = None) -> tuple[Problem, Mapping[str, Any]]:
    """The problem with the forms of the scales and the dtype of o, and the values that its program takes of them.

    `entries`: how many sequences there are, where tensors are packed. Raises ArgumentError naming the argument that is wrong.
    """
    if entries is not None:  # problems of packed tensors are made for each call
        return _with_scales(problem, scales, entries)
    q, k, v, o, dtype = scales
    key = (id(problem), _form(q), _form(k), _form(v), _form(o), dtype)
    known = _KNOWN.get(key)
    if known is None or known[0] is not problem:
        found, values = _with_scales(problem, scales, None)
        if _OTHER not in key:
            if len(_KNOWN) >= _KNOWN_LIMIT:
                _KNOWN.clear()
            given = [(name, getattr(scales, name)) for name in values]
            _KNOWN[key] = problem, found, tuple((name, values[name] is not x and isinstance(x, torch.Tensor)) for name, x in given)
        return found, values
    values = {}
    for name, first in known[2]:
        x = getattr(scales, name)
        values[name] = x[0] if first else x if isinstance(x, torch.Tensor) else float(x)
    return known[1], values


def _form(scale: Any) -> Any:
    """What is checked of a scale; `_OTHER` where that is not known."""
    if scale is None:
        return None
    if type(scale) in _PLAIN:
        return scale.shape, scale.dtype, scale.device
    return float if type(scale) in (int, float) else _OTHER


def _with_scales(problem: Problem, scales: Scales, entries: int | None) -> tuple[Problem, Mapping[str, Any]]:
    """`with_scales`, from the beginning."""
    inputs = problem.inputs
    if not inputs.narrow:
        return problem, _refused(problem, scales)
    queries = inputs.element == inputs.kv_element
    if scales.q_descale is not None and not queries:
        raise ArgumentError(f"q_descale is for q of 8 bits, but q is {inputs.element}: multiply q by it, or leave it out")
    output = _output(scales.out_dtype, inputs.output)
    sizes = problem.sizes if entries is None else {**problem.sizes, "B": entries}
    values, forms = {}, []
    for name in Scales._fields[:4]:
        given = getattr(scales, name)
        if given is not None:
            values[name], form = _one(name, given, sizes, problem.device)
            forms.append((name, form))
    found = dataclasses.replace(inputs, output=output, descales=tuple(forms))
    return dataclasses.replace(problem, inputs=found), values


def _refused(problem: Problem, scales: Scales) -> Mapping[str, Any]:
    named = next((name for name in Scales._fields[:4] if getattr(scales, name) is not None), None)
    if named is not None:
        raise ArgumentError(
            f"{named} is for k and v of 8 bits (torch.float8_e4m3fn and others), but they are {problem.inputs.element}: leave it out"
        )
    if scales.out_dtype is not None and ALL_ELEMENTS.get(scales.out_dtype) != problem.inputs.element:
        raise ArgumentError(f"out_dtype={scales.out_dtype} is for k and v of 8 bits; here o has q's dtype: leave it out, and cast o")
    return {}


def _output(dtype: Any, usual: str) -> str:
    if dtype is None:
        return usual
    if not isinstance(dtype, torch.dtype) or dtype not in ALL_ELEMENTS:
        raise ArgumentError(f"out_dtype is a torch.dtype of floating-point numbers such as torch.bfloat16, got {dtype!r}")
    return ALL_ELEMENTS[dtype]


def _one(name: str, given: Any, sizes: Mapping[str, int], device: torch.device) -> tuple[Any, str]:
    """A scale as a program takes it, and the indices of its dimensions."""
    if isinstance(given, (int, float)) and not isinstance(given, bool):
        return float(given), "number"
    if not isinstance(given, torch.Tensor) or given.dtype != torch.float32:
        what = f"a tensor of {given.dtype}: use {name}.float()" if isinstance(given, torch.Tensor) else type(given).__name__
        raise ArgumentError(f"{name} must be a number or a float32 tensor, got {what}")
    check_device(name, given, device)
    heads = {"k": sizes["Hkv"]}
    if name in ("q_descale", "o_scale"):
        heads = {"h": sizes["Hq"], **heads}
    if given.dim() == 0:
        return given, ""
    found = next((index for index, size in heads.items() if given.shape[-1] == size), None)
    if found is not None and given.dim() == 1:
        return given, found
    if found is not None and given.dim() == 2 and given.shape[0] == sizes["B"]:
        return given, f"b{found}"
    if found is not None and given.dim() == 2 and given.shape[0] == 1:
        return given[0], found
    wanted = " or ".join(f"[{size}] or [{sizes['B']}, {size}]" for size in dict.fromkeys(heads.values()))
    raise ArgumentError(
        f"{name} must have shape [] or {wanted}, one number for each head or for each sequence and head, got {list(given.shape)}"
    )


def refuse_derivatives(call: Call) -> None:
    """Refuses calls with 8-bit inputs that need a gradient, or carry a tangent. Raises UnsupportedError."""
    if call.problem.inputs.narrow and (needing_gradient(call.values) or may_carry_tangents()):
        raise UnsupportedError(f"attention with 8-bit k and v has no derivatives: call it under torch.no_grad(), or dequantise: {_CAST}")


def refuse_scales(scales: Scales, what: str) -> None:
    """Refuses scales where `what` takes none. Raises UnsupportedError."""
    if scales is not NONE:
        raise UnsupportedError(f"{what} takes no q_descale, k_descale, v_descale, o_scale and out_dtype yet: {_CAST}")


def refuse_eight_bit(tensors: Sequence[Any], what: str) -> None:
    """Refuses tensors of 8 bits where `what` takes none. Raises UnsupportedError."""
    if any(getattr(tensor, "dtype", None) in EIGHT_BIT_ELEMENTS for tensor in tensors):
        raise UnsupportedError(f"{what} takes no 8-bit q, k and v yet: {_CAST}")
