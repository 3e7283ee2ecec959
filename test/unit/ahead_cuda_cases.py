"""Attentions as libraries for NVIDIA GPUs, and what tests do with them in a process that has a fake libcuda."""

from pathlib import Path
from typing import Any

import pytest
import torch

import attn_mlir
from ahead_calls import Loaded
from ahead_cuda_calls import OnCuda, both, fake, know, log, on_cuda

slopes = torch.nn.Parameter(torch.tensor([0.5, 0.25, 0.125, 0.0625]))
places = torch.arange(300) % 7
table = torch.linspace(-1, 1, 7)
bias = torch.nn.Parameter(torch.randn(4, 72, 136).half())
factor, shift = 0.7, 3


def biased(score: Any, b: Any, h: Any, q_idx: Any, kv_idx: Any) -> Any:
    return score * factor + slopes[h] * (kv_idx - q_idx + shift)


def dense(score: Any, b: Any, h: Any, q_idx: Any, kv_idx: Any) -> Any:
    return score + bias[h, q_idx, kv_idx]


def difference(s: Any, s2: Any) -> Any:
    return s.softmax(-1) - 0.5 * s2.softmax(-1)


def doubled(x: Any, b: Any, h: Any, q_idx: Any, d: Any) -> Any:
    return 2 * x


def faded(g: Any, b: Any, h: Any, t: Any) -> Any:
    return g * slopes[h]


def looked_up(score: Any, b: Any, h: Any, q_idx: Any, kv_idx: Any) -> Any:
    return score + table[places[kv_idx]]


Spec = attn_mlir.InputSpec
ALIBI = attn_mlir.Attention(score_mod=biased, mask_mod=attn_mlir.masks.causal(), return_lse=True)
LINEAR = attn_mlir.LinearAttention(decay_mod=faded, output_final_state=True, segment_size=512)
PACKED = attn_mlir.LinearAttention(output_final_state=True)
CASES: dict[str, tuple[Any, Any, tuple[int, ...], dict[str, Any]]] = {
    "alibi": (ALIBI, Spec(torch.bfloat16, 64), (2, 4, 2, 150, 210), {}),
    "fixed": (ALIBI, Spec(torch.bfloat16, 64), (2, 4, 2, 150, 210), {"deterministic": True}),
    "odd": (attn_mlir.Attention(mask_mod=attn_mlir.masks.causal()), Spec(torch.float16, 20, 36), (1, 4, 4, 77, 95), {}),
    "sigmoid": (attn_mlir.Attention(row=attn_mlir.rows.sigmoid), Spec(torch.float16, 128), (2, 4, 1, 1, 5000), {}),
    "two": (attn_mlir.Attention(row=difference, extra_qk=1), Spec(torch.bfloat16, 64, extra_dims=(32,)), (2, 4, 2, 70, 130), {}),
    "states": (LINEAR, attn_mlir.LinearSpec(torch.bfloat16, 64, 128, initial_state=True), (2, 2, 1, 300, 300), {}),
    "long": (LINEAR, attn_mlir.LinearSpec(torch.bfloat16, 64, 128, initial_state=True), (1, 4, 2, 1100, 1100), {}),
    "packed": (PACKED, attn_mlir.LinearSpec(torch.float16, 64, decay="head", cu_seqlens=torch.int32), (1, 4, 4, 200, 200), {}),
    "dense": (attn_mlir.Attention(score_mod=dense), Spec(torch.float16, 64), (5, 4, 2, 70, 130), {}),
    "lookup": (attn_mlir.Attention(score_mod=looked_up), Spec(torch.float16, 64), (1, 2, 2, 19, 300), {}),
    "wide": (
        attn_mlir.Attention(mask_mod=attn_mlir.masks.causal(), return_lse=True),
        Spec(torch.bfloat16, 576, 512),
        (1, 2, 1, 70, 200),
        {"backward": False},
    ),
    "sliced": (
        attn_mlir.Attention(query_mod=doubled),
        Spec(torch.bfloat16, 320, 520),
        (1, 2, 1, 70, 200),
        {"backward": False},
    ),
}
"""The attention, dtype and columns, B, Hq, Hkv, Sq, Skv (of linear attentions B, Hq, Hk, T, T), and what else `compile_ahead` gets."""
LIBRARIES = {name: "states" if name == "long" else name for name in CASES}
"""Cases of the same attention have one library."""


def inputs(name: str) -> list[Any]:
    """q, k, v and captures of a case."""
    attention, spec, (b, hq, hkv, sq, skv), _ = CASES[name]
    if isinstance(spec, attn_mlir.LinearSpec):
        return _linear_inputs(spec, b, hq, hkv, sq)
    columns = (spec.head_dim, spec.head_dim, spec.value_dim or spec.head_dim)
    tensors = [torch.randn(b, h, s, n).to(spec.dtype) for h, s, n in zip((hq, hkv, hkv), (sq, skv, skv), columns, strict=True)]
    further = {"alibi": [factor, slopes.detach(), shift], "lookup": [places.clone(), table], "dense": [bias.detach()]}
    further["two"] = [torch.randn(b, h, s, 32).to(spec.dtype) for h, s in ((hq, sq), (hkv, skv))]
    return [*tensors, *further.get("alibi" if attention is ALIBI else name, [])]


def _linear_inputs(spec: Any, b: int, hq: int, hk: int, length: int) -> list[Any]:
    value = spec.value_dim or spec.key_dim
    heads = [torch.randn(b, h, length, n).to(spec.dtype) for h, n in ((hq, spec.key_dim), (hk, spec.key_dim), (4, value))]
    if spec.cu_seqlens:
        return [*heads, -torch.rand(4), torch.tensor([0, 30, 30, length], dtype=torch.int32)]
    return [*heads, -torch.rand(b, 4, length), torch.randn(b, 4, spec.key_dim, value), slopes.detach()]


def compared(library: Path, name: str) -> dict[str, tuple[list[Any], list[Any]]]:
    attention, spec, _, more = CASES[name]
    return both(library, LIBRARIES[name], attention, spec, inputs(name), **more)


def without_driver(library: Path) -> tuple[int, str]:
    loaded, (q, k, v) = OnCuda(library, "odd"), inputs("odd")
    sizes = loaded.sizes_of(q, k, v)
    with pytest.raises(RuntimeError) as error:
        loaded.call("forward", [q, k, v, torch.zeros(1, 4, 77, 36).half()])
    return sizes.backward_workspace, str(error.value)


def failures(library: Path) -> list[str]:
    told = []
    loaded, (q, k, v) = OnCuda(library, "odd"), inputs("odd")
    o = torch.zeros(1, 4, 77, 36).half()

    def refused(*arguments: Any, **options: Any) -> None:
        try:
            loaded.call("forward", list(arguments), **options)
            told.append("")
        except RuntimeError as error:
            told.append(str(error))
        log()
        assert fake().fake_depth() == 0

    new = [on_cuda(x, 2) for x in (q, k, v, o)]  # a device that no call used yet
    fake().fake_attribute(75, 8)
    refused(*new, stream=102)
    fake().fake_attribute(75, 9)
    fake().fake_fail(b"cuInit", 100)
    refused(q, k, v, o)
    fake().fake_fail(b"cuModuleLoadData", 209)
    refused(*new, stream=102)
    fake().fake_fail(b"cuLaunchKernelEx", 719)
    refused(q, k, v, o)
    fake().fake_fail(b"cuMemAllocAsync", 2)
    refused(q, k, v, o)
    refused(q, on_cuda(k, 1), v, o)
    refused(q, k, v, o, stream=101)
    refused(q, k, v, o, workspace=torch.zeros(16, dtype=torch.uint8))
    try:
        Loaded(library, "odd").forward((q, k, v), [o])
    except RuntimeError as error:
        told.append(str(error))
    return told


def streams(library: Path) -> tuple[list[Any], list[Any]]:
    """The calls of a forward pass that takes its own memory, on a stream of device 3; then what a captured graph checks of elements."""
    know(*CASES["lookup"][:2], "lookup")
    loaded, (q, k, v, *more) = OnCuda(library, "lookup"), inputs("lookup")
    o = torch.zeros(1, 2, 19, 64).half()
    tensors = [on_cuda(x, 3) for x in (q, k, v, *more, o)]
    loaded.call("forward", tensors, stream=103)
    first = log()
    more[0][5] = 9
    outcome: list[Any] = []
    for capturing in (1, 0):
        fake().fake_capture(capturing)
        try:
            loaded.call("forward", tensors, stream=103)
            outcome.append("")
        except RuntimeError as error:
            outcome.append(str(error))
    return first, outcome


def copies(library: Path) -> tuple[list[str], ...]:
    """Kernels besides the library's own: for packed tensors, for k at an odd address, for results at an odd address."""
    know(*CASES["alibi"][:2], "alibi")
    loaded, (q, k, v, *more) = OnCuda(library, "alibi"), inputs("alibi")
    packed = torch.zeros(2, 150, 4, 192, dtype=torch.bfloat16)
    o, lse = torch.zeros_like(q), torch.zeros(2, 4, 150)
    near = torch.zeros(k.numel() + 1, dtype=torch.bfloat16)[1:].view(k.shape)
    found = []
    for query, key, result in (
        (packed[..., :64].transpose(1, 2), k, packed[..., 64:128].transpose(1, 2)),
        (q, near, o),
        (q, k, torch.zeros(o.numel() + 1, dtype=torch.bfloat16)[1:].view(o.shape)),
    ):
        loaded.call("forward", [query, key, v, *more, result, lse])
        found.append([each["name"] for each in log() if each["call"] == "launch" and each["name"] != "attention"])
    return tuple(found)
