"""Engines compiled ahead of time: custom inputs and final_rowscales as arguments and results in C, backward passes as they were written."""

import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

import attn_mlir
from ahead_calls import Loaded, plain_host
from attn_mlir import CustomIO, OnlineFunc, OnlineSoftmax, SymbolScalar, Var
from attn_mlir.errors import ArgumentError, UnsupportedError
from engine_helpers import engine, inputs, meta

pytestmark = pytest.mark.skipif(
    not any(shutil.which(name) for name in (os.environ.get("CXX") or "c++", "g++", "clang++")), reason="needs a C++ compiler"
)
CUSTOM = CustomIO({"bias": (1, "heads", "seq_len", 1)})


class Written(OnlineSoftmax):
    """Softmax whose row output has a name that C keeps to itself."""

    def __init__(self) -> None:
        super().__init__()
        self.final_rowscales = {"float": SymbolScalar("float", Var("0.0"))}

    @staticmethod
    def online_fwd_epilogue(o: Any, online_rowscales: Any, b: Any, h: Any, q_idx: Any) -> Any:
        m, r = online_rowscales["m"], online_rowscales["r"]
        return o / r, {"float": r.log() + m}

    @staticmethod
    def forward(scores: Any, final_rowscales: Any, b: Any, h: Any, q_idx: Any, kv_idx: Any) -> Any:
        return (scores - final_rowscales["float"]).exp()


def biased(score: Any, custom_fwd_inputs: Any, b: Any, h: Any, q_idx: Any, kv_idx: Any) -> Any:
    return score * 0.25 + custom_fwd_inputs.input_tensors["bias"]


@pytest.mark.parametrize("online_func", [Written, attn_mlir.OnlineRetention], ids=["softmax", "retention"])
def test_the_bits_of_the_engine(tmp_path: Path, online_func: Callable[[], OnlineFunc]) -> None:
    q, k, v = (tensor.requires_grad_() for tensor in inputs(1, 4, 2, 17, 127, 24, 16))
    bias = torch.randn(1, 4, 17, 1, requires_grad=True)
    made = engine((q, k, v), CUSTOM, online_func(), score_mod=biased, mask_mod=attn_mlir.masks.causal())
    with plain_host():
        library = attn_mlir.compile_ahead(made, out=tmp_path / "libengine.so", wrt=["q", "k", "v", "bias"])
    loaded = Loaded(library.library, "engine")
    with torch.no_grad():
        o, rows = made(q, k, v, bias, return_rowscales=True)
    given = tuple(tensor.detach() for tensor in (q, k, v, bias))
    results = [torch.full_like(o, torch.nan), *[torch.full_like(row, torch.nan) for row in rows.values()]]
    loaded.forward(given, results)
    assert torch.equal(results[0], o) and all(torch.equal(a, b) for a, b in zip(results[1:], rows.values(), strict=True))
    o = made(q, k, v, bias)
    d_o = torch.randn_like(o)
    wanted = torch.autograd.grad(o, [q, k, v, bias], d_o)
    saved = loaded.training_forward(given, results)
    grads = [torch.full_like(each, torch.nan) for each in wanted]
    loaded.backward(given, results, saved, [d_o, *[None] * len(rows)], grads)
    assert torch.equal(results[0], o.detach()) and all(torch.equal(a, b) for a, b in zip(grads, wanted, strict=True))
    assert ("DLTensor *float_," in library.header.read_text()) == (online_func is Written)


def test_what_libraries_do_not_hold(tmp_path: Path) -> None:
    qkv = inputs(1, 2, 2, 5, 5, 8)
    out = tmp_path / "libx.so"
    with pytest.raises(ArgumentError, match="the engine is made for f32 with 8 columns of q and 8 of v: leave out inputs"):
        attn_mlir.compile_ahead(engine(qkv), attn_mlir.InputSpec(torch.float32, 16), out=out)
    with pytest.raises(ArgumentError, match="inputs are 3 tensors"):
        attn_mlir.compile_ahead(attn_mlir.Attention(), out=out)
    with pytest.raises(UnsupportedError, match="tables of blocks are not compiled ahead of time yet"):
        attn_mlir.compile_ahead(engine(qkv, extern_block_mask=True), out=out)
    with pytest.raises(UnsupportedError, match="tuned schedules are not compiled ahead of time yet: make the AttentionEngine without"):
        attn_mlir.compile_ahead(engine(qkv, tune=True), out=out)
    shared = attn_mlir.AttentionEngine(meta(*inputs(1, 2, 2, 5, 5, 8)), kv_shared=True)
    with pytest.raises(UnsupportedError, match="kv_shared engines"):
        attn_mlir.compile_ahead(shared, out=out)
    with pytest.raises(ArgumentError, match=r"inputs of a linear attention are tensors .* or an attn_mlir.LinearSpec"):
        attn_mlir.compile_ahead(attn_mlir.LinearAttention(), out=out)  # type: ignore[arg-type]
