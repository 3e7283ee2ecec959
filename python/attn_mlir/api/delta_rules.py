"""Ready-made delta rules, under the argument names that their users know. Tensors are [B, T, H, D].

Each of them is a few lines on top of `linear_attention`, which says what `segment_size` and `device` are; a copy is the start of another
recurrence.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from attn_mlir.api.autocast import cast
from attn_mlir.api.linear_inputs import check_flags
from attn_mlir.api.recurrence_inputs import check, described, sizes_of, with_state
from attn_mlir.api.unit_rows import row_squares, unit_rows
from attn_mlir.errors import ArgumentError
from attn_mlir.frontend.linear import of_own_heads
from attn_mlir.runtime.row_values import score_of

EPSILON = 1e-6
"""What is added to sums of squares."""


def delta_rule(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    beta: Tensor,
    scale: float | None = None,
    initial_state: Tensor | None = None,
    output_final_state: bool = False,
    use_qk_l2norm_in_kernel: bool = False,
    cu_seqlens: Tensor | None = None,
    device: str | torch.device | None = None,
    segment_size: int | None = None,
) -> tuple[Tensor, Tensor | None]:
    """DeltaNet, as `chunk_delta_rule`: `gated_delta_rule` without decays."""
    return gated_delta_rule(
        q, k, v, None, beta, scale, initial_state, output_final_state, use_qk_l2norm_in_kernel, cu_seqlens=cu_seqlens, device=device,
        segment_size=segment_size,
    )  # fmt: skip


def gated_delta_rule(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    g: Tensor | None = None,
    beta: Tensor | None = None,
    scale: float | None = None,
    initial_state: Tensor | None = None,
    output_final_state: bool = False,
    use_qk_l2norm_in_kernel: bool = False,
    use_beta_sigmoid_in_kernel: bool = False,
    allow_neg_eigval: bool = False,
    state_v_first: bool = False,
    cu_seqlens: Tensor | None = None,
    use_gate_in_kernel: bool = False,
    A_log: Tensor | None = None,
    dt_bias: Tensor | None = None,
    device: str | torch.device | None = None,
    segment_size: int | None = None,
) -> tuple[Tensor, Tensor | None]:
    """The gated delta rule, as `chunk_gated_delta_rule`: S_t = exp(g_t) S_(t-1) + beta_t k_t (v_t - k_t^T exp(g_t) S_(t-1))^T.

    q and k are [B, T, H, K], v is [B, T, HV, V] with H dividing HV: head h reads head h // (HV / H). g, the log decay, and beta are
    [B, T, HV]; None: 0, and 1. scale None is 1/sqrt(K). States are [B, HV, K, V] (with state_v_first [B, HV, V, K]), with cu_seqlens
    [sequences, HV, K, V]; the final one is float32. use_qk_l2norm_in_kernel: rows of q and k are divided by their length,
    sqrt(sum x^2 + 1e-6). use_beta_sigmoid_in_kernel: beta is its sigmoid, with allow_neg_eigval twice that. use_gate_in_kernel: g is
    -exp(A_log) softplus(g + dt_bias), A_log and dt_bias [HV]. Returns (o, final_state); None without output_final_state.
    """
    check_flags(use_gate_in_kernel=use_gate_in_kernel)
    if g is not None:
        check("g", g, v, sizes_of(v)[:3])
    if use_gate_in_kernel:
        g = _gate(g, A_log, dt_bias, v, sizes_of(v)[2:3])
    beta = _share(beta, v, use_beta_sigmoid_in_kernel, allow_neg_eigval)
    return _run(
        (q, k, v), g, beta, use_qk_l2norm_in_kernel, state_v_first, scale=scale, initial_state=initial_state, cu_seqlens=cu_seqlens,
        output_final_state=output_final_state, device=device, segment_size=segment_size,
    )  # fmt: skip


def kda(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    g: Tensor,
    beta: Tensor | None = None,
    scale: float | None = None,
    initial_state: Tensor | None = None,
    output_final_state: bool = False,
    use_qk_l2norm_in_kernel: bool = False,
    use_gate_in_kernel: bool = False,
    use_beta_sigmoid_in_kernel: bool = False,
    allow_neg_eigval: bool = False,
    lower_bound: float | None = None,
    state_v_first: bool = False,
    cu_seqlens: Tensor | None = None,
    A_log: Tensor | None = None,
    dt_bias: Tensor | None = None,
    device: str | torch.device | None = None,
    segment_size: int | None = None,
) -> tuple[Tensor, Tensor | None]:
    """Kimi delta attention, as `chunk_kda`: the gated delta rule with a log decay for every key channel, g [B, T, HV, K].

    use_gate_in_kernel: g is -exp(A_log) softplus(g + dt_bias), A_log [HV] and dt_bias [HV K], or with a lower_bound of -5 to 0 lower_bound
    sigmoid(exp(A_log) (g + dt_bias)). See `gated_delta_rule`.
    """
    check_flags(use_gate_in_kernel=use_gate_in_kernel)
    if not isinstance(g, Tensor) or g.dim() != 4:
        raise ArgumentError(
            f"g must be a tensor of shape [B, T, HV, K], got {described(g)}; gated_delta_rule takes one for each head and step"
        )
    sizes = (*sizes_of(v)[:3], sizes_of(k, "k")[3])
    check("g", g, v, sizes)
    if lower_bound is not None and (not use_gate_in_kernel or not -5.0 <= lower_bound < 0.0):
        raise ArgumentError(f"lower_bound is a number from -5 to below 0, with use_gate_in_kernel=True, got {lower_bound!r}")
    if use_gate_in_kernel:
        g = _gate(g, A_log, dt_bias, v, sizes[2:], lower_bound)
    beta = _share(beta, v, use_beta_sigmoid_in_kernel, allow_neg_eigval)
    return _run(
        (q, k, v), g, beta, use_qk_l2norm_in_kernel, state_v_first, scale=scale, initial_state=initial_state, cu_seqlens=cu_seqlens,
        output_final_state=output_final_state, device=device, segment_size=segment_size,
    )  # fmt: skip


def _gate(
    g: Tensor | None, A_log: Tensor | None, dt_bias: Tensor | None, v: Tensor, channels: tuple[int, ...], lower_bound: float | None = None
) -> Tensor:
    """The log decay of what a model's gate gives; `channels` are (HV,) or (HV, K)."""
    if g is None or A_log is None:
        raise ArgumentError("use_gate_in_kernel=True makes the decay of g and A_log: pass both")
    heads = channels[:1]
    check("A_log", A_log.flatten() if isinstance(A_log, Tensor) else A_log, v, heads)
    rate, x = A_log.flatten().to(score_of(v)).exp(), g.to(score_of(v))
    if dt_bias is not None:
        count = 1
        for size in channels:
            count *= size
        check("dt_bias", dt_bias.flatten() if isinstance(dt_bias, Tensor) else dt_bias, v, (count,))
        x = x + dt_bias.to(x.dtype).view(channels)
    rate = rate.view(*heads, *[1] * (len(channels) - 1))
    return -rate * functional.softplus(x) if lower_bound is None else lower_bound * torch.sigmoid(rate * x)


def _share(beta: Tensor | None, v: Tensor, sigmoid: bool, negative: bool) -> Tensor:
    """beta [B, T, HV] as it is used."""
    check_flags(use_beta_sigmoid_in_kernel=sigmoid, allow_neg_eigval=negative)
    if negative and not sigmoid:
        raise ArgumentError("allow_neg_eigval doubles the sigmoid of beta: pass use_beta_sigmoid_in_kernel=True, or 2 * beta")
    sizes = sizes_of(v)[:3]
    if beta is None:
        return torch.ones(sizes, dtype=score_of(v), device=v.device)
    check("beta", beta, v, sizes)
    beta = beta.to(score_of(v))
    return beta if not sigmoid else (2.0 if negative else 1.0) * beta.sigmoid()


def _unit(x: Tensor, device: str | torch.device | None) -> Tensor:
    """Rows divided by their length; computed in float32, and rounded once."""
    made = unit_rows(x, EPSILON, device)
    if made is not None:
        return made
    if x.is_cuda and x.element_size() == 2:  # the same, with fewer passes over memory
        square = torch.linalg.vector_norm(x, dim=-1, keepdim=True, dtype=torch.float32).square()
        return (x * (square + EPSILON).rsqrt()).to(x.dtype)
    whole = x.to(score_of(x))
    return (whole * (whole.square().sum(-1, keepdim=True) + EPSILON).rsqrt()).to(x.dtype)


def _unit_query(q: Tensor, scale: float | None, device: str | torch.device | None) -> tuple[Tensor, float | None]:
    """q with rows of unit length, and the scale that is left: where a program divides, it scales, too, and nothing is rounded twice."""
    factor = q.shape[3] ** -0.5 if scale is None and q.shape[3] else scale
    if isinstance(factor, float) and (made := unit_rows(q, EPSILON, device, factor)) is not None:
        return made, 1.0
    return _unit(q, device), scale


def _lengths(
    qkv: tuple[Tensor, Tensor, Tensor], g: Tensor | None, beta: Tensor, device: str | torch.device | None, packed: bool
) -> dict[str, Any] | None:
    """Options of `linear_attention` that divide rows of q and k by their length: numbers of rows, which cost no pass over memory.

    None where PyTorch divides; where channels have decays and heads share a q or k, which would be divided for each of them; and, where
    channels have none, of packed sequences and in float16, whose range the numbers that multiply v may leave.
    """
    q, k, v = qkv
    channels = g is not None and g.dim() == 4
    if not q.shape[2] == k.shape[2] == v.shape[2] if channels else packed or not q.dtype == k.dtype == v.dtype == torch.bfloat16:
        return None
    if 0 in (q.shape[2], k.shape[2], v.shape[2]) or v.shape[2] % k.shape[2]:
        return None
    squares = row_squares(q, k, device)
    if squares is None:
        return None
    of_q, of_k = squares

    def q_mod(x: Any, b: Any, h: Any, t: Any) -> Any:
        return x * (of_q[b, h, t] + 1e-6) ** -0.5

    def k_mod(x: Any, b: Any, h: Any, t: Any) -> Any:
        return x * (of_k[b, h, t] + 1e-6) ** -0.5

    of_own_heads(q_mod)
    if channels:
        return {"q_mod": q_mod, "k_mod": k_mod}
    members = range(v.shape[2] // k.shape[2])  # as a range, a part of the key of what is compiled: no number that each call looks up

    def v_mod(x: Any, b: Any, h: Any, t: Any) -> Any:
        return x * (beta[b, t, h] * (of_k[b, h // len(members), t] + 1e-6) ** -0.5)

    def erase_mod(share: Any, b: Any, h: Any, t: Any) -> Any:
        return share / (of_k[b, h // len(members), t] + 1e-6)

    # The state takes up k (v_t / |k| - beta / |k|^2 k . S), which is that of the unit key; no k is written again, or rounded twice.
    return {"q_mod": q_mod, "v_mod": v_mod, "erase_mod": erase_mod}


def _run(
    qkv: Sequence[Tensor],
    g: Tensor | None,
    beta: Tensor,
    normalise: bool,
    state_v_first: bool,
    *,
    scale: float | None,
    initial_state: Tensor | None,
    **options: Any,
) -> tuple[Tensor, Tensor | None]:
    """(o, final_state or None); `options` are further arguments of `linear_attention`."""
    check_flags(use_qk_l2norm_in_kernel=normalise, state_v_first=state_v_first)
    q, k, v = cast(*qkv)
    sizes_of(q, "q")
    sizes_of(k, "k")
    if normalise:
        tensors = [x for x in (q, k, v, g, beta, initial_state) if isinstance(x, Tensor)]
        needed = torch.is_grad_enabled() and any(x.requires_grad for x in tensors)
        packed = options.get("cu_seqlens") is not None
        lengths = None if needed else _lengths((q, k, v), g, beta, options.get("device"), packed)
        if lengths is None:
            q, scale = _unit_query(q, scale, options.get("device"))
            k = _unit(k, options.get("device"))
        else:
            options |= lengths

    def v_mod(x: Any, b: Any, h: Any, t: Any) -> Any:
        return x * beta[b, t, h]

    options.setdefault("v_mod", v_mod)
    state = initial_state.transpose(2, 3) if initial_state is not None and state_v_first else initial_state
    o, final = with_state(q, k, v, g, scale, erase=beta, initial_state=state, **options)
    return o, final.transpose(2, 3) if final is not None and state_v_first else final
