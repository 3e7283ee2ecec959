"""Delta rules and their recurrence in float64: inputs, calls, and how far outputs, states and gradients are from each other."""

from typing import Any

import torch

import attn_mlir
from delta_reference import delta_reference, unit
from linear_reference import error


def inputs(
    length: int, heads: int = 2, of_k: int = 2, dims: tuple[int, int] = (16, 16), channels: bool = False, low: float = 1.0
) -> dict[str, Any]:
    k, v = dims
    decay = (1, heads, length, k) if channels else (1, heads, length)
    made = {
        "q": torch.randn(1, of_k, length, k),
        "k": unit(torch.randn(1, of_k, length, k)),
        "v": torch.randn(1, heads, length, v),
        "g": -low * torch.rand(decay),
        "beta": 2 * torch.rand(1, heads, length),
        "state": torch.randn(1, heads, k, v),
        "erase_key": unit(torch.randn(1, heads, length, k)),
    }
    return {name: x.requires_grad_() for name, x in made.items()}


def narrow(x: dict[str, Any], dtype: torch.dtype) -> dict[str, Any]:
    """The same with q, k, v and the erase key in a type."""
    names = ("q", "k", "v", "erase_key")
    return {n: v.detach().to(dtype if n in names else v.dtype).requires_grad_() for n, v in x.items()}


def run(x: dict[str, Any], **options: Any) -> tuple[torch.Tensor, torch.Tensor]:
    beta = x["beta"]
    return attn_mlir.linear_attention(
        x["q"], x["k"], x["v"], x["g"], None, v_mod=lambda v, b, h, t: v * beta[b, h, t], initial_state=x["state"],
        output_final_state=True, erase=beta, **options,
    )  # fmt: skip


def wanted(x: dict[str, Any], own: bool = False, removed: bool = False, **options: Any) -> tuple[dict[str, Any], Any]:
    d = {name: value.detach().double().requires_grad_(value.requires_grad) for name, value in x.items()}
    beta, group = d["beta"].unsqueeze(3), x["v"].shape[1] // x["k"].shape[1]
    a = d["erase_key"] if own else d["k"].repeat_interleave(group, 1)
    e = beta * (a + 0.1 * d["k"] if removed else a)
    r = d["erase_key"] if removed else None
    return d, delta_reference(d["q"], d["k"], beta * d["v"], d["g"], e, r, d["state"], x["q"].shape[3] ** -0.5, **options)


def compare(x: dict[str, Any], found: Any, expected: Any, double: dict[str, Any]) -> dict[str, float]:
    errors = {name: error(a, b) for name, a, b in zip(("o", "final_state"), found, expected, strict=True)}
    grads = [torch.randn_like(a) for a in found]
    torch.autograd.backward(list(found), grads)
    torch.autograd.backward(list(expected), [g.double() for g in grads])
    return errors | {f"d{n}": error(value.grad, double[n].grad) for n, value in x.items() if double[n].grad is not None}
