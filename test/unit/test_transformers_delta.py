"""Delta rules of transformers' models on attn_mlir: their functions beside their own PyTorch code, and a model with random weights."""

import importlib
import importlib.util
from collections.abc import Iterator
from typing import Any

import pytest
import torch

from attn_mlir.integrations import model_scans
from attn_mlir.integrations.transformers import register, restore_linear
from model_families import inputs, made

pytestmark = pytest.mark.skipif(importlib.util.find_spec("transformers") is None, reason="transformers is not installed (extra: examples)")
MODELS = {"qwen3_next": False, "qwen3_5": False, "olmo_hybrid": False, "kimi_linear": True}
"""Models, and whether their key channels have decays of their own."""


@pytest.fixture(autouse=True)
def _own_functions() -> Iterator[None]:
    yield
    restore_linear()


def functions(model: str) -> dict[str, Any]:
    """The functions that a model's module binds, by fla's names."""
    module = importlib.import_module(f"transformers.models.{model}.modeling_{model}")
    found = {}
    for function in vars(module).values():
        kernel = model_scans._kernel_of(getattr(function, "attn_mlir_replaces", function))
        if kernel in model_scans._DELTA_RULES:
            found[kernel] = function
    return found


def given(channels: bool, length: int) -> dict[str, Any]:
    torch.manual_seed(3)
    made = {name: torch.randn(2, length, 2, size) for name, size in (("query", 16), ("key", 16), ("value", 16))}
    made["g"] = -torch.rand(2, length, 2, *([16] if channels else []))
    made["beta"] = torch.rand(2, length, 2)
    made["initial_state"] = torch.randn(2, 2, 16, 16)
    return {name: x.requires_grad_() for name, x in made.items()}


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("length", [1, 33])
def test_the_functions_of_models(model: str, length: int) -> None:
    """Chunks with gradients, and a step of decoding; what models pass besides is taken."""
    kind = "fused_recurrent" if length == 1 else "chunk"
    own = next(function for name, function in functions(model).items() if name.startswith(kind))
    register(linear=True)
    replaced = next(function for name, function in functions(model).items() if name.startswith(kind))
    assert hasattr(replaced, "attn_mlir_replaces")
    x = given(MODELS[model], length)
    options = {"output_final_state": True, "use_qk_l2norm_in_kernel": True, "cu_seqlens": None, "output_attentions": False}
    expected, found = own(**x, **options), replaced(**x, **options)
    for got, known in zip(found, expected, strict=True):
        torch.testing.assert_close(got, known, rtol=1e-4, atol=1e-5)
    if length == 1:
        return
    wanted = torch.autograd.grad(torch.stack([y.square().sum() for y in expected]).sum(), list(x.values()))
    grads = torch.autograd.grad(torch.stack([y.square().sum() for y in found]).sum(), list(x.values()))
    for name, got, known in zip(x, grads, wanted, strict=True):
        torch.testing.assert_close(
            got, known, rtol=1e-3, atol=1e-4 * known.abs().max().item(), msg=lambda text, name=name: f"{name}: {text}"
        )


def test_a_model_of_qwen3_next() -> None:
    """Logits and greedy tokens, whose steps are those of decoding."""
    model, ids = made("Qwen3Next"), inputs()["input_ids"][1:]
    with torch.no_grad():
        expected = model(input_ids=ids).logits
        tokens = model.generate(ids, max_new_tokens=4, do_sample=False)
        register(linear=True)
        got = model(input_ids=ids).logits
        assert any(hasattr(f, "attn_mlir_replaces") for f in functions("qwen3_next").values())
        assert torch.equal(model.generate(ids, max_new_tokens=4, do_sample=False), tokens)
    torch.testing.assert_close(got, expected, rtol=1e-4, atol=1e-5 * expected.abs().max().item())
