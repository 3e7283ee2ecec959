"""Gradients in 16 bits: <do, o> where rounding weights does no harm, a sum over the keys of its own where it does."""

from typing import Any

import pytest
import torch
from torch import Tensor

from attn_mlir import attention, rows
from attn_mlir.api.describe import explain_traced
from attn_mlir.frontend.emit import Inputs
from attn_mlir.frontend.program import Definition, trace
from attn_mlir.mlir import ir
from attn_mlir.passes.pipeline import Pipeline
from attn_mlir.registry import registry
from contexts import loaded_context
from gpu_cases import layer_norm
from stable_rows import (
    dense,
    half_exponents,
    mean_centred,
    score_times_softmax,
    sinh,
    softpick,
    squares_normalised,
    unshifted,
    with_gradients,
)


def norm(s: Tensor) -> Tensor:
    return s / (s * s).sum().sqrt()


def squared_scores(s: Tensor) -> Tensor:
    e = torch.exp(s - s.max())
    return s * s * e / e.sum()


USUAL = (rows.softmax, rows.softmax1, rows.softmax_sink(0.5), rows.relu_normalized, softpick, sinh, unshifted, mean_centred)
SWEPT = (score_times_softmax, squared_scores, half_exponents)


def takes_o(row: Any, element: str) -> bool:
    """Whether the backward takes a product with o."""
    traced = trace(Definition(row=row, scale=0.25), Inputs(element, 16, 16))
    with loaded_context():
        module = ir.Module.parse(traced.text)
        Pipeline.parse("attn-simplify,attn-differentiate{functions=bwd only=true}", registry()).run(module)
        return '"attn.row_dot"' in str(module)


@pytest.mark.parametrize("element", ["f16", "bf16"])
def test_which_rows_kv_pass(element: str) -> None:
    for row in (*USUAL, norm, squares_normalised, layer_norm):
        assert takes_o(row, element), row
    for row in SWEPT:
        assert not takes_o(row, element), row


def test_nothing_is_rounded_in_single_precision() -> None:
    assert all(takes_o(row, "f32") for row in SWEPT)


def test_explanation() -> None:
    single, half = (explain_traced(trace(Definition(row=score_times_softmax, scale=0.25), Inputs(x, 16, 16)).text) for x in ("f32", "f16"))
    assert "delta_o = <do, o>" in single and "passes over pairs: 1" in single
    assert "delta_o: summed in a pass before the gradients: <do, o> would carry" in half
    assert "passes over pairs: 2" in half and "delta_o = sum over keys of" in half


@pytest.mark.parametrize(("device", "dtype"), [("cpu", torch.bfloat16), ("hip-emulated", torch.float16)])
def test_no_worse_than_the_formula_in_the_same_type(device: str, dtype: torch.dtype) -> None:
    """Scores of about 300, GQA, odd lengths: with <do, o>, errors are 4e-2 in f16 and 3e-1 in bf16."""
    generator = torch.Generator().manual_seed(3)
    q, k, v, do = (torch.randn(1, h, n, 16, generator=generator) for h, n in ((2, 9), (1, 71), (1, 71), (2, 9)))
    q, k, v = (x.to(dtype) for x in (q * 300, k, v))
    present = torch.ones(9, 71, dtype=torch.bool)

    def run(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return attention(q, k, v, row=score_times_softmax, device=device)

    def formula(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return dense(score_times_softmax, q, k.expand(-1, 2, -1, -1), v.expand(-1, 2, -1, -1), present)

    tensors = (q, k, v)
    got = with_gradients(run, list(tensors), do)
    same, exact = (with_gradients(formula, [x.to(to) for x in tensors], do) for to in (dtype, torch.float64))
    for x, y, wanted in zip(got, same, exact, strict=True):
        allowed = 2 * (y - wanted).abs().max() + torch.finfo(dtype).eps * wanted.abs().max()
        assert (x - wanted).abs().max() <= allowed
