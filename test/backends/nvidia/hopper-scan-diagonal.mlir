// A scan for Hopper with the terms that products leave out, and a factor of o's rows behind all sums.
// RUN: attn-translate --to cuda %s | FileCheck %s

!t = tensor<?x?x?x64xbf16>
!s = tensor<?x?x?x64xf32>
!r = tensor<?x?x?xf32>

// The producer warp stores the factors of rows last.
// CHECK:        attn::store_shared2(rows + [[RESULT:768]] + 8 * lane,

// Sums of others first, then those of diagonal terms, whose scores are multiplied in at last.
// CHECK:        sums[2 * (c + d)] = o[4 * (c + d)] * upper.x + o[4 * (c + d) + 2] * lower.x;
// CHECK:        attn::store_shared2(shared + kSums +
// CHECK:        const float2 score = attn::load_shared2(shared + kOwn +
// CHECK:        o[4 * (c + d)] += score.x * upper.x, o[4 * (c + d) + 1] += score.y * upper.y;
// CHECK:        const float2 result = attn::load_shared2(rows + [[RESULT]] +
// CHECK-NEXT:   o[4 * (c + d)] *= result.x, o[4 * (c + d) + 1] *= result.y;
// CHECK-NEXT:   o[4 * (c + d) + 2] *= result.x, o[4 * (c + d) + 3] *= result.y;
// CHECK:        sums[2 * (c + d)] = upper.x * above.x + lower.x * below.x;
// CHECK:        attn::store_shared2(shared + kDiagonalSums + {{.*}}, total.x * score.x, total.y * score.y);
// CHECK:        attn::store_matrices_transposed(own
// CHECK:        products[{{.*}}] = sum;
// CHECK:        diagonal_2[{{.*}}] = diagonal_sum;
func.func @attention(%q: !t, %k: !t, %v: !t, %decay: !r, %factor: !t, %dt: !r) -> (!t, !r, !s, !r)
    attributes {tile.choices = {emitter = "hopper"}} {
  %o, %products, %states, %diagonal = "attn.linear_attention"(%q, %k, %v, %decay, %factor) ({
    "attn.result"() ({
    ^bb0(%x: f32, %b: index, %h: index, %t: index, %d: index):
      %e = tensor.extract %dt[%b, %h, %t] : !r
      %y = arith.mulf %x, %e : f32
      "attn.yield"(%y) : (f32) -> ()
    }) : () -> ()
  }) {heads = 1 : i64, direction = "backward", channels = "none", state = "vk", outputs = ["products", "states", "diagonal"], interval = 512 : i64,
      operandSegmentSizes = array<i32: 1, 1, 1, 1, 0, 1, 0>, resultSegmentSizes = array<i32: 1, 0, 1, 1, 1>}
    : (!t, !t, !t, !r, !t) -> (!t, !r, !s, !r)
  return %o, %products, %states, %diagonal : !t, !r, !s, !r
}
