// A scan of a backward: states on the way, sums of products along rows, the state in two pieces.
// RUN: attn-translate %s --to hip | FileCheck %s

!t = tensor<?x?x?x64xf16>
!s = tensor<?x?x?x64xf32>

// The factor is loaded as the results of products lie.
// CHECK:       attn::Array<attn::Block<32>::Halves, 1> {{factor\w*_tile\w*}}

// States at the beginnings of intervals, in a branch that all threads take together.
// CHECK:       for (int at = begin;
// CHECK:         if ({{.*}}) {
// CHECK:           attn::store_floats<4, 64>((float *)(states +

// What is left of the state after it was rounded is kept larger than it is, and the products with it are scaled back.
// CHECK:         [[REST:\w+]][0][r] = attn::residual_f16([[X:\w+]]);
// CHECK:         [[O:\w+]][0] *= 2048.0f;
// CHECK:         attn::multiply<__half, 32, 64, 1, 1, 1, 1, 8>([[O]], memory + {{\w+_rows}}, {{.*}}, memory + [[REST]]_rows,
// CHECK:         [[O]][0] *= (1.0f / 2048.0f);

// A row's sum has one part for each wave along it. What positions give to themselves is added behind: the diagonal of scores times rows of v.
// CHECK:         [[SUM:row_sum\w*]] += attn::from_lane([[SUM]], lane ^ 32);
// CHECK-NEXT:    if (lane < 32) ((float *)(memory + {{\w+_parts}}))[
// CHECK:         (i == j) ? product_2[0][r] : 0.0f
// CHECK:         if (wave == 0) {
// CHECK:           products[
func.func @attention(%q: !t, %k: !t, %v: !t, %decay: tensor<?x?x?xf32>, %factor: !t) -> (!t, tensor<?x?x?xf32>, !s) {
  %o, %products, %states = "attn.linear_attention"(%q, %k, %v, %decay, %factor) ({
  ^bb0:
  }) {heads = 0 : i64, direction = "forward", channels = "none", state = "vk", outputs = ["products", "states"], interval = 512 : i64,
      operandSegmentSizes = array<i32: 1, 1, 1, 1, 0, 1, 0>, resultSegmentSizes = array<i32: 1, 0, 1, 1, 0>}
    : (!t, !t, !t, tensor<?x?x?xf32>, !t) -> (!t, tensor<?x?x?xf32>, !s)
  return %o, %products, %states : !t, tensor<?x?x?xf32>, !s
}
