"""Attentions as libraries for AMD GPUs, and what tests do with them in a process that has a libamdhip64 whose launches are interpreted."""

from pathlib import Path
from typing import Any

import torch

import attn_mlir
from ahead_calls import STREAM
from ahead_hip_calls import OnHip, fake, filled, interpreted, log, memory

slopes = torch.nn.Parameter(torch.tensor([0.5, 0.25]))
places = torch.arange(300) % 7
table = torch.linspace(-1, 1, 7)
factor, shift = 0.7, 3


def biased(score: Any, b: Any, h: Any, q_idx: Any, kv_idx: Any) -> Any:
    return score * factor + slopes[h] * (kv_idx - q_idx + shift)


def looked_up(score: Any, b: Any, h: Any, q_idx: Any, kv_idx: Any) -> Any:
    return score + table[places[kv_idx]]


def relu_normalised(s: Any) -> Any:
    w = s.max(0.0)
    return w / (w.sum() + 1e-6)


Spec, Attention = attn_mlir.InputSpec, attn_mlir.Attention
INTERPRETED, CAUSAL = "hip-interpreted", attn_mlir.masks.causal()
CASES: dict[str, tuple[Attention, Spec, tuple[int, ...], dict[str, Any]]] = {
    "alibi": (
        Attention(score_mod=biased, mask_mod=CAUSAL, return_lse=True, device=INTERPRETED), Spec(torch.float16, 32), (1, 2, 1, 21, 37), {},
    ),
    "fixed": (
        Attention(score_mod=biased, mask_mod=CAUSAL, return_lse=True, device=INTERPRETED, deterministic=True),
        Spec(torch.bfloat16, 32), (1, 2, 1, 37, 70), {"deterministic": True},
    ),
    "odd": (Attention(row=relu_normalised, mask_mod=CAUSAL, device=INTERPRETED), Spec(torch.float16, 20, 36), (1, 2, 2, 17, 45), {}),
    "one": (Attention(row=attn_mlir.rows.sigmoid, layout="bshd", device=INTERPRETED), Spec(torch.bfloat16, 24), (2, 2, 1, 1, 127), {}),
    "lookup": (Attention(score_mod=looked_up, device=INTERPRETED), Spec(torch.float16, 32), (1, 2, 2, 5, 40), {}),
}  # fmt: skip
"""The attention, dtype and columns, B, Hq, Hkv, Sq, Skv, and what else `compile_ahead` gets."""


def tensors_of(name: str) -> tuple[list[torch.Tensor], list[Any]]:
    """q, k and v, and what is captured in the library's order."""
    attention, spec, (b, hq, hkv, sq, skv), _ = CASES[name]
    columns = (spec.head_dim, spec.head_dim, spec.value_dim or spec.head_dim)
    made = [torch.randn(b, h, s, n) for h, s, n in zip((hq, hkv, hkv), (sq, skv, skv), columns, strict=True)]
    if attention._options[1] == "bshd":
        made = [x.transpose(1, 2).contiguous() for x in made]
    captured: list[Any] = [factor, slopes.detach(), shift] if name in ("alibi", "fixed") else [places, table] if name == "lookup" else []
    return [x.to(spec.dtype) for x in made], captured


def _outputs(found: Any) -> list[torch.Tensor]:
    return list(found) if isinstance(found, tuple) else [found]


def run(library: OnHip, name: str, qkv: list[torch.Tensor], captured: list[Any]) -> dict[str, tuple[list[Any], list[Any]]]:
    """What each function gives, and what Python gives, which interprets the same kernels; of launches, what Python's names are."""
    attention = CASES[name][0]
    leaves = [x.detach().requires_grad_() for x in qkv]
    with torch.no_grad():
        inference = _outputs(attention(*qkv))
    results = _outputs(attention(*leaves))
    grads = [torch.randn_like(x) for x in results]
    wanted = [*leaves, *([slopes] if name in ("alibi", "fixed") else [])]
    gradients = list(torch.autograd.grad(results, wanted, grads))
    plain = [x.detach() for x in results]

    inputs = [*qkv, *captured]
    need = library.sizes_of(*inputs)
    given = {f"input {i}": x for i, x in enumerate(inputs)}
    saved = memory(need.saved)
    found: dict[str, tuple[list[Any], list[Any]]] = {}
    made = [filled(x) for x in plain]
    for function, kept, size, right in (
        ("forward", [], need.forward_workspace, inference),
        ("training_forward", library.pointer(saved), need.training_workspace, plain),
    ):
        made = [filled(x) for x in plain]
        work = memory(size)
        written = {"saved": saved, "workspace": work, **{f"result {i}": x for i, x in enumerate(made)}}
        calls = interpreted(lambda k=kept, w=work, m=made, f=function: library.call(f, [*inputs, *m, *k], workspace=w), given, written)
        assert {each["stream"] for each in calls if "stream" in each} == {STREAM}
        found[function] = made, [x.detach() for x in right]
    work, targets = memory(need.backward_workspace), [filled(x) for x in gradients]
    read = {**given, "saved": saved, **{f"result {i}": x for i, x in enumerate([*made, *grads])}}
    written = {"workspace": work, **{f"gradient {i}": x for i, x in enumerate(targets)}}
    arguments = [*inputs, *made, *library.pointer(saved), *grads, *targets]
    interpreted(lambda: library.call("backward", arguments, workspace=work), read, written)
    found["backward"] = targets, gradients
    return found


def compared(library: Path, name: str) -> dict[str, tuple[list[Any], list[Any]]]:
    qkv, captured = tensors_of(name)
    return run(OnHip(library, name), name, qkv, captured)
