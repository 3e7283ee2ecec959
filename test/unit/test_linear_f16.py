"""Gradients of linear attention over f16 where roundings matter, kernel by kernel as the evaluator runs them."""

from pathlib import Path

import numpy as np
import pytest
import torch

from contexts import loaded_context
from linear_reference import error, reference
from test_tile_segments import Evaluated

PROGRAM = (Path(__file__).parents[1] / "Inputs/linear/simple-gla.mlir").read_text()
K, V, T = 16, 8, 20
HALF = PROGRAM.replace(f"x{K}xf32>", f"x{K}xf16>").replace(f"?x{V}xf32>", f"?x{V}xf16>").replace(f"x{K}x{V}xf16>", f"x{K}x{V}xf32>")


@pytest.mark.parametrize("channels", ["none", "key"])
@pytest.mark.parametrize("scale", [0.25, 0.1, 2.0, -0.5])
def test_the_gradient_of_an_initial_state_of_which_little_is_left(channels: str, scale: float) -> None:
    """What decays by exp(-11) enters the state without a small scale of q: with it, f16 would have few digits of it."""
    random, of_channels = np.random.default_rng(0), channels == "key"
    text = HALF.replace('channels = "none"', 'channels = "key"').replace("<?x?x?xf32>", f"<?x?x?x{K}xf32>") if of_channels else HALF
    scales = [] if scale == 0.25 else [torch.tensor(scale)]
    if scales:
        text = text.replace(f"x{K}x{V}xf32>)", f"x{K}x{V}xf32>, %scale: f32)", 1).replace("%scale = arith.constant 0.25 : f32", "")
    q, k, v, do = (random.normal(size=(1, 2, T, columns)).astype(np.float16) for columns in (K, K, V, V))
    decay = random.uniform(-11.0, -10.8, (1, 2, T, *(K,) * of_channels))
    state, last = (random.normal(size=(1, 2, K, V)) for _ in range(2))
    exact = [torch.from_numpy(x.astype(np.float64)) for x in (q, k, v, decay, state)]
    exact[4].requires_grad_()
    o, final = reference(*exact[:4], scale=scale, initial_state=exact[4])
    torch.autograd.backward([o, final], [torch.from_numpy(x.astype(np.float64)) for x in (do, last)])
    with loaded_context():
        program = Evaluated(text, 0, "bwd", ("arg4",), rounding=True)
        given = [torch.from_numpy(x.astype(np.float32)) for x in (decay, state)]
        outputs = [torch.zeros(1, 2, T, V).half(), torch.zeros(1, 2, K, V)]
        gradients = [torch.from_numpy(do), torch.from_numpy(last.astype(np.float32))]
        (made,) = program.run([*map(torch.from_numpy, (q, k, v)), *given, *scales, *outputs, *gradients])
    assert error(made, exact[4].grad) < 2e-3


def test_gradients_of_decays_where_rows_of_q_and_k_have_factors() -> None:
    """They are differences of products of two scans, whose roundings are the same."""
    begin, end = HALF.index('"attn.query"'), HALF.index("}) {heads")
    text = HALF[:begin] + row_mod("query", "left") + row_mod("key", "right") + HALF[end:]
    text = text.replace(f"x{K}x{V}xf32>)", f"x{K}x{V}xf32>, %left: tensor<?x?x?xf32>, %right: tensor<?x?x?xf32>)", 1)
    random, length = np.random.default_rng(0), 600
    q, k, v, do = (torch.from_numpy(random.normal(size=(1, 2, length, columns))).half() for columns in (K, K, V, V))
    decay, left, right = (torch.from_numpy(random.uniform(*ends, (1, 2, length))).float() for ends in ((-2, 0), (0.5, 1.5), (0.5, 1.5)))
    state, zeros, exact = torch.zeros(1, 2, K, V), torch.zeros_like(v), decay.double().requires_grad_()
    o, _ = reference(q.double() * left.double().unsqueeze(3), k.double() * right.double().unsqueeze(3), v.double(), exact)
    (known,) = torch.autograd.grad(o, exact, do.double())
    with loaded_context():
        program = Evaluated(text, 0, "bwd", ("arg3",), rounding=True, segment=0)
        (made,) = program.run([q, k, v, decay, state, left, right, zeros, state, do, state])
    assert error(made, known) < 1e-3


def row_mod(name: str, captured: str) -> str:
    """A mod that multiplies rows by a captured tensor."""
    return f"""
    "attn.{name}"() ({{
    ^bb0(%x: f32, %b: index, %h: index, %t: index, %d: index):
      %row = tensor.extract %{captured}[%b, %h, %t] : tensor<?x?x?xf32>
      %y = arith.mulf %x, %row : f32
      "attn.yield"(%y) : (f32) -> ()
    }}) : () -> ()
  """
