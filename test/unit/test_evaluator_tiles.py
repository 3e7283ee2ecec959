"""The reference evaluator on kernels in the `tile` dialect, written by hand."""

import numpy as np
import pytest

from attn_mlir.passes.pipeline import Pipeline
from attn_mlir.reference import EvaluationError, OutOfBoundsError, evaluate
from attn_mlir.registry import registry
from programs import parsed, run, text_of

# o = relu(q k^T) v over all keys, and the largest score of every row.
KERNEL = """
func.func @attention(%q: memref<?x?x?x4xf32>, %k: memref<?x?x?x4xf32>, %v: memref<?x?x?x3xf32>, %scale: memref<?xf32>,
                     %o: memref<?x?x?x3xf32>, %most: memref<?x?x?xf32>) attributes {tile.kernel = {block_q = 4 : i64, block_kv = 3 : i64}} {
  %program = "tile.program_id"() {axis = 0 : i64} : () -> index
  %h = "tile.program_id"() {axis = 1 : i64} : () -> index
  %b = "tile.program_id"() {axis = 2 : i64} : () -> index
  %c0 = arith.constant 0 : index
  %c2 = arith.constant 2 : index
  %c3 = arith.constant 3 : index
  %c4 = arith.constant 4 : index
  %q_len = memref.dim %q, %c2 : memref<?x?x?x4xf32>
  %kv_len = memref.dim %k, %c2 : memref<?x?x?x4xf32>
  %begin = arith.muli %program, %c4 : index
  %left = arith.subi %q_len, %begin : index
  %rows = arith.minsi %left, %c4 : index
  %qt = "tile.load"(%q, %b, %h, %begin, %rows) : (memref<?x?x?x4xf32>, index, index, index, index) -> tensor<4x4xf32>
  %zero = arith.constant 0.0 : f32
  %low = arith.constant -3.40282347E+38 : f32
  %acc0 = "tile.fill"(%zero) : (f32) -> tensor<4x3xf32>
  %m0 = "tile.fill"(%low) : (f32) -> tensor<4xf32>
  %acc, %m = scf.for %kv = %c0 to %kv_len step %c3 iter_args(%a = %acc0, %mi = %m0) -> (tensor<4x3xf32>, tensor<4xf32>) {
    %rest = arith.subi %kv_len, %kv : index
    %count = arith.minsi %rest, %c3 : index
    %kt = "tile.load"(%k, %b, %h, %kv, %count) : (memref<?x?x?x4xf32>, index, index, index, index) -> tensor<?x4xf32>
    %vt = "tile.load"(%v, %b, %h, %kv, %count) : (memref<?x?x?x3xf32>, index, index, index, index) -> tensor<?x3xf32>
    %s = "tile.dot"(%qt, %kt) {transpose_b = true} : (tensor<4x4xf32>, tensor<?x4xf32>) -> tensor<4x?xf32>
    %p, %top = "tile.map"(%c4, %count) ({
    ^bb0(%i: index, %j: index):
      %x = tensor.extract %s[%i, %j] : tensor<4x?xf32>
      %f = memref.load %scale[%h] : memref<?xf32>
      %y = arith.mulf %x, %f : f32
      %r = arith.maximumf %y, %zero : f32
      "tile.yield"(%r, %y) {operandSegmentSizes = array<i32: 1, 1>} : (f32, f32) -> ()
    }) {reductions = ["max"], resultSegmentSizes = array<i32: 1, 1>} : (index, index) -> (tensor<4x?xf32>, tensor<4xf32>)
    %mn = arith.maximumf %mi, %top : tensor<4xf32>
    %an = "tile.dot_add"(%a, %p, %vt) {transpose_b = false} : (tensor<4x3xf32>, tensor<4x?xf32>, tensor<?x3xf32>) -> tensor<4x3xf32>
    scf.yield %an, %mn : tensor<4x3xf32>, tensor<4xf32>
  }
  "tile.store"(%acc, %o, %b, %h, %begin, %rows) : (tensor<4x3xf32>, memref<?x?x?x3xf32>, index, index, index, index) -> ()
  "tile.store"(%m, %most, %b, %h, %begin, %rows) : (tensor<4xf32>, memref<?x?x?xf32>, index, index, index, index) -> ()
  return
}
"""


def inputs(q_len: int = 10, kv_len: int = 7) -> list[np.ndarray]:
    rng = np.random.default_rng(0)
    return [rng.standard_normal((2, 3, n, d)) for n, d in ((q_len, 4), (kv_len, 4), (kv_len, 3))] + [rng.standard_normal(3)]


def test_hand_written_kernel() -> None:
    q, k, v, scale = inputs()
    s = np.einsum("bhid,bhjd->bhij", q, k) * scale[:, None, None]
    o, most = run(KERNEL, [q, k, v, scale])
    np.testing.assert_allclose(o, np.maximum(s, 0) @ v, rtol=1e-12)
    np.testing.assert_allclose(most, s.max(-1), rtol=1e-12)


def test_rescaling_product() -> None:
    # Doubling the accumulator before each of the blocks of 3, 3 and 1 keys weighs them by 4, 2 and 1.
    text = KERNEL.replace('"tile.dot_add"(%a,', '"tile.dot_rescale"(%a, %two,')
    text = text.replace(": (tensor<4x3xf32>, tensor<4x?xf32>,", ": (tensor<4x3xf32>, tensor<4xf32>, tensor<4x?xf32>,")
    text = text.replace("%acc0 =", '%twice = arith.constant 2.0 : f32\n  %two = "tile.fill"(%twice) : (f32) -> tensor<4xf32>\n  %acc0 =')
    q, k, v, scale = inputs()
    s = np.einsum("bhid,bhjd->bhij", q, k) * scale[:, None, None]
    np.testing.assert_allclose(run(text, [q, k, v, scale])[0], (np.maximum(s, 0) * [4, 4, 4, 2, 2, 2, 1]) @ v, rtol=1e-12)


def test_rows_never_stored_stay_nan() -> None:
    o, most = run(KERNEL.replace("(%m, %most, %b, %h, %begin, %rows)", "(%m, %most, %b, %h, %begin, %c2)"), inputs())
    assert np.isfinite(o).all()
    assert (np.isnan(most) == (np.arange(10) % 4 >= 2)).all()


@pytest.mark.parametrize(
    ("right", "wrong", "message"),
    [
        ('"tile.load"(%q, %b, %h, %begin, %rows)', '"tile.load"(%q, %b, %h, %begin, %c4)', r"accesses batch 0, head 0, rows \[8, 12\)"),
        ('"tile.load"(%k, %b, %h, %kv, %count)', '"tile.load"(%k, %b, %h, %kv, %c3)', r"rows \[6, 9\) of a memref of shape \[2, 3, 7, 4\]"),
        ("(%acc, %o, %b, %h, %begin, %rows)", "(%acc, %o, %b, %h, %begin, %c4)", r"'tile.store' accesses .* rows \[8, 12\)"),
        ("memref.load %scale[%h]", "memref.load %scale[%c3]", "reads index 3 of dimension 0, which has size 3"),
        ('"tile.load"(%v, %b, %h, %kv, %count)', '"tile.load"(%v, %b, %h, %c0, %c2)', r"multiplies tiles of shapes \[4, 3\] and \[2, 3\]"),
        ('"tile.map"(%c4, %count)', '"tile.map"(%c3, %count)', r"makes a tile of shape \[3, 3\] as tensor<4x\?xf32>"),
        ("step %c3", "step %c0", "'scf.for' steps by 0"),
    ],
)
def test_accesses_are_checked(right: str, wrong: str, message: str) -> None:
    assert right in KERNEL
    with pytest.raises(EvaluationError, match=message):
        run(KERNEL.replace(right, wrong), inputs())
    assert issubclass(OutOfBoundsError, IndexError)


@pytest.mark.parametrize("lengths", [(1, 1), (17, 23), (23, 17)])
@pytest.mark.parametrize("blocks", [(8, 5), (64, 64), (1, 1)])
def test_tiled_attention_agrees_with_its_definition(lengths: tuple[int, int], blocks: tuple[int, int]) -> None:
    rng = np.random.default_rng(1)
    given = [rng.standard_normal((2, heads, n, 64)) for heads, n in ((4, lengths[0]), (2, lengths[1]), (2, lengths[1]))]
    with parsed(text_of("online-causal-softmax")) as module:
        Pipeline.parse(f"attn-tile{{block-q={blocks[0]} block-kv={blocks[1]}}}", registry()).run(module)
        got = evaluate(module, given)
    for mine, theirs in zip(got, run(text_of("causal-softmax"), given), strict=True):
        np.testing.assert_allclose(mine, theirs, rtol=1e-12, atol=1e-13)


def test_a_tile_that_does_not_fit_into_memory() -> None:
    text = """
      func.func @attention(%out: memref<?x?x?x8xf32>) attributes {tile.kernel = {block_q = 16, block_kv = 32, grid = "rows", score = f32}} {
        %many = arith.constant 9223372036854775807 : index
        %w = "tile.map"(%many) ({
        ^bb0(%i: index):
          %x = arith.constant 1.0 : f32
          "tile.yield"(%x) {operandSegmentSizes = array<i32: 1, 0>} : (f32) -> ()
        }) {reductions = [], resultSegmentSizes = array<i32: 1, 0>} : (index) -> tensor<?xf32>
        return
      }"""
    with parsed(text) as module, pytest.raises(EvaluationError, match=r"'tile.map' makes a tile of \[9223372036854775807\]"):
        evaluate(module, [np.zeros((1, 1, 1, 8), np.float32)])
