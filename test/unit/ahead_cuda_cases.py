"""Attentions as libraries for NVIDIA GPUs, and what tests do with them in a process that has a fake libcuda."""

from pathlib import Path
from typing import Any

import pytest
import torch

import attn_mlir
from ahead_calls import Loaded
from ahead_cuda_calls import OnCuda, both, fake, log, on_cuda

slopes = torch.nn.Parameter(torch.tensor([0.5, 0.25, 0.125, 0.0625]))
places = torch.arange(300) % 7
table = torch.linspace(-1, 1, 7)
factor, shift = 0.7, 3


def biased(score: Any, b: Any, h: Any, q_idx: Any, kv_idx: Any) -> Any:
    return score * factor + slopes[h] * (kv_idx - q_idx + shift)


def looked_up(score: Any, b: Any, h: Any, q_idx: Any, kv_idx: Any) -> Any:
    return score + table[places[kv_idx]]


Spec = attn_mlir.InputSpec
ALIBI = attn_mlir.Attention(score_mod=biased, mask_mod=attn_mlir.masks.causal(), return_lse=True)
CASES: dict[str, tuple[attn_mlir.Attention, Spec, tuple[int, ...], dict[str, Any]]] = {
    "alibi": (ALIBI, Spec(torch.bfloat16, 64), (2, 4, 2, 150, 210), {}),
    "fixed": (ALIBI, Spec(torch.bfloat16, 64), (2, 4, 2, 150, 210), {"deterministic": True}),
    "odd": (attn_mlir.Attention(mask_mod=attn_mlir.masks.causal()), Spec(torch.float16, 20, 36), (1, 4, 4, 77, 95), {}),
    "sigmoid": (attn_mlir.Attention(row=attn_mlir.rows.sigmoid), Spec(torch.float16, 128), (2, 4, 1, 1, 5000), {}),
    "lookup": (attn_mlir.Attention(score_mod=looked_up), Spec(torch.float16, 64), (1, 2, 2, 19, 300), {}),
}
"""The attention, dtype and columns, B, Hq, Hkv, Sq, Skv, and what else `compile_ahead` gets."""


def inputs(name: str) -> list[Any]:
    """q, k, v and captures of a case."""
    attention, spec, (b, hq, hkv, sq, skv), _ = CASES[name]
    columns = (spec.head_dim, spec.head_dim, spec.value_dim or spec.head_dim)
    tensors = [torch.randn(b, h, s, n).to(spec.dtype) for h, s, n in zip((hq, hkv, hkv), (sq, skv, skv), columns, strict=True)]
    further = {"alibi": [factor, slopes.detach(), shift], "lookup": [places, table]}
    return [*tensors, *further.get("alibi" if attention is ALIBI else name, [])]


def compared(library: Path, name: str) -> dict[str, tuple[list[Any], list[Any]]]:
    attention, spec, _, more = CASES[name]
    return both(library, name, attention, spec, inputs(name), **more)


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
