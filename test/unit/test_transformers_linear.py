"""Mamba-2's layers of transformers' models on `attn_mlir.mamba2`: whenever models are imported, packed sequences, refusals."""

import importlib
import importlib.util
import sys
from collections.abc import Iterator
from typing import Any

import pytest
import torch

from attn_mlir.errors import ArgumentError, UnsupportedError
from attn_mlir.integrations import model_scans
from attn_mlir.integrations.transformers import register, restore_linear
from model_families import inputs, made

pytestmark = pytest.mark.skipif(importlib.util.find_spec("transformers") is None, reason="transformers is not installed (extra: examples)")
MAMBA2 = "transformers.models.mamba2.modeling_mamba2"


@pytest.fixture(autouse=True)
def _own_scans() -> Iterator[None]:
    yield
    restore_linear()


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """The shapes of x in calls of `mamba2`."""
    shapes: list[Any] = []
    run = model_scans.mamba2
    monkeypatch.setattr(model_scans, "mamba2", lambda x, *further, **options: shapes.append(tuple(x.shape)) or run(x, *further, **options))
    return shapes


@pytest.mark.parametrize("order", ["model first", "register first"])
def test_orders_of_import(order: str, calls: list[Any], monkeypatch: pytest.MonkeyPatch) -> None:
    if order == "register first":
        monkeypatch.delitem(sys.modules, MAMBA2, raising=False)
        register(linear=True)
    own = importlib.import_module(MAMBA2)
    register(linear=True)
    config = made("Mamba2").config
    mixer = own.Mamba2Mixer(config, 0).eval()
    x = torch.randn(2, 9, 32)
    with torch.no_grad():
        got = mixer(x)
        assert calls == [(2, 9, 4, 16)]
        restore_linear()
        torch.testing.assert_close(got, mixer(x), rtol=1e-4, atol=1e-5)
    assert len(calls) == 1
    assert not hasattr(own.mamba2_chunk_scan, "attn_mlir_replaces")


def packed() -> dict[str, Any]:
    """Sequences of 4, 1 and 6 tokens in one."""
    ids = inputs()["input_ids"][1:]
    seq_idx = torch.repeat_interleave(torch.arange(3, dtype=torch.int32), torch.tensor([4, 1, 6]))[None]
    positions = torch.cat([torch.arange(n) for n in (4, 1, 6)])[None]
    return {"input_ids": ids, "seq_idx": seq_idx, "position_ids": positions, "use_cache": False}


@pytest.mark.parametrize("kind", ["Mamba2", "Bamba"])
@pytest.mark.parametrize("by", ["seq_idx", "cu_seqlens"])
def test_packed_sequences(kind: str, by: str) -> None:
    """In training mode, where transformers would want a kernel of its own for the whole layer."""
    whole = made(kind).train()
    model = whole.backbone if kind == "Mamba2" else whole.model  # Mamba2ForCausalLM hands seq_idx to nobody
    given = packed()
    if kind == "Mamba2":
        del given["position_ids"]
    if by == "cu_seqlens":
        del given["seq_idx"]
        given["cu_seqlens"] = torch.tensor([0, 4, 5, 11], dtype=torch.int32)
    with pytest.raises(ValueError, match="can't keep packed sequences apart"):
        model(**given)
    parts = given["input_ids"].split([4, 1, 6], dim=1)
    expected = torch.cat([model(input_ids=part, use_cache=False).last_hidden_state for part in parts], dim=1)
    wanted = torch.autograd.grad(expected.square().mean(), list(model.parameters()))
    model.set_attn_implementation(register(linear=True))
    hidden = model(**given).last_hidden_state
    torch.testing.assert_close(hidden, expected, rtol=1e-4, atol=1e-5 * expected.abs().max().item())
    found = torch.autograd.grad(hidden.square().mean(), list(model.parameters()))
    for got, known in zip(found, wanted, strict=True):
        torch.testing.assert_close(got, known, rtol=1e-3, atol=1e-5 * max(1.0, known.abs().max().item()))


def test_graph_of_a_model() -> None:
    model = made("Mamba2")
    given = inputs()["input_ids"]
    with torch.no_grad():
        expected = model(given, use_cache=False).logits
        register(linear=True)
        got = torch.compile(lambda x: model(x, use_cache=False).logits, backend="eager", fullgraph=True)(given)
    torch.testing.assert_close(got, expected, rtol=1e-4, atol=1e-5 * expected.abs().max().item())


def test_positions_that_do_not_fit() -> None:
    model = made("Mamba2").backbone
    register(linear=True)
    with torch.no_grad(), pytest.raises(ArgumentError, match=r"seq_idx must be \[batch, positions\], with 11 positions"):
        model(**{**packed(), "seq_idx": torch.zeros(1, 5, dtype=torch.int32), "position_ids": None})


def test_refusals(monkeypatch: pytest.MonkeyPatch) -> None:
    from transformers.integrations import hub_kernels

    own = importlib.import_module(MAMBA2)
    with pytest.raises(ArgumentError, match="linear must be True or False"):
        register(linear="yes")  # type: ignore[arg-type]
    with monkeypatch.context() as patch:
        patch.setattr(hub_kernels, "_kernels_enabled", True)
        with pytest.raises(UnsupportedError, match="set USE_HUB_KERNELS=0 in the environment"):
            register(linear=True)
    with monkeypatch.context() as patch:
        patch.delattr(hub_kernels, model_scans._DECORATOR)
        with pytest.raises(UnsupportedError, match=r"keep their own scans with register\(linear=False\)"):
            register(linear=True)
    with monkeypatch.context() as patch:
        for name, function in list(vars(own).items()):
            if model_scans._kernel_of(function) is not None:
                patch.setattr(own, name, lambda *arguments, **options: None)
        with pytest.raises(UnsupportedError, match=r"call register\(linear=True\) before the model is imported"):
            register(linear=True)
    assert not hasattr(own.mamba2_chunk_scan, "attn_mlir_replaces")
