"""The delta rules under the names and with the arguments of flash-linear-attention's functions.

What concerns their kernels only (chunk_size, chunk_indices, cu_seqlens_cpu, ...) is taken and has no effect, as models pass it. Arguments
that another of them has, and names that are close to one of its own, are errors.
"""

import difflib
from typing import Any

from torch import Tensor

from attn_mlir.api.delta_rules import delta_rule, gated_delta_rule, kda
from attn_mlir.api.recurrence_inputs import check, sizes_of
from attn_mlir.errors import UnsupportedError

_NONE = ("cp_context", "head_first", "return_intermediate_states")
"""Arguments that would change what is computed, and are not there."""
_STATE = "transpose_state_layout"
_KERNELS = ("chunk_size", "chunk_indices", "cu_seqlens_cpu", "safe_gate", "disable_recompute")
"""Arguments of kernels that are spelled like others."""
_ALIKE = 0.7


def chunk_delta_rule(q: Tensor, k: Tensor, v: Tensor, beta: Tensor, *positional: Any, **options: Any) -> tuple[Tensor, Tensor | None]:
    """`delta_rule`, as fla.ops.delta_rule.chunk_delta_rule."""
    return delta_rule(q, k, v, beta, *positional, **_options(delta_rule, options))


def chunk_gated_delta_rule(
    q: Tensor, k: Tensor, v: Tensor, g: Tensor, beta: Tensor, *positional: Any, **options: Any
) -> tuple[Tensor, Tensor | None]:
    """`gated_delta_rule`, as fla.ops.gated_delta_rule.chunk_gated_delta_rule."""
    return gated_delta_rule(q, k, v, g, beta, *positional, **_options(gated_delta_rule, options))


def fused_recurrent_gated_delta_rule(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    g: Tensor | None = None,
    gk: Tensor | None = None,
    gv: Tensor | None = None,
    beta: Tensor | None = None,
    **options: Any,
) -> tuple[Tensor, Tensor | None]:
    """`gated_delta_rule`, or with a decay gk [B, T, HV, K] of channels `kda`, as fla.ops.gated_delta_rule.fused_recurrent_gated_delta_rule.

    One position is a step of decoding.
    """
    if gv is not None:
        raise UnsupportedError("decays of value channels (gv) are not there: leave gv out")
    if gk is None:
        return gated_delta_rule(q, k, v, g, beta, **_options(gated_delta_rule, options))
    check("gk", gk, v, (*sizes_of(v)[:3], sizes_of(k, "k")[3]))
    if g is not None:
        check("g", g, v, sizes_of(v)[:3])
        gk = gk + g.unsqueeze(3)
    return kda(q, k, v, gk, beta, **_options(kda, options))


def chunk_kda(q: Tensor, k: Tensor, v: Tensor, g: Tensor, beta: Tensor, *positional: Any, **options: Any) -> tuple[Tensor, Tensor | None]:
    """`kda`, as fla.ops.kda.chunk_kda."""
    return kda(q, k, v, g, beta, *positional, **_options(kda, options))


def fused_recurrent_kda(
    q: Tensor, k: Tensor, v: Tensor, g: Tensor, beta: Tensor | None = None, *positional: Any, **options: Any
) -> tuple[Tensor, Tensor | None]:
    """`kda`, as fla.ops.kda.fused_recurrent_kda. One position is a step of decoding."""
    return kda(q, k, v, g, beta, *positional, **_options(kda, options))


def _names(function: Any) -> set[str]:
    return set(function.__code__.co_varnames[: function.__code__.co_argcount])


def _options(function: Any, options: dict[str, Any]) -> dict[str, Any]:
    """The options that a function takes, of those that a model passes."""
    known = _names(function)
    for name in [*_NONE, *(_names(gated_delta_rule) | _names(kda)) - known]:
        if options.get(name) is not None and options[name] is not False:
            raise UnsupportedError(f"{name} is not there for {function.__name__}: leave it out")
    for name in set(options) - known - {_STATE, *_KERNELS, *_NONE}:
        if close := difflib.get_close_matches(name, known, 1, _ALIKE):
            raise TypeError(f"{function.__name__}() got an unexpected keyword argument '{name}'. Did you mean '{close[0]}'?")
    found = {name: value for name, value in options.items() if name in known}
    if _STATE in options and "state_v_first" in known:
        found.setdefault("state_v_first", options[_STATE])
    return found
