"""Gradients of q in heads of more than 128 columns on Hopper, a kernel over rows of its own: who makes it, and that gradients are right."""

from collections.abc import Sequence
from typing import Any

import pytest
import torch

from attn_mlir import attention, masks, rows
from attn_mlir.backends.gpu import attributes
from attn_mlir.backends.gpu.scheduled import scheduled
from attn_mlir.backends.nvidia import pipeline
from attn_mlir.backends.nvidia.derivatives import derivative
from attn_mlir.backends.program import function_named, reported
from attn_mlir.dialects import loaded
from attn_mlir.frontend.emit import Inputs
from attn_mlir.frontend.program import Definition, trace
from attn_mlir.mlir import ir

DEVICE = "cuda-emulated"
_PLACES = torch.rand(64)
SOFTMAX = Definition(rows.softmax, mask_mod=masks.causal(), scale=0.125)
OF_A_FUNCTION = Definition(rows.softmax, query_mod=lambda x, b, h, i, d: x * _PLACES[i], scale=0.125)


def kernels(form: Definition, inputs: Inputs, wrt: Sequence[str], arch: str = "sm_90a") -> list[str]:
    """The kernels with products of a backward pass: what its programs are, and who makes it."""
    found = []
    with reported(), loaded() as context:
        module, host = scheduled(
            context, trace(form, inputs).text, *derivative("bwd", wrt, arch), {"arch": arch}, pipeline.KERNEL, "NVIDIA", wide=True
        )
        for step in host.steps:
            if step.kernel:
                kernel = function_named(module, step.kernel)
                emitter = attributes.read(kernel, attributes.SCHEDULE)["emitter"]
                sizes = ir.DictAttr(kernel.attributes["tile.kernel"])
                grid = ir.StringAttr(sizes["grid"]).value if "grid" in sizes else "attention"
                found += [f"{grid} {emitter}"] if emitter != "simt" else []
    return found


@pytest.mark.parametrize(
    ("form", "inputs", "wrt", "arch", "wanted"),
    [
        (SOFTMAX, Inputs("f16", 256, 256), "qkv", "sm_90a", ["pairs hopper", "attention hopper"]),
        (SOFTMAX, Inputs("bf16", 192, 128), "qkv", "sm_90a", ["pairs hopper", "attention hopper"]),
        (SOFTMAX, Inputs("f16", 192, 128), "q", "sm_90a", ["attention hopper"]),
        (SOFTMAX, Inputs("f16", 256, 256), "qv", "sm_90a", ["pairs hopper", "attention hopper"]),
        (SOFTMAX, Inputs("f16", 192, 128, packed=True), "qkv", "sm_90a", ["pairs hopper", "attention hopper"]),
        (SOFTMAX, Inputs("f16", 128, 128), "q", "sm_90a", ["pairs hopper"]),
        # Its sums are read in f32 by what is differentiated next.
        (OF_A_FUNCTION, Inputs("f16", 192, 128), "qkv", "sm_90a", ["pairs hopper", "pairs hopper"]),
        (OF_A_FUNCTION, Inputs("f16", 256, 256), "q", "sm_90a", ["pairs hopper"]),
        (SOFTMAX, Inputs("f16", 256, 256), "qkv", "sm_80", ["pairs warp", "pairs warp"]),
        (SOFTMAX, Inputs("f16", 256, 256), "q", "sm_80", ["pairs warp"]),
    ],
)
def test_kernels(form: Definition, inputs: Inputs, wrt: str, arch: str, wanted: list[str]) -> None:
    assert kernels(form, inputs, list(wrt), arch) == wanted


CASES: dict[str, dict[str, Any]] = {
    "causal": {"mask_mod": masks.causal()},
    "bottom right": {"mask_mod": masks.causal("bottom_right")},  # the first queries are fully masked
    "alibi, lse": {"score_mod": lambda s, b, h, i, j: s - _PLACES[h] * abs(i - j), "return_lse": True},
    "dropout": {"dropout_p": 0.3, "dropout_seed": (5, 3)},
    "function of q": {"query_mod": lambda x, b, h, i, d: x * _PLACES[i % 64]},
}


@pytest.mark.parametrize(("name", "columns"), [*((name, (192, 128)) for name in CASES if name != "causal"), ("causal", (256, 256))])
def test_gradients(name: str, columns: tuple[int, int]) -> None:
    """Beside float64: grouped heads, lengths that are no multiples of blocks, more queries than keys."""
    given = [x.half() for x in (torch.randn(1, 4, 70, columns[0]), *(torch.randn(1, 2, 40, n) for n in columns))]
    weights = torch.randn(1, 4, 70, columns[1]).half()

    def results(device: str | None) -> list[torch.Tensor]:
        q, k, v = leaves = [(x if device else x.double()).clone().requires_grad_() for x in given]
        made = attention(q, k, v, device=device or "cpu", **CASES[name])
        o, *lse = made if isinstance(made, tuple) else (made,)
        loss = (o * weights.to(o.dtype)).sum().double() + sum(x.double().square().sum() for x in lse)
        return [*torch.autograd.grad(loss, leaves)]

    for got, wanted in zip(results(DEVICE), results(None), strict=True):
        assert float((got.double() - wanted).norm()) <= 3e-3 * float(wanted.norm())


def test_gradients_of_q_alone_are_those_of_all() -> None:
    q, k, v = (torch.randn(1, 2, 65, 192).half() for _ in range(3))

    def gradient(*names: str) -> torch.Tensor:
        leaves = {name: x.clone().requires_grad_(name in names) for name, x in (("q", q), ("k", k), ("v", v))}
        o = attention(leaves["q"], leaves["k"], leaves["v"], mask_mod=masks.causal(), device=DEVICE)
        return torch.autograd.grad(o.sum(), [leaves[name] for name in names])[0]

    assert torch.equal(gradient("q"), gradient("q", "k", "v"))
