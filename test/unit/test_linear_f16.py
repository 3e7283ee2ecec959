"""Gradients of linear attention over f16 where little is left of a state, kernel by kernel as the evaluator runs them."""

from pathlib import Path

import numpy as np
import pytest
import torch

from attn_mlir.dialects import load_all
from attn_mlir.mlir import ir
from linear_reference import error, reference
from test_tile_segments import Evaluated

PROGRAM = (Path(__file__).parents[1] / "Inputs/linear/simple-gla.mlir").read_text()
K, V, T = 16, 8, 20
HALF = PROGRAM.replace(f"x{K}xf32>", f"x{K}xf16>").replace(f"?x{V}xf32>", f"?x{V}xf16>").replace(f"x{K}x{V}xf16>", f"x{K}x{V}xf32>")


@pytest.mark.parametrize("channels", ["none", "key"])
def test_the_gradient_of_an_initial_state_of_which_little_is_left(channels: str) -> None:
    """What decays by exp(-11) enters the state without the scale of q: with it, f16 would have few digits of it."""
    random, of_channels = np.random.default_rng(0), channels == "key"
    text = HALF.replace('channels = "none"', 'channels = "key"').replace("<?x?x?xf32>", f"<?x?x?x{K}xf32>") if of_channels else HALF
    q, k, v, do = (random.normal(size=(1, 2, T, columns)).astype(np.float16) for columns in (K, K, V, V))
    decay = random.uniform(-11.0, -10.8, (1, 2, T, *(K,) * of_channels))
    state, last = (random.normal(size=(1, 2, K, V)) for _ in range(2))
    exact = [torch.from_numpy(x.astype(np.float64)) for x in (q, k, v, decay, state)]
    exact[4].requires_grad_()
    o, final = reference(*exact[:4], scale=0.25, initial_state=exact[4])
    torch.autograd.backward([o, final], [torch.from_numpy(x.astype(np.float64)) for x in (do, last)])
    with ir.Context() as context:
        load_all(context)
        program = Evaluated(text, 0, "bwd", ("arg4",), rounding=True)
        given = [torch.from_numpy(x.astype(np.float32)) for x in (decay, state)]
        outputs = [torch.zeros(1, 2, T, V).half(), torch.zeros(1, 2, K, V)]
        gradients = [torch.from_numpy(do), torch.from_numpy(last.astype(np.float32))]
        (made,) = program.run([*map(torch.from_numpy, (q, k, v)), *given, *outputs, *gradients])
    assert error(made, exact[4].grad) < 2e-3
