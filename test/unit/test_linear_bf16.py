"""Gradients of linear attention over bf16 that are sums over positions, kernel by kernel as the evaluator runs them; and on a CPU."""

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import attn_mlir
from contexts import loaded_context
from linear_reference import error, reference
from test_tile_segments import Evaluated

K, V, T, HEADS = 16, 8, 130, 4
PROGRAM = (Path(__file__).parents[1] / "Inputs/linear/mamba2.mlir").read_text()
# Log decays are an operand, dt is captured.
SUMMED = re.sub(r' *"attn.decay"\(.*?\}\) : \(\) -> \(\)\n', "", PROGRAM, flags=re.DOTALL).replace(
    "%a: tensor<?xf32>", "%a: tensor<?x?x?xf32>"
)
HALF = SUMMED.replace("extract %decay", "extract %a").replace(f"x{K}xf32>", f"x{K}xbf16>").replace(f"x{V}xf32>", f"x{V}xbf16>")

FACTOR = """    "attn.{}"() ({{
    ^bb0(%x: f32, %b: index, %h: index, %t: index, %d: index):
      %e = tensor.extract %{}[%h] : tensor<?xf32>
      %y = arith.{} %x, %e : f32
      "attn.yield"(%y) : (f32) -> ()
    }}) : () -> ()
"""
# q times, and k divided by a number of each of their heads, too.
ROWS = HALF.replace("%a: tensor<?x?x?xf32>", "%a: tensor<?x?x?xf32>, %left: tensor<?xf32>, %right: tensor<?xf32>").replace(
    "  }) {heads", FACTOR.format("query", "left", "mulf") + FACTOR.format("key", "right", "divf") + "  }) {heads"
)

SKIP = HALF.replace("%a: tensor<?x?x?xf32>", "%a: tensor<?x?x?xf32>, %skip: tensor<?xf32>").replace(
    "  }) {heads",
    """    "attn.skip"() ({
    ^bb0(%b: index, %h: index, %t: index):
      %e = tensor.extract %skip[%h] : tensor<?xf32>
      "attn.yield"(%e) : (f32) -> ()
    }) : () -> ()
  }) {heads""",
)


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
    with loaded_context():
        program = Evaluated(HALF, 0, "bwd", ("arg3",), rounding=True, segment=0)
        (made,) = program.run([q, k, v, g, dt, torch.zeros_like(v), do])
    assert error(made, known) < 1e-4
    assert error((made * dt).sum(2), (known * dt).sum(2)) < 1e-3


@pytest.mark.parametrize("decays", [True, False])
@pytest.mark.parametrize("seed", [0, 1])
def test_gradients_of_what_factors_of_rows_read(seed: int, decays: bool) -> None:
    """dt, its bias and numbers of heads: sums of x_t . dx_t over positions, which rounded gradients of x are too coarse for."""
    random = np.random.default_rng(seed)
    q, k, v, do = (torch.from_numpy(random.normal(size=(1, n, T, d))).bfloat16() for n, d in ((2, K), (2, K), (HEADS, V), (HEADS, V)))
    dt = np.log1p(np.exp(random.normal(size=(1, HEADS, T)) - 1.0))
    dt[..., ::7] = 0.0
    g = torch.from_numpy(-random.uniform(0.0, 0.2, (1, HEADS, T))).float()
    factors = [torch.from_numpy(x).float() for x in (dt, random.uniform(0.5, 1.5, 2), random.uniform(0.5, 1.5, 2))]
    exact = [x.double().requires_grad_() for x in (g, *factors)]
    rows, left, right = exact[1].unsqueeze(3), *(x.reshape(1, 2, 1, 1) for x in exact[2:])
    o, _ = reference(q.double() * left, k.double() / right, v.double() * rows, exact[0])
    known = torch.autograd.grad(o, exact[not decays :], do.double())
    with loaded_context():
        names = (*["arg3"] * decays, "arg4", "arg5", "arg6")
        program = Evaluated(ROWS, 0, "bwd", names, rounding=True, segment=0)
        made = program.run([q, k, v, g, *factors, torch.zeros_like(v), do])
    for name, found, wanted in zip(names, made, known, strict=True):
        assert error(found, wanted) < 1e-4, name
    assert error(made[-3].sum(2), known[-3].sum(2)) < 1e-4


def test_gradients_with_a_skip() -> None:
    """dv is what one scan makes: its sums times dt, and do times what rows of o get of their own rows of v."""
    random = np.random.default_rng(0)
    q, k, v, do = (torch.from_numpy(random.normal(size=(1, n, T, d))).bfloat16() for n, d in ((1, K), (1, K), (HEADS, V), (HEADS, V)))
    dt, g = (torch.from_numpy(random.uniform(*ends, (1, HEADS, T))).float() for ends in ((0.1, 1.0), (-0.2, 0.0)))
    skip, exact = torch.from_numpy(random.normal(size=HEADS)).float(), v.double().requires_grad_()
    o, _ = reference(q.double(), k.double(), exact * dt.double().unsqueeze(3), g.double())
    (known,) = torch.autograd.grad(o + exact * skip.double().reshape(-1, 1, 1), exact, do.double())
    with loaded_context():
        program = Evaluated(SKIP, 0, "bwd", ("v",), rounding=True, segment=0)
        (made,) = program.run([q, k, v, g, dt, skip, torch.zeros_like(v), do])
    assert error(made, known) < 4e-3


@pytest.mark.parametrize("element", [torch.bfloat16, torch.float16])
def test_sums_over_gradients_on_the_cpu(element: torch.dtype) -> None:
    """The gradients that are summed up are not rounded."""
    generator = torch.Generator().manual_seed(0)
    q, k, v = (torch.randn(1, HEADS, T, d, generator=generator).to(element) for d in (K, K, V))
    decay = -0.1 * torch.rand(1, HEADS, T, generator=generator)
    captured, weights = (torch.rand(3, HEADS, generator=generator) + 0.5), torch.randn(1, HEADS, T, V, generator=generator).to(element)

    def gradients(of: torch.Tensor, function: Any, **options: float) -> torch.Tensor:
        a, b, c = of.requires_grad_()
        mods = {"q_mod": lambda x, b, h, t: x * a[h], "v_mod": lambda x, b, h, t: x / c[h]}
        o = function(q, k, v, decay, **mods, k_mod=lambda x, _, h, t: -x * b[h], **options)
        return torch.autograd.grad(o, of, weights.to(o.dtype))[0]

    known = gradients(
        captured.double(), lambda q, k, v, decay, **mods: reference(q.double(), k.double(), v.double(), decay.double(), **mods)[0]
    )
    for made, wanted in zip(gradients(captured, attn_mlir.linear_attention, scale=1.0), known, strict=True):
        assert error(made, wanted) < 2e-5
