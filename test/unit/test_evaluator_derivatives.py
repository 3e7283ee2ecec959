"""The reference evaluator on programs of derivatives, against PyTorch's autograd in float64."""

from collections.abc import Sequence

import numpy as np
import pytest
import torch

from attn_mlir.passes.pipeline import Pipeline
from attn_mlir.reference import EvaluationError, OutOfBoundsError, evaluate
from attn_mlir.reference.promote import promoted
from attn_mlir.registry import registry
from programs import parsed, text_of

BACKWARD = promoted(text_of("derivatives/alibi-causal-softmax-backward"))
TANGENT = promoted(text_of("derivatives/softmax-tangent"))
D, DV = 64, 32
LENGTHS = [(1, 1), (17, 17), (17, 23), (23, 17)]


def run(text: str, function: str, inputs: Sequence[object], pipeline: str = "", **options: object) -> list[np.ndarray]:
    with parsed(text) as module:
        Pipeline.parse(pipeline, registry()).run(module)
        return evaluate(module, inputs, function, **options)  # type: ignore[arg-type]


def tensors(lengths: tuple[int, int], heads: tuple[int, int] = (4, 2), seed: int = 0) -> list[torch.Tensor]:
    """q, k and v."""
    rng = np.random.default_rng(seed)
    q_len, kv_len = lengths
    shapes = [(2, heads[0], q_len, D), (2, heads[1], kv_len, D), (2, heads[1], kv_len, DV)]
    return [torch.from_numpy(rng.standard_normal(shape)) for shape in shapes]


def normal(*shape: int, seed: int = 9) -> torch.Tensor:
    return torch.from_numpy(np.random.default_rng(seed).standard_normal(shape))


def check(got: Sequence[np.ndarray], wanted: Sequence[torch.Tensor], tolerance: float = 1e-12) -> None:
    assert len(got) == len(wanted)
    for mine, theirs in zip(got, wanted, strict=True):
        np.testing.assert_allclose(mine, theirs.detach().numpy(), rtol=tolerance, atol=tolerance)


def alibi(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, slopes: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """o, and what its backward pass reads: the maximum of each row and the sum of its exponentials."""
    group = q.shape[1] // k.shape[1]
    k, v = (x.repeat_interleave(group, 1) for x in (k, v))
    i, j = torch.arange(q.shape[2])[:, None], torch.arange(k.shape[2])[None]
    s = q @ k.mT / 8 + slopes[:, None, None] * (j - i)
    s = s.masked_fill(j > i, -torch.inf)
    m = s.amax(-1)
    e = torch.exp(s - m[..., None])
    return (e / e.sum(-1, keepdim=True)) @ v, m, e.sum(-1)


def backward(lengths: tuple[int, int], heads: tuple[int, int] = (4, 2)) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
    """The inputs of the backward program and PyTorch's gradients."""
    q, k, v = tensors(lengths, heads)
    given = [q, k, v, normal(heads[0])]
    leaves = [x.clone().requires_grad_() for x in given]
    o, m, l = alibi(*leaves)
    do = normal(*o.shape, seed=3)
    return [*given, o.detach(), m.detach(), l.detach(), do], list(torch.autograd.grad(o, leaves, do))


@pytest.mark.parametrize("lengths", LENGTHS)
@pytest.mark.parametrize("heads", [(4, 2), (3, 3), (4, 1)])
def test_backward_agrees_with_autograd(lengths: tuple[int, int], heads: tuple[int, int]) -> None:
    inputs, wanted = backward(lengths, heads)
    check(run(BACKWARD, "attention_bwd", inputs), wanted)


@pytest.mark.parametrize("lengths", LENGTHS)
def test_outlined_functions_are_called(lengths: tuple[int, int]) -> None:
    inputs, wanted = backward(lengths)
    text = BACKWARD
    with parsed(text) as module:
        Pipeline.parse("attn-outline", registry()).run(module)
        assert "call @attention_bwd_1_pairs" in str(module)
        check(evaluate(module, inputs, "attention_bwd"), wanted)


@pytest.mark.parametrize("options", [{}, {"block": (5, 3), "q_block": 4}, {"block": 1, "q_block": 1}])
def test_resolved_masks_leave_nothing_out(options: dict[str, object]) -> None:
    inputs, wanted = backward((17, 23))
    check(run(BACKWARD, "attention_bwd", inputs, "attn-outline,attn-resolve-masks", **options), wanted)


@pytest.mark.parametrize("lengths", LENGTHS)
def test_tangents_agree_with_jvp(lengths: tuple[int, int]) -> None:
    primal, tangents = tensors(lengths), tensors(lengths, seed=5)

    def attend(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        k, v = (x.repeat_interleave(2, 1) for x in (k, v))
        return torch.softmax(q @ k.mT / 8, -1) @ v

    wanted = torch.func.jvp(attend, tuple(primal), tuple(tangents))
    check(run(TANGENT, "attention_jvp", [*primal, *tangents]), wanted)


PAIRS = """
!t = tensor<?x?x?x4xf64>
func.func @f(%q: !t, %k: !t, CAPTURE) -> RESULTS {
  %w = "attn.pairs"() ({
    "attn.product"(%q, %k) : (!t, !t) -> ()
    "attn.mask"() ({
    ^bb0(%b: index, %h: index, %i: index, %j: index):
      MASK
      "attn.yield"(%keep) : (i1) -> ()
    }) : () -> ()
    EXTRA
    "attn.pair"() ({
    ^bb0(%x: f64, %b: index, %h: index, %i: index, %j: index):
      WEIGHT
      "attn.yield"(%x, %y) : (f64, f64) -> ()
    }) : () -> ()
  }) : () -> none
  BODY
}
"""
CAUSAL = "%keep = arith.cmpi sge, %i, %j : index"
STRICT = "%keep = arith.cmpi sgt, %i, %j : index"
SUMS = """%a = "attn.query_sum"(%w, %k) {weights = array<i64: 0>} : (none, !t) -> !t
  %c = "attn.key_sum"(%w, %q, %q) {weights = array<i64: 0, 1>} : (none, !t, !t) -> !t
  return %a, %c : !t, !t"""


def pairs(mask: str = CAUSAL, weight: str = "%y = arith.mulf %x, %x : f64", capture: str = "%t: f64", extra: str = "") -> str:
    text = PAIRS.replace("MASK", mask).replace("WEIGHT", weight).replace("CAPTURE", capture).replace("EXTRA", extra)
    return text.replace("RESULTS", "(!t, !t)").replace("BODY", SUMS)


def scattering(index: str, names: str, like: str, mask: str = CAUSAL) -> str:
    """A program that adds the products of all pairs at an index of a tensor %t."""
    count = names.count("%")
    scatter = f"""%s = "attn.scatter"(%w, %t) ({{
  ^bb0(%b: index, %h: index, %i: index, %j: index):
    {index}
    "attn.yield"({names}) : ({", ".join(["index"] * count)}) -> ()
  }}) {{weight = 0}} : (none, {like}) -> {like}
  return %s : {like}"""
    text = PAIRS.replace("MASK", mask).replace("WEIGHT", "%y = arith.negf %x : f64").replace("CAPTURE", f"%t: {like}")
    return text.replace("EXTRA", "").replace("RESULTS", like).replace("BODY", scatter)


def small(q_len: int = 7, kv_len: int = 9) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """q [2, 4, ., 4], k [2, 2, ., 4] and the causal products [2, 4, q_len, kv_len]."""
    rng = np.random.default_rng(4)
    q, k = rng.standard_normal((2, 4, q_len, 4)), rng.standard_normal((2, 2, kv_len, 4))
    x = q @ np.swapaxes(np.repeat(k, 2, axis=1), 2, 3)
    return q, k, np.where(np.arange(q_len)[:, None] >= np.arange(kv_len), x, 0.0)


def test_sums_of_several_terms() -> None:
    q, k, x = small()
    a, c = run(pairs(), "f", [q, k, 0.0])
    np.testing.assert_allclose(a, x @ np.repeat(k, 2, axis=1), rtol=1e-13)
    summed = np.swapaxes(x + x * x, 2, 3) @ q
    np.testing.assert_allclose(c, summed.reshape(2, 2, 2, 9, 4).sum(2), rtol=1e-13, atol=1e-14)


def test_absent_pairs_do_not_count_even_when_not_a_number() -> None:
    q, k, _ = small()
    clean = run(pairs(), "f", [q, k, 0.0])
    k[:, :, 7:] = np.nan
    a, c = run(pairs(), "f", [q, k, 0.0])
    np.testing.assert_allclose(a, clean[0], rtol=1e-12, atol=1e-13)
    np.testing.assert_allclose(c[:, :, :7], clean[1][:, :, :7], rtol=1e-12, atol=1e-13)
    assert (c[:, :, 7:] == 0).all()


def test_rows_without_keys_give_zero() -> None:
    q, k, _ = small()
    poisoned = "%z = arith.constant 0.0 : f64\n%n = arith.divf %z, %z : f64\n%row = arith.index_cast %i : index to i64\n"
    poisoned += "%f = arith.sitofp %row : i64 to f64\n%first = arith.cmpf oeq, %f, %z : f64\n%y = arith.select %first, %n, %x : f64"
    a, c = run(pairs(STRICT, poisoned), "f", [q, k, 0.0])
    assert (a[:, :, 0] == 0).all()
    assert np.isfinite(a).all()
    assert np.isfinite(c).all()


def test_scatter_adds_colliding_weights() -> None:
    q, k, x = small()
    clamped = "%c2 = arith.constant 2 : index\n%n = arith.minsi %i, %c2 : index"
    (got,) = run(scattering(clamped, "%n", "tensor<?xf64>"), "f", [q, k, np.ones(5)])
    wanted = [x[:, :, 0].sum(), x[:, :, 1].sum(), x[:, :, 2:].sum(), 0, 0]
    np.testing.assert_allclose(got, wanted, rtol=1e-13)


def test_scatter_into_a_table() -> None:
    q, k, x = small()
    (got,) = run(scattering("%n = arith.subi %i, %j : index", "%h, %n", "tensor<?x?xf64>"), "f", [q, k, np.ones((4, 8))])
    wanted = [[np.diagonal(x[:, h], -n, 1, 2).sum() for n in range(8)] for h in range(4)]
    np.testing.assert_allclose(got, wanted, rtol=1e-12, atol=1e-13)


def test_scatter_into_a_single_number() -> None:
    q, k, x = small()
    (got,) = run(scattering("", "", "tensor<f64>"), "f", [q, k, np.asarray(3.0)])
    np.testing.assert_allclose(got, x.sum(), rtol=1e-13)


def test_scatter_out_of_bounds_is_an_error_where_a_pair_is_present() -> None:
    q, k, x = small()
    text = scattering("%n = arith.subi %i, %j : index", "%n", "tensor<?xf64>")
    (got,) = run(text, "f", [q, k, np.ones(7)])
    np.testing.assert_allclose(got[0], np.trace(x, axis1=2, axis2=3).sum(), rtol=1e-12)
    with pytest.raises(OutOfBoundsError, match=r"'attn\.scatter' adds at index 6 of dimension 0, which has size 6"):
        run(text, "f", [q, k, np.ones(6)])


@pytest.mark.parametrize(
    ("bounds", "message"),
    [
        ("%c0, %c0, %c0, %sq", None),
        ("%kv_begin, %kv_end, %c9, %c9", None),
        ("%kv_end, %kv_end, %c9, %c9", "differs"),
        ("%kv_begin, %kv_begin, %c9, %c9", "differs"),
        ("%c9, %c0, %c0, %c9", "'attn.query_bounds' gives"),
    ],
    ids=["all rows", "tight", "rows left out", "too many without a mask", "not ordered"],
)
def test_query_bounds_are_used_as_a_kernel_would(bounds: str, message: str | None) -> None:
    q, k, _ = small(9, 9)
    block = """"attn.query_bounds"() ({
    ^bb0(%b: index, %h: index, %kv_begin: index, %kv_end: index):
      %c0 = arith.constant 0 : index
      %c2 = arith.constant 2 : index
      %c9 = arith.constant 9 : index
      %sq = tensor.dim %q, %c2 : !t
      "attn.yield"(BOUNDS) : (index, index, index, index) -> ()
    }) : () -> ()""".replace("BOUNDS", bounds)
    wanted = run(pairs(), "f", [q, k, 0.0])
    if message is not None and message.startswith("'"):
        with pytest.raises(EvaluationError, match=message):
            run(pairs(extra=block), "f", [q, k, 0.0], block=2, q_block=3)
        return
    got = run(pairs(extra=block), "f", [q, k, 0.0], block=2, q_block=3)
    same = all(np.allclose(x, y, rtol=1e-12, atol=1e-13) for x, y in zip(got, wanted, strict=True))
    assert same == (message is None)


ELEMENTS = """
!t = tensor<?x?x?x4xf64>
func.func @f(%q: !t, %gain: tensor<?x4xf64>) -> (!t, tensor<?x4xf64>, tensor<?x?x?xf64>) {
  %w = "attn.elements"(%q) ({
    "attn.element"() ({
    ^bb0(%b: index, %h: index, %i: index, %d: index):
      %x = tensor.extract %q[%b, %h, %i, %d] : !t
      %g = tensor.extract %gain[%h, %d] : tensor<?x4xf64>
      %y = arith.mulf %x, %g : f64
      "attn.yield"(%x, %y) : (f64, f64) -> ()
    }) : () -> ()
  }) : (!t) -> none
  %scaled = "attn.collect"(%w) {weight = 1} : (none) -> !t
  %sums = "attn.scatter"(%w, %gain) ({
  ^bb0(%b: index, %h: index, %i: index, %d: index):
    "attn.yield"(%h, %d) : (index, index) -> ()
  }) {weight = 0} : (none, tensor<?x4xf64>) -> tensor<?x4xf64>
  %dots = "attn.row_dot"(%q, %scaled) : (!t, !t) -> tensor<?x?x?xf64>
  return %scaled, %sums, %dots : !t, tensor<?x4xf64>, tensor<?x?x?xf64>
}
"""


def test_elements_are_collected_and_scattered() -> None:
    q, gain = np.random.default_rng(1).standard_normal((2, 4, 5, 4)), np.random.default_rng(2).standard_normal((4, 4))
    scaled, sums, dots = run(ELEMENTS, "f", [q, gain])
    np.testing.assert_array_equal(scaled, q * gain[:, None])
    np.testing.assert_allclose(sums, q.sum((0, 2)), rtol=1e-13)
    np.testing.assert_allclose(dots, (q * q * gain[:, None]).sum(-1), rtol=1e-12)


def test_a_function_that_calls_itself_is_an_error() -> None:
    text = "func.func @f(%x: f64) -> f64 {\n%y = call @f(%x) : (f64) -> f64\nreturn %y : f64\n}"
    with pytest.raises(EvaluationError, match="@f calls itself"):
        run(text, "f", [1.0])
