"""The formula that attn-fmha validates against, written out with all pairs of a few heads at a time."""

from typing import Any

import torch

import attn_mlir
from attn_mlir.runtime.orders import heads_first
from attn_mlir.tools.fmha.options import FmhaOptions
from attn_mlir.tools.fmha.problem import FmhaProblem


def results(problem: FmhaProblem, dtype: torch.dtype, device: str, rounded_to: torch.dtype | None = None) -> dict[str, torch.Tensor]:
    """o and lse, or the gradients, as `compared` names them; in `dtype`, [B, H, S, D].

    With `rounded_to` weights, o and gradients of scores are rounded as kernels for that precision round them.
    """
    o = problem.options
    group = o.heads // o.kv_heads
    q, k, v, grad = (heads_first(x, layout).detach().to(device, dtype) for x, layout in _laid_out(problem))
    keep = o.coordinates.keeps(o.q_len, o.kv_len).to(device)
    bias = _bias(problem, dtype, device)
    kept = _kept(problem, device)
    found: dict[str, list[torch.Tensor]] = {}
    bias_gradient = None if problem.bias is None else torch.zeros_like(problem.bias, dtype=dtype, device=device)
    for b in range(o.batch):
        for head in range(o.kv_heads):
            heads = slice(head * group, (head + 1) * group)
            added = None if bias is None else bias[b if bias.shape[0] > 1 else 0, heads if bias.shape[1] > 1 else slice(0, 1)]
            inputs = (q[b, heads], k[b, head], v[b, head], *([] if added is None else [added]))
            some = [x.clone().requires_grad_(o.backward) for x in inputs]
            out, lse = _attention(
                o,
                *some[:3],
                None if added is None else some[3],
                keep=keep,
                kept=None if kept is None else kept[b, heads],
                rounded_to=rounded_to,
            )
            made = {"lse": lse.detach()} if o.lse else {}
            if not o.backward:
                made["o"] = out
            else:
                gradients = torch.autograd.grad(out, some, grad[b, heads])
                made |= dict(zip(("dq", "dk", "dv"), gradients, strict=False))
                if o.bias_gradient and bias_gradient is not None:
                    _place(bias_gradient, b, heads).add_(gradients[3].sum(0, keepdim=True) if bias_gradient.shape[1] == 1 else gradients[3])
            for name, value in made.items():
                found.setdefault(name, []).append(value if name in ("o", "lse", "dq") else value[None])
    joined = {name: torch.cat(parts).unflatten(0, (o.batch, -1)) for name, parts in found.items()}
    return {**joined, **({"dbias": bias_gradient} if o.bias_gradient and bias_gradient is not None else {})}


def compared(problem: FmhaProblem, made: tuple[torch.Tensor, ...]) -> dict[str, torch.Tensor]:
    """What the kernels gave, o or the gradients and then lse, as `results` names and orders it."""
    o = problem.options
    lse = {"lse": made[-1]} if o.lse else {}
    if not o.backward:
        return {"o": heads_first(made[0], o.out_layout), **lse}
    named = dict(zip(("dq", "dk", "dv", *(["dbias"] if o.bias_gradient else [])), made, strict=False))
    return {name: value if name == "dbias" else heads_first(value, o.in_layout) for name, value in named.items()} | lse


def _attention(
    o: FmhaOptions,
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    bias: torch.Tensor | None,
    *,
    keep: torch.Tensor,
    kept: torch.Tensor | None,
    rounded_to: torch.dtype | None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """o and lse of the query heads of one key head: q is [G, Sq, D], k is [Skv, D], v is [Skv, Dv]."""
    score = o.scale * (q @ k.T)
    if o.soft_cap:
        score = o.soft_cap * torch.tanh(score / o.soft_cap)
    if bias is not None:
        score = score + bias
    score = score.masked_fill(~keep, -torch.inf)
    lse = score.logsumexp(-1)
    factor = None if kept is None else kept / (1 - o.dropout)
    if rounded_to is not None:
        return Rounded.apply(score, v, lse.detach(), factor, rounded_to), lse
    weight = (score - _finite(lse)).exp()
    return (weight if factor is None else weight * factor) @ v, lse


class Rounded(torch.autograd.Function):
    """o of scores and v with the roundings of kernels: of weights, of o, of which <do, o> is made, and of gradients of scores."""

    @staticmethod
    def forward(ctx: Any, *given: Any) -> torch.Tensor:
        """`given`: the scores, v, lse, what dropout multiplies weights with, or None, and the precision."""
        score, v, lse, factor, dtype = given
        weight = (score - _finite(lse)).exp()
        dropped = weight if factor is None else weight * factor
        ctx.dropped, ctx.factor, ctx.dtype = dropped.to(dtype).to(v.dtype), factor, dtype
        o = (ctx.dropped @ v).to(dtype).to(v.dtype)
        ctx.save_for_backward(weight, v, o)
        return o

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        """The gradients of the scores and of v."""
        weight, v, o = ctx.saved_tensors
        (grad,) = grads
        by_weight = grad @ v.mT
        by_weight = by_weight if ctx.factor is None else by_weight * ctx.factor
        by_score = weight * (by_weight - (grad * o).sum(-1, keepdim=True))
        return by_score.to(ctx.dtype).to(v.dtype), (ctx.dropped.mT @ grad).sum(0), None, None, None


def _finite(lse: torch.Tensor) -> torch.Tensor:
    return lse.masked_fill(lse == -torch.inf, 0.0)[..., None]


def _bias(problem: FmhaProblem, dtype: torch.dtype, device: str) -> torch.Tensor | None:
    """What is added to scores, [1 or B, 1 or H, Sq, Skv]."""
    o = problem.options
    if problem.bias is not None:
        return problem.bias.detach().to(device, dtype)
    if problem.slopes is None:
        return None
    i, j = torch.arange(o.q_len, device=device)[:, None], torch.arange(o.kv_len, device=device)
    mask = o.coordinates
    shift = o.kv_len - o.q_len if mask.origin in "nb" else 0
    causal = mask.origin in "tb" and mask.left < 0 and mask.right == 0
    distance = j.expand(o.q_len, -1) if causal else -(i + shift - j).abs()
    return problem.slopes.to(device, dtype)[:, :, None, None] * distance


def _kept(problem: FmhaProblem, device: str) -> torch.Tensor | None:
    """Which weights dropout keeps, [B, H, Sq, Skv]."""
    o = problem.options
    if not o.dropout:
        return None
    return attn_mlir.dropout_mask(o.batch, o.heads, o.q_len, o.kv_len, o.dropout, o.dropout_seed, device=device)


def _place(gradient: torch.Tensor, b: int, heads: slice) -> torch.Tensor:
    return gradient[b if gradient.shape[0] > 1 else 0, heads if gradient.shape[1] > 1 else slice(0, 1)]


def _laid_out(problem: FmhaProblem) -> list[tuple[torch.Tensor, str]]:
    o = problem.options
    return [(problem.q, o.in_layout), (problem.k, o.in_layout), (problem.v, o.in_layout), (problem.grad, o.out_layout)]
