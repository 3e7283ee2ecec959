"""AttentionEngine's and attention_autotuner's programs on an NVIDIA GPU."""

import copy
import pickle
import runpy
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

import engine_helpers as eh
import engine_programs as ep
from attn_mlir import AttentionEngine, OnlineSoftmax
from attn_mlir.api.arch import H200
from attn_mlir.errors import ArgumentError
from gpu_cases import GPU

pytestmark = GPU
_EXAMPLES = Path(__file__).parents[2] / "examples"
_PROGRAMS = [path.stem for path in (_EXAMPLES / "attention_engine").glob("*.py") if path.stem not in ("comparison", "linear")]


def _main(folder: str, program: str, monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(str(_EXAMPLES / folder))
    for path in (_EXAMPLES / folder).glob("*.py"):
        monkeypatch.delitem(sys.modules, path.stem, raising=False)
    return runpy.run_path(str(_EXAMPLES / folder / f"{program}.py"))["main"]


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize("program", sorted(_PROGRAMS))
def test_attention_engine(program: str, dtype: str, monkeypatch: pytest.MonkeyPatch) -> None:
    main = _main("attention_engine", program, monkeypatch)
    arguments = ["--device", "cuda", "--dtype", dtype]
    assert main(arguments) == 0


@pytest.mark.parametrize("program", ["attention", "retnet"])
def test_attention_autotuner(program: str, monkeypatch: pytest.MonkeyPatch) -> None:
    assert _main("attention_autotuner", program, monkeypatch)(["--device", "cuda", "--length", "1000"]) == 0


@pytest.mark.parametrize("mask", [None, ep.causal], ids=["blocks", "and-causal"])
def test_block_masks(mask: Any) -> None:
    """Odd lengths, shared heads, fully masked rows, fewer positions than a block."""
    for queries, keys in ((1000, 777), (17, 130), (1, 1)):
        qkv = eh.inputs(b=2, h=4, hkv=2, sq=queries, skv=keys, d=64, dtype=torch.float16)
        mod = AttentionEngine(eh.meta(*qkv), None, ep.scaled, mask, online_func=OnlineSoftmax(), extern_block_mask=True)
        blocks = (-(-queries // 128), -(-keys // 128))
        table = torch.rand(2, 4, *blocks, generator=torch.Generator().manual_seed(0)) < 0.4
        keep = table.repeat_interleave(128, 2).repeat_interleave(128, 3)[:, :, :queries, :keys] & eh.present(qkv, mask)
        exact = [x.double().requires_grad_() for x in qkv]
        s = (eh.scores(exact) * 0.25).masked_fill(~keep, -torch.inf)  # type: ignore[arg-type]
        known = eh.weighted(exact, s.softmax(-1).nan_to_num(0.0))  # type: ignore[arg-type]
        leaves = [x.cuda().requires_grad_() for x in qkv]
        o = mod(*leaves, block_mask=table.to("cuda", torch.int8))
        eh.check(o.cpu(), known, 3e-3)
        made = torch.autograd.grad(o.square().sum(), leaves)
        for x, wanted in zip(made, torch.autograd.grad(known.square().sum(), exact), strict=True):
            eh.check(x.cpu(), wanted, 1e-2)
        with pytest.raises(ArgumentError, match="block_mask is on cpu but q is on cuda:0: move it there"):
            mod(*leaves, block_mask=table)


def test_masks_move_with_the_module() -> None:
    qkv = [x.cuda() for x in eh.inputs(b=1, h=2, sq=300, d=64, dtype=torch.float16)]
    table = torch.tensor([[[[1, 0, 1], [0, 1, 0], [1, 1, 0]]]], dtype=torch.int8)
    mod = AttentionEngine(eh.meta(*qkv), None, ep.scaled, block_mask=table, online_func=OnlineSoftmax(), device=H200()).to("cuda")
    o = mod(*qkv)
    assert all(torch.equal(made(*qkv), o) for made in (copy.deepcopy(mod), pickle.loads(pickle.dumps(mod))))
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        again = mod(*qkv)
    graph.replay()
    assert torch.equal(again, o)
