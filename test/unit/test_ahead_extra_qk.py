"""Rows of several scores in libraries made ahead of time: q2 and k2 are arguments, results and gradients have the bits of Python."""

import os
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch

import attn_mlir
from ahead_calls import Loaded, plain_host
from attn_mlir.errors import ArgumentError

pytestmark = pytest.mark.skipif(
    not any(shutil.which(name) for name in (os.environ.get("CXX") or "c++", "g++", "clang++")), reason="needs a C++ compiler"
)
lam = torch.nn.Parameter(torch.tensor([0.8, 0.6, 0.4, 0.2]))


def difference(s: Any, s2: Any, b: Any, h: Any, q_idx: Any) -> Any:
    return s.softmax(-1) - lam[h] * s2.softmax(-1)


CAUSAL = attn_mlir.masks.causal()
DIFFERENTIAL = attn_mlir.Attention(row=difference, mask_mod=CAUSAL, layout="bshd", extra_qk=1, return_lse=True)
PLAIN = attn_mlir.Attention(row=difference, extra_qk=1)
SIZES = [(2, 4, 2, 77, 77), (1, 4, 2, 1, 127), (2, 4, 4, 16, 33)]
"""B, Hq, Hkv, Sq, Skv: blocks of queries, one query of grouped heads, few queries."""


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Loaded:
    spec = attn_mlir.InputSpec(torch.float32, 24, 16, extra_dims=(12,))
    with plain_host():
        made = attn_mlir.compile_ahead(DIFFERENTIAL, spec, out=tmp_path_factory.mktemp("pairs") / "libpairs.so")
    header = " ".join(made.header.read_text().split())
    assert "q2 float32 [B, Sq, Hq, 12] k2 float32 [B, Skv, Hkv, 12]" in header and "d_q2 as q2 d_k2 as k2 d_lam as lam" in header
    return Loaded(made.library, "pairs")


def inputs(sizes: tuple[int, ...]) -> list[torch.Tensor]:
    b, hq, hkv, sq, skv = sizes
    shapes = [(b, sq, hq, 24), (b, skv, hkv, 24), (b, skv, hkv, 16), (b, sq, hq, 12), (b, skv, hkv, 12)]
    return [torch.randn(shape, requires_grad=True) for shape in shapes]


@pytest.mark.parametrize("sizes", SIZES, ids=str)
def test_results_and_gradients_have_the_bits_of_python(library: Loaded, sizes: tuple[int, ...]) -> None:
    leaves = inputs(sizes)
    q, k, v, q2, k2 = leaves
    given = tuple(x.detach() for x in (*leaves, lam))
    with torch.no_grad():
        inference = DIFFERENTIAL(q, k, v, extra_qk=[(q2, k2)])
    made = [torch.full_like(x, torch.nan) for x in inference]
    library.forward(given, made, 2)
    assert all(torch.equal(a, b) for a, b in zip(made, inference, strict=True))
    results = DIFFERENTIAL(q, k, v, extra_qk=[(q2, k2)])
    grads = [torch.randn_like(x) for x in results]
    wanted = torch.autograd.grad(results, [*leaves, lam], grads)
    saved = library.training_forward(given, made, 2)
    assert all(torch.equal(a, b) for a, b in zip(made, results, strict=True))
    found = [torch.full_like(x, torch.nan, requires_grad=False) for x in wanted]
    library.backward(given, made, saved, grads, found, 2)
    assert all(torch.equal(a, b) for a, b in zip(found, wanted, strict=True))


def test_they_must_fit_q_and_k(library: Loaded) -> None:
    def refused(message: str, place: int, changed: torch.Tensor) -> None:
        given = [x.detach() for x in (*inputs(SIZES[0]), lam)]
        given[place] = changed
        with pytest.raises(RuntimeError, match=message):
            library.forward(tuple(given), [torch.zeros(2, 77, 4, 16), torch.zeros(2, 4, 77)])

    refused("3: q2 must have size 4 in dimension 2, as q has, it has 2", 3, torch.zeros(2, 77, 2, 12))
    refused("3: k2 must have size 77 in dimension 1, as k has, it has 76", 4, torch.zeros(2, 76, 2, 12))
    refused("3: q2 must have size 12 in dimension 3, it has 13", 3, torch.zeros(2, 77, 4, 13))
    refused("4: .* stride 2 of the head dimension of k2 is not 1", 4, torch.zeros(2, 77, 2, 24)[..., ::2])


def test_inputs_of_compile_ahead(tmp_path: Path) -> None:
    out = tmp_path / "libx.so"
    q, k, v, q2, k2 = (x.transpose(1, 2) for x in inputs(SIZES[0]))
    with pytest.raises(ArgumentError, match=r"inputs are 5 tensors, \(q, k, v, q2, k2\), or an .*; got 3 of them"):
        attn_mlir.compile_ahead(PLAIN, (q, k, v), out=out)
    with pytest.raises(ArgumentError, match="q2 has head dimension 12 but k2 has 11"):
        attn_mlir.compile_ahead(PLAIN, (q, k, v, q2, k2[..., :11]), out=out)
    with pytest.raises(ArgumentError, match=r"extra_dims are 1 head dimensions, one for each additional pair of q and k; got \(8, 8\)"):
        attn_mlir.compile_ahead(PLAIN, attn_mlir.InputSpec(extra_dims=(8, 8)), out=out)
    with pytest.raises(ArgumentError, match=r"the head dimension of q2 must be an integer, got 8\.0"):
        attn_mlir.compile_ahead(PLAIN, attn_mlir.InputSpec(extra_dims=(8.0,)), out=out)  # type: ignore[arg-type]
    with pytest.raises(ArgumentError, match="wrt names 'q3', but these have a gradient: q, k, v, q2, k2, lam"):
        attn_mlir.compile_ahead(PLAIN, (q, k, v, q2, k2), out=out, wrt=["q3"])
    assert not list(tmp_path.iterdir())
