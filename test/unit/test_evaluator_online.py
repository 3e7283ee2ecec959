"""The reference evaluator on `attn.online`, bounds and block masks: right ones agree with stage 0, wrong ones do not."""

import numpy as np
import pytest

from attn_mlir.reference import EvaluationError, OutOfBoundsError, compare, evaluate, rows_with_keys
from programs import parsed, run, text_of

ONLINE = text_of("online-causal-softmax")
PLAIN = text_of("causal-softmax")
SIGNATURE = "%q: tensor<?x?x?x64xf32>, %k: tensor<?x?x?x64xf32>, %v: tensor<?x?x?x64xf32>"


def inputs(q_len: int = 17, kv_len: int = 23, seed: int = 0) -> list[np.ndarray]:
    rng = np.random.default_rng(seed)
    return [rng.standard_normal((2, heads, n, 64)) for heads, n in ((4, q_len), (2, kv_len), (2, kv_len))]


def error(got: list[np.ndarray], wanted: list[np.ndarray]) -> float:
    return max(float(np.abs(a - b).max(initial=0.0)) for a, b in zip(got, wanted, strict=True))


@pytest.mark.parametrize("lengths", [(1, 1), (17, 23), (23, 17), (40, 40)])
@pytest.mark.parametrize(
    "options",
    [{}, {"block": 1, "q_block": 1}, {"block": (5, 1, 3), "q_block": 4}, {"block": 4, "split": 3}, {"split": 2}, {"block": 7, "split": 9}],
)
def test_online_agrees_with_definition(lengths: tuple[int, int], options: dict[str, int]) -> None:
    given = inputs(*lengths)
    assert error(run(ONLINE, given, **options), run(PLAIN, given)) < 1e-13


@pytest.mark.parametrize(
    ("right", "wrong"),
    [
        ("%end = arith.minsi %q_end, %skv", "%end = arith.minsi %0, %skv"),
        ("arith.minsi %0, %skv : index\n      %end", "arith.minsi %q_end, %skv : index\n      %end"),
        ("%rescale = math.exp %dm : f32", "%rescale = math.exp2 %dm : f32"),
        ("%l_new = arith.addf %l_scaled", "%l_new = arith.addf %l"),
    ],
    ids=["end too small", "full range too long", "wrong rescale", "sum not rescaled"],
)
def test_wrong_online_program_is_seen(right: str, wrong: str) -> None:
    assert right in ONLINE
    text = ONLINE.replace(right, wrong).replace("rows_nonempty = true", "rows_nonempty = false")
    given = inputs(23, 23)
    got = run(text, given, block=4, q_block=4)
    assert not error(got, run(PLAIN, given)) < 1e-6


def test_wrong_merge_is_seen() -> None:
    text = ONLINE.replace("%lb = arith.mulf %l_b, %b", "%lb = arith.mulf %l_b, %a")
    given = inputs(23, 23)
    assert text != ONLINE
    assert error(run(text, given, block=4), run(PLAIN, given)) < 1e-13
    assert not error(run(text, given, block=4, split=2), run(PLAIN, given)) < 1e-6


def test_split_needs_a_merge() -> None:
    text = ONLINE[: ONLINE.index('    "attn.merge"')] + ONLINE[ONLINE.index('    "attn.finalize"') :]
    with pytest.raises(EvaluationError, match=r"has no 'attn\.merge'"):
        run(text, inputs(), split=2)


def test_bounds_out_of_order_are_an_error() -> None:
    text = ONLINE.replace("%0 = arith.addi %q_begin, %c1", "%0 = arith.addi %q_end, %c1")
    with pytest.raises(EvaluationError, match=r"'attn.bounds' gives \[0, 0, 5, 4\], which is not ordered within \[0, 9\]"):
        run(text, inputs(8, 9), q_block=4)


def test_false_proof_is_an_error() -> None:
    text = text_of("empty-rows").replace('outputs = ["lse"]', 'outputs = ["lse"], rows_nonempty = true')
    with pytest.raises(EvaluationError, match="rows_nonempty = true, but row 0 of head 0 in batch 0 has no key"):
        run(text, inputs())


def test_rows_with_keys() -> None:
    with parsed(text_of("empty-rows")) as module:
        filled = rows_with_keys(module, inputs(9, 9))
    assert filled.shape == (2, 4, 9)
    assert (filled == (np.arange(9) >= 5)).all()


BLOCK_MASK = """    "attn.block_mask"() ({
    ^bb0(%b: index, %h: index, %q_begin: index, %q_end: index, %kv_begin: index, %kv_end: index):
      %any = arith.cmpi sgt, %q_end, %kv_begin : index
      %all = arith.cmpi sge, %q_begin, %kv_end : index
      "attn.yield"(%any, %all) : (i1, i1) -> ()
    }) : () -> ()
"""


@pytest.mark.parametrize(
    ("right", "wrong", "holds"),
    [
        ("", "", True),
        ("sgt, %q_end, %kv_begin", "sgt, %q_begin, %kv_begin", False),
        ("sge, %q_begin, %kv_end", "sge, %q_end, %kv_end", False),
    ],
    ids=["right", "skips too much", "unmasks too much"],
)
def test_block_mask_decides(right: str, wrong: str, holds: bool) -> None:
    text = PLAIN.replace('    "attn.row"', BLOCK_MASK.replace(right, wrong) + '    "attn.row"')
    given = inputs(20, 20)
    assert (error(run(text, given, block=4, q_block=4), run(PLAIN, given)) < 1e-13) is holds


def document_program(begin: str = "%q_begin", end: str = "%q_end") -> str:
    """Document masking whose block mask compares the ranges of ids over [begin, end) and over the keys."""
    block_mask = f"""    "attn.block_mask"() ({{
    ^bb0(%b: index, %h: index, %q_begin: index, %q_end: index, %kv_begin: index, %kv_end: index):
      %far = arith.constant 99 : index
      %q_min, %q_max = "attn.range"(%document, {begin}, {end}) : (tensor<?xi32>, index, index) -> (index, index)
      %kv_min, %kv_max = "attn.range"(%document, %kv_begin, %kv_end) : (tensor<?xi32>, index, index) -> (index, index)
      %x = arith.cmpi sle, %q_min, %kv_max : index
      %y = arith.cmpi sle, %kv_min, %q_max : index
      %any = arith.andi %x, %y : i1
      %one = arith.cmpi eq, %q_min, %q_max : index
      %other = arith.cmpi eq, %kv_min, %kv_max : index
      %same = arith.cmpi eq, %q_min, %kv_min : index
      %both = arith.andi %one, %other : i1
      %all = arith.andi %both, %same : i1
      "attn.yield"(%any, %all) : (i1, i1) -> ()
    }}) : () -> ()
"""
    return text_of("document").replace('    "attn.row"', block_mask + '    "attn.row"')


def test_range_scans_its_box() -> None:
    given = inputs(20, 20)
    ids = np.array([0, 0, 0, 2, 2, 1, 1, 1, 1, 1, 1, 1, 3, 3, 3, 3, 0, 0, 0, 0])
    wanted = run(text_of("document"), [*given, ids])
    for options in ({"block": 4, "q_block": 4}, {"block": 3, "q_block": 5}):
        assert error(run(document_program(), [*given, ids], **options), wanted) < 1e-13
    assert not error(run(document_program(end="%kv_end", begin="%kv_begin"), [*given, ids], block=4, q_block=4), wanted) < 1e-6


def test_range_outside_of_its_tensor_is_an_error() -> None:
    with pytest.raises(OutOfBoundsError, match=r"'attn.range' scans \[\[0\], \[99\]\) of a tensor of shape \[20\]"):
        run(document_program(end="%far"), [*inputs(20, 20), np.zeros(20, int)], q_block=4)


GATHER = f"""func.func @attention({SIGNATURE}, %t: tensor<?xf32>) -> tensor<?x?x?x64xf32> {{
  %o = "attn.attention"(%q, %k, %v) ({{
    "attn.mask"() ({{
    ^bb0(%b: index, %h: index, %q_idx: index, %kv_idx: index):
      %0 = arith.cmpi sge, %q_idx, %kv_idx : index
      "attn.yield"(%0) : (i1) -> ()
    }}) : () -> ()
    "attn.score"() ({{
    ^bb0(%s: f32, %b: index, %h: index, %q_idx: index, %kv_idx: index):
      %at = arith.subi %q_idx, %kv_idx : index
      %x = tensor.extract %t[%at] : tensor<?xf32>
      "attn.yield"(%x) : (f32) -> ()
    }}) : () -> ()
    "attn.row"() ({{
    ^bb0(%s: f32, %b: index, %h: index, %q_idx: index):
      "attn.yield"(%s) : (f32) -> ()
    }}) : () -> ()
  }}) {{outputs = []}} : (tensor<?x?x?x64xf32>, tensor<?x?x?x64xf32>, tensor<?x?x?x64xf32>) -> tensor<?x?x?x64xf32>
  return %o : tensor<?x?x?x64xf32>
}}
"""


def test_reads_must_be_in_bounds_where_they_count() -> None:
    given, table = inputs(9, 9), np.arange(1.0, 10.0)
    (o,) = run(GATHER, [*given, table])
    weights = np.where(np.tri(9) > 0, np.arange(9)[:, None] - np.arange(9) + 1.0, 0.0)
    np.testing.assert_allclose(o, weights @ np.repeat(given[2], 2, axis=1))
    with pytest.raises(OutOfBoundsError, match="reads index 8 of dimension 0, which has size 8"):
        run(GATHER, [*given, table[:8]])
    with pytest.raises(IndexError, match="-:11:12: error"):
        run(GATHER, [*given, table[:0]])


def test_missing_rule_prints_the_op() -> None:
    text = PLAIN.replace("math.exp", "math.acosh")
    with pytest.raises(EvaluationError, match=r"no rule for 'math.acosh': %\w+ = math.acosh"):
        run(text, inputs())


def test_row_output_must_not_vary() -> None:
    with pytest.raises(EvaluationError, match="row output 'lse' varies along the row"):
        run(PLAIN.replace("(%p, %lse)", "(%p, %d)"), inputs())


def test_wrong_inputs_are_named() -> None:
    q, k, v = inputs()
    with pytest.raises(EvaluationError, match="takes 3 arguments, got 2"):
        run(PLAIN, [q, k])
    with pytest.raises(EvaluationError, match="argument 1 has type"):
        run(PLAIN, [q, k[..., :5], v])
    with pytest.raises(EvaluationError, match="4 query heads are not a multiple of 3"):
        run(PLAIN, [q, np.ones((2, 3, 5, 64)), np.ones((2, 3, 5, 64))])
    with pytest.raises(EvaluationError, match="no function @other with a body; found @attention"):
        run(PLAIN, [q, k, v], function="other")


def test_row_outputs_without_keys_need_only_be_finite() -> None:
    with parsed(text_of("empty-rows").replace('"lse"', '"most"').replace("(%p, %lse)", "(%p, %m)")) as module:
        given = inputs(9, 9)
        wanted, filled = evaluate(module, given), rows_with_keys(module, given)
        changed = [wanted[0], np.where(filled, wanted[1], 0.0)]
        assert (wanted[1][~filled] == np.float32(-3.4028235e38)).all()
        assert compare(module, given, changed, filled=filled)[1].absolute == 0
        assert compare(module, given, changed)[1].absolute > 1
        assert compare(module, given, [wanted[0] + ~filled[..., None], wanted[1]], filled=filled)[0].absolute == 1
        assert compare(module, given, [wanted[0], np.where(filled, wanted[1], np.nan)], filled=filled)[1].absolute == np.inf
