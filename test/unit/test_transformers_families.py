"""Families of transformers' models compute the same with attn_mlir: logits with padding, what they generate, gradients of training."""

import importlib.util
from collections.abc import Iterator

import pytest
import torch

from attn_mlir.integrations.transformers import register, restore_linear
from model_families import FAMILIES, RECURRENT, differences, inputs, labels_of, made, outcome

pytestmark = pytest.mark.skipif(importlib.util.find_spec("transformers") is None, reason="transformers is not installed (extra: examples)")


@pytest.fixture(autouse=True)
def _own_scans() -> Iterator[None]:
    yield
    restore_linear()


@pytest.mark.parametrize("kind", FAMILIES)
def test_family(kind: str) -> None:
    """Windows, softcap, sinks, QK norms, latent keys, hybrids, position biases, whatever a family has."""
    model = made(kind)
    expected = outcome(model)
    model.set_attn_implementation(register(linear=kind in RECURRENT))
    got = outcome(model)
    logits, gradients = differences(got, expected)
    assert logits < 1e-5 and gradients < 1e-5
    assert got.tokens == expected.tokens


@pytest.mark.parametrize("kind", ["GptOss", "T5"])
def test_compiled_generation(kind: str) -> None:
    """With a static cache, and without graph breaks: windows and sinks, position biases."""
    from transformers import CompileConfig

    model = made(kind)
    options = {**inputs(), "max_new_tokens": 4, "do_sample": False}
    expected = model.generate(**options).tolist()
    model.set_attn_implementation(register())
    compiled = CompileConfig(fullgraph=True, mode=None, backend="eager")  # type: ignore[arg-type]
    compiled._compile_all_devices = True
    assert model.generate(**options, cache_implementation="static", compile_config=compiled).tolist() == expected
    assert hasattr(model, "_compiled_call")


def test_compiled_training() -> None:
    """The whole model in one graph, masks and padding among it."""
    model = made("Gemma3")
    given = inputs()
    labels = labels_of(given)
    losses, gradients = [], []
    for run in (model, torch.compile(model, backend="aot_eager", fullgraph=True)):
        losses.append(run(**given, labels=labels, use_cache=False).loss)
        gradients.append(torch.autograd.grad(losses[-1], list(model.parameters())))
        model.set_attn_implementation(register())
    torch.testing.assert_close(losses[1], losses[0], rtol=1e-5, atol=0)
    for got, known in zip(*gradients[::-1], strict=True):
        torch.testing.assert_close(got, known, rtol=1e-3, atol=1e-5 * max(1.0, known.abs().max().item()))
