"""Attentions as libraries for AMD GPUs, and what tests do with them in a process that has a libamdhip64 whose launches are interpreted."""

from pathlib import Path
from typing import Any

import pytest
import torch

import attn_mlir
from ahead_calls import STREAM, dl
from ahead_hip_calls import OnHip, fake, filled, interpreted, log, memory

slopes = torch.nn.Parameter(torch.tensor([0.5, 0.25]))
places = torch.arange(300) % 7
table = torch.linspace(-1, 1, 7)
factor, shift = 0.7, 3


def biased(score: Any, b: Any, h: Any, q_idx: Any, kv_idx: Any) -> Any:
    return score * factor + slopes[h] * (kv_idx - q_idx + shift)


def looked_up(score: Any, b: Any, h: Any, q_idx: Any, kv_idx: Any) -> Any:
    return score + table[places[kv_idx]]


def difference(s: Any, s2: Any) -> Any:
    return s.softmax(-1) - 0.5 * s2.softmax(-1)


def relu_normalised(s: Any) -> Any:
    w = s.max(0.0)
    return w / (w.sum() + 1e-6)


Spec, Attention = attn_mlir.InputSpec, attn_mlir.Attention
Case = tuple[attn_mlir.Attention, attn_mlir.InputSpec, tuple[int, ...], dict[str, Any]]
INTERPRETED, CAUSAL = "hip-interpreted", attn_mlir.masks.causal()
ALIBI = Attention(score_mod=biased, mask_mod=CAUSAL, return_lse=True, device=INTERPRETED)
CASES: dict[str, Case] = {
    "alibi": (ALIBI, Spec(torch.float16, 32), (1, 2, 1, 21, 37), {}),
    "fixed": (
        Attention(score_mod=biased, mask_mod=CAUSAL, return_lse=True, device=INTERPRETED, deterministic=True),
        Spec(torch.bfloat16, 32), (1, 2, 1, 37, 70), {"deterministic": True},
    ),
    "odd": (Attention(row=relu_normalised, mask_mod=CAUSAL, device=INTERPRETED), Spec(torch.float16, 20, 36), (1, 2, 2, 17, 45), {}),
    "one": (Attention(row=attn_mlir.rows.sigmoid, layout="bshd", device=INTERPRETED), Spec(torch.bfloat16, 24), (1, 2, 1, 1, 127), {}),
    "two": (Attention(row=difference, extra_qk=1, device=INTERPRETED), Spec(torch.float16, 32, extra_dims=(16,)), (1, 2, 1, 9, 33), {}),
    "lookup": (Attention(score_mod=looked_up, device=INTERPRETED), Spec(torch.float16, 32), (1, 2, 2, 5, 40), {}),
    "wide": (
        Attention(mask_mod=CAUSAL, return_lse=True, layout="bshd", device=INTERPRETED), Spec(torch.bfloat16, 288, 528), (1, 2, 1, 5, 40),
        {"backward": False},
    ),
}  # fmt: skip
"""The attention, dtype and columns, B, Hq, Hkv, Sq, Skv, and what else `compile_ahead` gets."""


def tensors_of(name: str) -> tuple[list[torch.Tensor], list[Any]]:
    """q, k and v, and what is captured in the library's order."""
    attention, spec, (b, hq, hkv, sq, skv), _ = CASES[name]
    columns = (spec.head_dim, spec.head_dim, spec.value_dim or spec.head_dim)
    made = [torch.randn(b, h, s, n) for h, s, n in zip((hq, hkv, hkv), (sq, skv, skv), columns, strict=True)]
    if name == "two":
        made += [torch.randn(b, hq, sq, 16), torch.randn(b, hkv, skv, 16)]
    if attention._options.layout == "bshd":
        made = [x.transpose(1, 2).contiguous() for x in made]
    captured: list[Any] = [factor, slopes.detach(), shift] if name in ("alibi", "fixed") else [places, table] if name == "lookup" else []
    return [x.to(spec.dtype) for x in made], captured


def _outputs(found: Any) -> list[torch.Tensor]:
    return list(found) if isinstance(found, tuple) else [found]


def _called(attention: attn_mlir.Attention, tensors: list[torch.Tensor]) -> Any:
    q, k, v, *extra = tensors
    return attention(q, k, v, extra_qk=[tuple(extra)] if extra else None)


def run(library: OnHip, name: str, qkv: list[torch.Tensor], captured: list[Any]) -> dict[str, tuple[list[Any], list[Any]]]:
    """What each function gives, and what Python gives, which interprets the same kernels; of launches, what Python's names are."""
    attention = CASES[name][0]
    with torch.no_grad():
        inference = _outputs(_called(attention, qkv))
    if not CASES[name][3].get("backward", True):
        return {"forward": (_forward(library, [*qkv, *captured], inference), inference)}
    leaves = [x.detach().requires_grad_() for x in qkv]
    results = _outputs(_called(attention, leaves))
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


def _forward(library: OnHip, inputs: list[Any], like: list[torch.Tensor]) -> list[torch.Tensor]:
    """What the library gives that has a forward pass alone."""
    work, made = memory(library.sizes_of(*inputs).forward_workspace), [filled(x) for x in like]
    written = {"workspace": work, **{f"result {i}": x for i, x in enumerate(made)}}
    given = {f"input {i}": x for i, x in enumerate(inputs)}
    interpreted(lambda: library.call("forward", [*inputs, *made], workspace=work), given, written)
    return made


def _formula(q: Any, k: Any, v: Any, slope: Any) -> tuple[Any, Any]:
    """`ALIBI` in float64."""
    i, j = torch.arange(q.shape[2])[:, None], torch.arange(k.shape[2])
    scores = q @ k.repeat_interleave(2, 1).transpose(2, 3) / q.shape[3] ** 0.5 * factor + slope[:, None, None] * (j - i + shift)
    scores = scores.masked_fill(i < j, -torch.inf)
    return scores.softmax(-1) @ v.repeat_interleave(2, 1), scores.logsumexp(-1)


def strided(library: Path) -> tuple[dict[str, tuple[torch.Tensor, torch.Tensor]], int]:
    """Results and gradients with what float64 says, of packed tensors and odd addresses, and how many copies that took."""
    loaded = OnHip(library, "alibi")
    packed = torch.randn(1, 21, 2, 72).half()
    q = packed[..., 4:36].transpose(1, 2)
    k = torch.randn(1 * 1 * 37 * 32 + 1).half()[1:].view(1, 1, 37, 32)
    v = torch.randn(1, 37, 1, 32).half().transpose(1, 2)
    d_o, d_lse = torch.randn(1, 2, 21, 32).half(), torch.randn(1, 2, 21)
    inputs = [q, k, v, factor, slopes.detach(), shift]
    need = loaded.sizes_of(*inputs)
    whole = torch.full((1, 21, 2, 65), torch.nan).half()
    o, lse = whole[..., :32].transpose(1, 2), filled(d_lse)
    d_q, d_k, d_v = whole[..., 33:].transpose(1, 2), filled(k), filled(v)
    saved, d_slopes = memory(need.saved), torch.full((2,), torch.nan)
    # Results that kernels cannot write where they are take workspace that `sizes` does not know of.
    work, back = (memory(size + 3 * (1 << 12)) for size in (need.training_workspace, need.backward_workspace))
    given = {f"input {i}": x for i, x in enumerate(inputs)}
    written = {"o": o, "lse": lse, "saved": saved, "workspace": work}
    calls = interpreted(lambda: loaded.call("training_forward", [*inputs, o, lse, *loaded.pointer(saved)], workspace=work), given, written)
    made = {"d_q": d_q, "d_k": d_k, "d_v": d_v, "d_slopes": d_slopes}
    arguments = [*inputs, o, lse, *loaded.pointer(saved), d_o, d_lse, *made.values()]
    read = {**given, "saved": saved, "o": o.clone(), "lse": lse, "d_o": d_o, "d_lse": d_lse}
    arguments[6] = read["o"]
    calls += interpreted(lambda: loaded.call("backward", arguments, workspace=back), read, {**made, "workspace": back})
    exact = [x.detach().double().requires_grad_() for x in (q, k, v, slopes)]
    right = _formula(*exact)
    gradients = torch.autograd.grad(right, exact, [d_o.double(), d_lse.double()])
    found = dict(zip(("o", "lse", *made), zip((o, lse, *made.values()), (*right, *gradients), strict=True), strict=True))
    assert whole[..., 32].isnan().all()  # the gap
    return {name: (a, b.detach()) for name, (a, b) in found.items()}, sum(each.get("name") == "attn_copy" for each in calls)


def without_workspace(library: Path) -> tuple[list[dict[str, Any]], int]:
    """Calls of a training step that is given no workspace, and the size of the workspace that `sizes` tells; nothing runs."""
    loaded, (qkv, captured) = OnHip(library, "alibi"), tensors_of("alibi")
    need, o = loaded.sizes_of(*qkv, *captured), torch.zeros(1, 2, 21, 32).half()
    saved, grads = memory(need.saved), [torch.zeros_like(x) for x in (*qkv, slopes)]
    lse = torch.zeros(1, 2, 21)
    log()
    loaded.call("backward", [*qkv, *captured, o, lse, *loaded.pointer(saved), torch.ones_like(o), lse.clone(), *grads])
    return log(), need.backward_workspace


def without_runtime(library: Path) -> tuple[int, str]:
    loaded, (qkv, _) = OnHip(library, "odd"), tensors_of("odd")
    sizes = loaded.sizes_of(*qkv)
    with pytest.raises(RuntimeError) as error:
        loaded.call("forward", [*qkv, torch.zeros(1, 2, 17, 36).half()])
    return sizes.backward_workspace, str(error.value)


def failures(library: Path) -> list[str]:
    """What calls say that fail."""
    told = []
    loaded, ((q, k, v), _) = OnHip(library, "odd"), tensors_of("odd")
    q = q[:, :, :, :].clone()[..., :20]
    o = torch.zeros(1, 2, 17, 37).half()[..., 1:]  # at an odd address: it is copied

    def refused(*arguments: Any, **options: Any) -> None:
        try:
            loaded.call("forward", list(arguments), **options)
            told.append("")
        except RuntimeError as error:
            told.append(str(error))
        log()
        assert fake().fake_device() == 0

    new = [OnHip.told(x, 2) for x in (q, k, v, o)]  # a device that no call used yet
    fake().fake_fail(b"hipModuleLoadData", 209)
    refused(*new, stream=102)
    fake().fake_fail(b"hipInit", 100)
    refused(q, k, v, o)
    fake().fake_fail(b"hipModuleLoadData", 200)
    refused(*new, stream=102)
    fake().fake_fail(b"hipModuleLaunchKernel", 719)
    refused(torch.zeros(1, 2, 17, 21).half()[..., 1:], k, v, o)
    fake().fake_fail(b"hipMallocAsync", 2)
    refused(q, k, v, o)
    refused(q, OnHip.told(k, 1), v, o)
    refused(q, k, v, o, stream=101)
    refused(q, k, v, o, workspace=torch.zeros(16, dtype=torch.uint8))
    refused(dl(q), k, v, o)
    other = dl(q)
    other.device_type = 2
    refused(other, k, v, o)
    return told


def streams(library: Path) -> tuple[list[dict[str, Any]], list[str], int]:
    """The calls on device 3; what a call with a wrong element says while a graph is captured, and otherwise; the thread's device then."""
    loaded, ((q, k, v), (found, entries)) = OnHip(library, "lookup"), tensors_of("lookup")
    found = found.clone()
    o = torch.zeros(1, 2, 5, 32).half()
    tensors = [OnHip.told(x, 3) for x in (q, k, v, found, entries, o)]
    log()
    loaded.call("forward", tensors, stream=103)
    first = log()
    found[5] = 9
    outcome: list[str] = []
    for capturing in (1, 0):
        fake().fake_capture(capturing)
        try:
            loaded.call("forward", tensors, stream=103)
            outcome.append("")
        except RuntimeError as error:
            outcome.append(str(error))
    return first, outcome, fake().fake_device()


def compared(library: Path, name: str) -> dict[str, tuple[list[Any], list[Any]]]:
    qkv, captured = tensors_of(name)
    return run(OnHip(library, name), name, qkv, captured)
