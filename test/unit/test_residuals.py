"""What rounding takes from o is kept for gradients: on the CPU, in tiled kernels, by torch's checks of operators."""

from typing import Any
from unittest import mock

import numpy as np
import pytest
import torch

from attn_mlir import attention, rows
from attn_mlir.dialects.attn.pairs import residual_factor
from attn_mlir.mlir import ir
from attn_mlir.passes.pipeline import Pipeline
from attn_mlir.reference import evaluate
from attn_mlir.registry import registry
from attn_mlir.runtime import dispatch, ops
from contexts import loaded_context
from gpu_cases import Sizes, beyond_rounding, formula, one_large_score, ours, plain, results

SIZES = Sizes(1, 2, 1, 64, 1024, 64, 64)
CASES = {
    "softmax": plain(rows.softmax),
    "causal": plain(rows.softmax, lambda b, h, q, k: q + 960 >= k),
    "softmax1": plain(rows.softmax1),
    "relu normalized": plain(rows.relu_normalized),
}
SOFTMAX = """
!t = tensor<?x?x?x8xELEMENT>
func.func @attention(%q: !t, %k: !t, %v: !t) -> (!t, !t) {
  %o = "attn.attention"(%q, %k, %v) ({
    "attn.row"() ({
    ^bb0(%s: f32, %b: index, %h: index, %i: index):
      %m = "attn.reduce"(%s) {kind = "max"} : (f32) -> f32
      %d = arith.subf %s, %m : f32
      %e = math.exp %d : f32
      %l = "attn.reduce"(%e) {kind = "sum"} : (f32) -> f32
      %p = arith.divf %e, %l : f32
      "attn.yield"(%p) : (f32) -> ()
    }) : () -> ()
  }) {outputs = []} : (!t, !t, !t) -> !t
  %r = "attn.residual"(%o) : (!t) -> !t
  return %o, %r : !t, !t
}
"""


@pytest.mark.parametrize(("element", "eps"), [("f16", 2.0**-11), ("bf16", 2.0**-8)])
def test_kernels_round_o_and_keep_the_rest(element: str, eps: float) -> None:
    rng = np.random.default_rng(1)
    given = [rng.integers(-8, 8, (1, 1, 20, 8)) / 8 for _ in range(3)]
    with loaded_context():
        module = ir.Module.parse(SOFTMAX.replace("ELEMENT", element))
        factor = residual_factor(ir.Type.parse(element))
        Pipeline.parse("attn-online-rewrite,attn-tile{block-q=16 block-kv=16}", registry()).run(module)
        (exact, nothing), (o, rest) = evaluate(module, given), evaluate(module, given, rounding=True)
    assert factor == 1 / eps and not nothing.any()
    # Weights are rounded, too: `exact` is not what the kernel rounds, but near it.
    assert np.all(np.abs(o - exact) <= 4 * eps)
    assert np.all(np.abs(rest) <= np.abs(o)) and np.all(np.abs(rest) > 0)


@pytest.mark.parametrize("name", CASES)
def test_one_large_score_among_small_ones(name: str) -> None:
    """Gradients of f16 on the CPU are within 5e-4 of exact numbers, and the rounding of what is returned."""
    case = CASES[name]
    leaves = one_large_score(SIZES, 1)
    got, exact = results(ours(case, SIZES, device="cpu"), leaves), results(formula(case, SIZES), [x.double() for x in leaves])
    assert max(map(beyond_rounding, got, exact)) <= 5e-4


def test_second_derivatives() -> None:
    """Those of inputs that make gradients small differences, for which o's rounding alone is 2e-3 to 1e-2."""
    case, leaves = CASES["softmax"], one_large_score(SIZES, 1)

    def second(run: Any, tensors: list[torch.Tensor]) -> list[torch.Tensor]:
        tensors = [x.detach().requires_grad_() for x in tensors]
        o, generator = run(*tensors), torch.Generator().manual_seed(5)
        upstream = torch.randn(o.shape, generator=generator).to(o).requires_grad_()
        first = torch.autograd.grad(o, tensors, upstream, create_graph=True)
        return list(torch.autograd.grad(first, [*tensors, upstream], [torch.randn(x.shape, generator=generator).to(x) for x in first]))

    got, exact = second(ours(case, SIZES, device="cpu"), leaves), second(formula(case, SIZES), [x.double() for x in leaves])
    assert max(map(beyond_rounding, got, exact)) <= 1e-3


def test_small_outputs_have_a_residual() -> None:
    """Where the residual itself would be subnormal in f16, o and it have twice the digits of o all the same."""
    q, k, v = one_large_score(SIZES, 2)
    v = v / 1024
    made = attention(q.clone().requires_grad_(), k, v, device="cpu")
    o, rest = made.detach().double(), made.grad_fn.saved_tensors[-1]  # type: ignore[union-attr]
    assert rest.dtype == torch.float16 and rest.shape == o.shape
    exact = formula(CASES["softmax"], SIZES)(*(x.double() for x in (q, k, v)))
    errors = [float((x - exact).abs().max() / exact.abs().max()) for x in (o, o + rest.double() / 2048)]
    assert errors[0] > 1e-4 and errors[1] < 5e-6


def test_nothing_is_kept_where_no_gradient_needs_it() -> None:
    single, half = ([torch.randn(1, 1, 4, 8).to(dtype) for _ in range(3)] for dtype in (torch.float32, torch.float16))

    def kept(needs: int, tensors: list[torch.Tensor], **options: Any) -> int:
        made = attention(*(x.clone().requires_grad_(i == needs) for i, x in enumerate(tensors)), **options)  # type: ignore[arg-type]
        return sum(x.shape == made.shape for x in made.grad_fn.saved_tensors[3:])  # type: ignore[union-attr]

    assert [kept(0, half), kept(1, half)] == [2, 2]
    assert [kept(0, single), kept(2, half), kept(0, half, row=rows.relu)] == [1, 1, 1]


@pytest.mark.parametrize("layout", ["bhsd", "bshd"])
def test_operators_pass_torchs_checks(layout: str) -> None:
    q, k, v = (torch.randn(1, 2, 4, 8, generator=torch.Generator().manual_seed(n)).half().requires_grad_() for n in range(3))
    with mock.patch.object(dispatch, "_task", wraps=dispatch._task) as task:
        attention(q, k, v)
    name = task.call_args.args[0].name
    torch.library.opcheck(ops.forward, (q, k, v, [], [], [], name, "q+k+v", layout), test_utils=("test_schema", "test_faketensor"))
    with torch.no_grad():
        made = ops.forward(q, k, v, [], [], [], name, "q+k+v", layout)
    assert len(made) == 4 and made[-1].stride() == made[0].stride()
    arguments = ([q, k, v], [], [], [], made, [torch.randn_like(made[0])], name, "q+k+v", layout)
    torch.library.opcheck(ops.backward, arguments, test_utils=("test_schema", "test_faketensor"))
