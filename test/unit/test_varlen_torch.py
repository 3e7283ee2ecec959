"""attention_varlen with torch's transforms: compile, vmap, forward mode, second derivatives, autocast."""

from collections.abc import Callable
from typing import Any

import pytest
import torch

from attn_mlir import ArgumentError, attention_varlen, kv_len, masks
from varlen_cases import offsets

LENGTHS = (5, 0, 17, 1, 4), (7, 3, 17, 0, 9)
Tensor = torch.Tensor


def learned(slopes: Tensor) -> Callable[..., Any]:
    """An attention with captured slopes, on offsets that are given or `LENGTHS`."""

    def run(q: Tensor, k: Tensor, v: Tensor, of_q: Tensor = offsets(LENGTHS[0]), of_k: Tensor = offsets(LENGTHS[1])) -> Tensor:  # noqa: B008
        def score_mod(score: Any, b: Any, h: Any, q_idx: Any, kv_idx: Any) -> Any:
            return score + slopes[h] * (kv_idx - q_idx) * (kv_len() - 3)

        return attention_varlen(q, k, v, of_q, of_k, score_mod=score_mod, mask_mod=masks.causal("bottom_right"))

    return run


def drawn(lengths: tuple[Any, Any] = LENGTHS, dtype: torch.dtype = torch.float32) -> list[Tensor]:
    shapes = [(sum(lengths[0]), 2, 16), *[(sum(lengths[1]), 2, 16)] * 2]
    return [torch.randn(shape, dtype=dtype, requires_grad=True) for shape in shapes]


def test_compiled_is_one_operator_for_any_lengths() -> None:
    slopes = torch.rand(2, requires_grad=True)
    eager = learned(slopes)
    graphs = []

    def backend(graph: torch.fx.GraphModule, inputs: Any) -> Any:
        graphs.append(graph)
        return graph

    compiled = torch.compile(learned(slopes), fullgraph=True, backend="aot_eager", dynamic=True)
    torch.compile(learned(slopes), fullgraph=True, backend=backend, dynamic=True)(*(x.detach() for x in drawn()))
    assert len(graphs) == 1
    for lengths in (LENGTHS, ((50, 1), (1, 60)), ((3,), (4,))):
        inputs, cu = drawn(lengths), [offsets(each) for each in lengths]
        mine, wanted = compiled(*inputs, *cu), eager(*inputs, *cu)
        assert torch.equal(mine, wanted)
        gradients = [torch.autograd.grad(o.square().sum(), [*inputs, slopes]) for o in (mine, wanted)]
        assert all(torch.equal(a, b) for a, b in zip(*gradients, strict=True))
    with pytest.raises(ArgumentError, match="cu_seqlens_q ends at 30, beyond the 3 queries"):
        compiled(*inputs, offsets([30]), cu[1])


def test_vmap_is_that_of_each() -> None:
    run = learned(torch.rand(2))
    q, k, v = (x.detach() for x in drawn())
    several = torch.stack([q, 2 * q]), torch.stack([k, k + 1])
    o = torch.vmap(lambda q, k: run(q, k, v))(*several)
    assert all(torch.equal(o[n], run(several[0][n], several[1][n], v)) for n in range(2))


def test_forward_mode_and_second_derivatives() -> None:
    slopes = torch.rand(2, dtype=torch.float64)
    inputs = [*(x.detach() for x in drawn(dtype=torch.float64)), slopes]

    def run(q: Tensor, k: Tensor, v: Tensor, slopes: Tensor) -> Tensor:
        return learned(slopes)(q, k, v)

    needing = [x.clone().requires_grad_() for x in inputs]
    assert torch.autograd.gradcheck(run, needing, atol=1e-5, fast_mode=True, check_forward_ad=True)
    assert torch.autograd.gradgradcheck(run, needing, atol=1e-5, fast_mode=True)
    tangent = torch.func.jvp(run, tuple(inputs), tuple(map(torch.ones_like, inputs)))[1]
    step = 1e-6
    up, down = (run(*(x + sign * step for x in inputs)) for sign in (1, -1))
    torch.testing.assert_close(tangent, (up - down) / (2 * step), rtol=1e-6, atol=1e-6)


def test_autocast() -> None:
    q, k, v = (x.detach() for x in drawn())
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert learned(torch.rand(2))(q, k, v).dtype == torch.bfloat16
