"""Gradients of linear attention over bf16 that are summed up over all positions, kernel by kernel as the evaluator runs them."""

import re
from pathlib import Path

import numpy as np
import pytest
import torch

from attn_mlir.dialects import load_all
from attn_mlir.mlir import ir
from linear_reference import error, reference
from test_tile_segments import Evaluated

K, V, T, HEADS = 16, 8, 130, 4
PROGRAM = (Path(__file__).parents[1] / "Inputs/linear/mamba2.mlir").read_text()
# Log decays are an operand, dt is captured.
SUMMED = re.sub(r' *"attn.decay"\(.*?\}\) : \(\) -> \(\)\n', "", PROGRAM, flags=re.DOTALL).replace(
    "%a: tensor<?xf32>", "%a: tensor<?x?x?xf32>"
)
HALF = SUMMED.replace("extract %decay", "extract %a").replace(f"x{K}xf32>", f"x{K}xbf16>").replace(f"x{V}xf32>", f"x{V}xbf16>")


@pytest.mark.parametrize("seed", [0, 2])
def test_the_gradient_of_a_rate(seed: int) -> None:
    """dA of Mamba-2 as it is initialised: its terms nearly cancel, so that nothing but inputs may be rounded to bf16 on the way."""
    random = np.random.default_rng(seed)
    q, k, v, do = (torch.from_numpy(random.normal(size=(1, n, T, d))).bfloat16() for n, d in ((1, K), (1, K), (HEADS, V), (HEADS, V)))
    dt = torch.from_numpy(np.log1p(np.exp(random.normal(size=(1, HEADS, T)) - 1.0))).float()
    g = dt * torch.from_numpy(-1.0 - 15.0 * random.random((HEADS, 1))).float()
    exact = g.double().requires_grad_()
    o, _ = reference(q.double(), k.double(), v.double() * dt.double().unsqueeze(3), exact)
    (known,) = torch.autograd.grad(o, exact, do.double())
    with ir.Context() as context:
        load_all(context)
        program = Evaluated(HALF, 0, "bwd", ("arg3",), rounding=True, segment=0)
        (made,) = program.run([q, k, v, g, dt, torch.zeros_like(v), do])
    assert error(made, known) < 1e-4
    assert error((made * dt).sum(2), (known * dt).sum(2)) < 1e-3
