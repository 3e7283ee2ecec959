"""Ready-made linear attentions, under the argument names that their users know. Tensors are [B, T, H, D].

Each of them is a few lines on top of `linear_attention`, which says what `segment_size` and `device` are; a copy is the start of
another recurrence.
"""

import math
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from attn_mlir.api.autocast import cast
from attn_mlir.api.linear_inputs import check_flags
from attn_mlir.api.recurrence_inputs import check, check_limit, check_mamba2, described, first_positions, sizes_of, with_state
from attn_mlir.errors import ArgumentError
from attn_mlir.runtime.row_values import score_of

_COMMON = ("scale", "initial_state", "output_final_state", "cu_seqlens", "segment_size", "device")


def mamba2(
    x: Tensor,
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
    segment_size: int | None = None,
    device: str | torch.device | None = None,
) -> Any:
    """Mamba-2's SSD, as `mamba_chunk_scan_combined`: S_t = exp(dt_t A) S_(t-1) + dt_t x_t B_t^T, y_t = S_t C_t + D x_t, times silu(z_t).

    x is [B, T, H, P], dt [B, T, H], A [H] (negative), B and C [B, T, G, N] with G dividing H, D [H] or [H, P], z like x, dt_bias [H].
    dt becomes dt + dt_bias, then softplus of it with dt_softplus, then it is clamped to dt_limit (low, high). States are [B, H, P, N], with
    cu_seqlens [sequences, H, P, N]. Returns y, like x, or (y, final_states). `chunk_size` has no effect: the compiler chooses chunks.

    seq_idx, int32 or int64 [B, T], says which sequence a position belongs to: where it differs from that of the position before, a sequence
    begins, whose state is 0. initial_states are then those of the first sequence of each batch entry, final_states those of the last one.
    cu_seqlens, for B = 1, keeps the states of all sequences; one of the two can be given.
    """
    x, B, C, z = cast(x, B, C, z)
    check_mamba2(x, B, C, chunk_size, cu_seqlens, dt=dt, A=A, D=D, z=z, dt_bias=dt_bias, initial_states=initial_states, seq_idx=seq_idx)
    check_flags(dt_softplus=dt_softplus, return_final_states=return_final_states)
    low, high = check_limit(dt_limit)
    step = dt.to(score_of(x))
    if dt_bias is not None:
        step = step + dt_bias.to(step.dtype)
    if dt_softplus:
        step = functional.softplus(step)
    if (low, high) != (0.0, math.inf) or not dt_softplus:  # softplus is within the usual limits
        step = step.clamp(low, high)
    rate = A.to(step.dtype)

    def decay_mod(g: Any, b: Any, h: Any, t: Any) -> Any:
        return g * rate[h]

    if seq_idx is not None:
        decay_mod = _forgetting(decay_mod, first_positions(seq_idx))

    def v_mod(value: Any, b: Any, h: Any, t: Any) -> Any:
        return value * step[b, t, h]

    state = None if initial_states is None else initial_states.transpose(2, 3)
    y, final = with_state(
        C, B, x, step, decay_mod=decay_mod, v_mod=v_mod, initial_state=state, output_final_state=return_final_states,
        cu_seqlens=cu_seqlens, segment_size=segment_size, device=device, skip_mod=_skip_of(D, step.dtype),
    )  # fmt: skip
    if D is not None and D.dim() == 2:
        y = _Skip.apply(y, x, D)
    if z is not None:
        y = y * functional.silu(z.to(y.dtype))
    return (y, final.transpose(2, 3)) if final is not None else y


def simple_gla(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    g: Tensor | None = None,
    g_gamma: Tensor | None = None,
    scale: float | None = None,
    initial_state: Tensor | None = None,
    output_final_state: bool = False,
    cu_seqlens: Tensor | None = None,
    segment_size: int | None = None,
    device: str | torch.device | None = None,
) -> tuple[Tensor, Tensor | None]:
    """Gated retention, as `chunk_simple_gla`: one log decay for each head and step, g [B, T, H], or for each head, g_gamma [H], or both.

    q and k are [B, T, H, K], v is [B, T, H, V], states are [B, H, K, V], with cu_seqlens [sequences, H, K, V]. scale None is 1/sqrt(K).
    Returns (o, final_state); the final state is None without output_final_state.
    """
    sizes = sizes_of(v)
    if g is not None:
        check("g", g, v, sizes[:3])
    if g_gamma is not None:
        check("g_gamma", g_gamma, v, sizes[2:3])
    if g is not None and g_gamma is not None:
        rate = g_gamma.to(score_of(v))

        def add(x: Any, b: Any, h: Any, t: Any) -> Any:
            return x + rate[h]

        return _pair(q, k, v, g, scale, initial_state, output_final_state, cu_seqlens, segment_size, device, decay_mod=add)
    return _pair(q, k, v, g_gamma if g is None else g, scale, initial_state, output_final_state, cu_seqlens, segment_size, device)


def retention_linear(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    scale: float | None = None,
    initial_state: Tensor | None = None,
    output_final_state: bool = False,
    cu_seqlens: Tensor | None = None,
    segment_size: int | None = None,
    device: str | torch.device | None = None,
) -> tuple[Tensor, Tensor | None]:
    """RetNet's retention in recurrent form, as `chunk_retention`: head h decays by gamma = 1 - 2^(-5-h). See `simple_gla`."""
    gamma = 1.0 - torch.exp2(-5.0 - _numbers(v))
    return _pair(q, k, v, gamma.log(), scale, initial_state, output_final_state, cu_seqlens, segment_size, device)


def lightning(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    layer_idx: int = 0,
    num_layers: int = 1,
    scale: float | None = None,
    initial_state: Tensor | None = None,
    output_final_state: bool = False,
    cu_seqlens: Tensor | None = None,
    slopes: Tensor | None = None,
    segment_size: int | None = None,
    device: str | torch.device | None = None,
) -> tuple[Tensor, Tensor | None]:
    """Lightning attention, as `chunk_lightning_attn`: head h decays by exp(-slope), slope = 8 h / H (1 - layer_idx / num_layers).

    `slopes`, [H], gives others. See `simple_gla`.
    """
    heads = sizes_of(v)[2]
    whole = all(isinstance(number, int) and not isinstance(number, bool) for number in (layer_idx, num_layers))
    if not whole or not 0 <= layer_idx < num_layers:
        raise ArgumentError(f"layer_idx must be 0 to num_layers - 1, got {layer_idx!r} of {num_layers!r} layers")
    if slopes is None:
        slopes = 8.0 / max(heads, 1) * (1.0 - layer_idx / num_layers) * _numbers(v)
    check("slopes", slopes, v, (heads,))
    return _pair(q, k, v, -slopes, scale, initial_state, output_final_state, cu_seqlens, segment_size, device)


def gla(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    g: Tensor,
    scale: float | None = None,
    initial_state: Tensor | None = None,
    output_final_state: bool = False,
    cu_seqlens: Tensor | None = None,
    segment_size: int | None = None,
    device: str | torch.device | None = None,
) -> tuple[Tensor, Tensor | None]:
    """Gated linear attention, as `chunk_gla`: one log decay for each key channel, g [B, T, H, K]. See `simple_gla`."""
    if not isinstance(g, Tensor) or g.dim() != 4:
        raise ArgumentError(f"g must be a tensor of shape [B, T, H, K], got {described(g)}; simple_gla takes one for each head and step")
    check("g", g, v, (*sizes_of(v)[:3], sizes_of(k, "k")[3]))
    return _pair(q, k, v, g, scale, initial_state, output_final_state, cu_seqlens, segment_size, device)


def _forgetting(decay_mod: Any, first: Tensor) -> Any:
    """A decay_mod whose states are forgotten before the positions where `first`, bool [B, T], is true."""

    def of_sequences(g: Any, b: Any, h: Any, t: Any) -> Any:
        return torch.where(first[b, t], -math.inf, decay_mod(g, b, h, t))

    return of_sequences


def _skip_of(D: Tensor | None, dtype: torch.dtype) -> Any:
    """The skip_mod for D of shape [H]; None for others."""
    if D is None or D.dim() == 2:
        return None
    skip = D.to(dtype)

    def skip_mod(b: Any, h: Any, t: Any) -> Any:
        return skip[h]

    return skip_mod


class _Skip(torch.autograd.Function):
    """y + D x, in one pass over memory; D is [H, P]. Its gradient adds up products that are not rounded to 16 bits.

    Rounded ones would leave errors in a sum over all positions that are large where its terms cancel.
    """

    generate_vmap_rule = True

    @staticmethod
    def forward(y: Tensor, x: Tensor, D: Tensor) -> Tensor:
        return torch.addcmul(y, x, D.to(x.dtype))

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, Tensor, Tensor], output: Tensor) -> None:
        ctx.save_for_backward(*inputs[1:])

    @staticmethod
    def backward(ctx: Any, *grad_outputs: Tensor) -> tuple[Tensor | None, ...]:
        (dy,), (x, D) = grad_outputs, ctx.saved_tensors
        of_y, of_x, of_D = ctx.needs_input_grad
        dD = None
        if of_D:
            zero = torch.zeros(1, dtype=score_of(x), device=x.device)  # makes the products' type that of scores, without copies
            dD = torch.addcmul(zero, dy, x).sum_to_size(D.shape).to(D.dtype)
        return dy if of_y else None, dy * D.to(dy.dtype) if of_x else None, dD


def _pair(q: Tensor, k: Tensor, v: Tensor, decay: Tensor | None, *common: Any, decay_mod: Any = None) -> tuple[Tensor, Tensor | None]:
    """(o, final_state or None); `common` are the arguments that all of these functions have."""
    return with_state(q, k, v, decay, decay_mod=decay_mod, **dict(zip(_COMMON, common, strict=True)))


def _numbers(v: Tensor) -> Tensor:
    """0, 1, ... as floats, one for each head of v, [B, T, H, V]."""
    return torch.arange(sizes_of(v)[2], dtype=score_of(v), device=v.device)
