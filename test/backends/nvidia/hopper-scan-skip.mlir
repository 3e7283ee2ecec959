// A scan for Hopper whose rows of o get of their own row of v: it stands on the diagonal of weights, of which each warp has few blocks.
// RUN: attn-translate --to cuda %s | FileCheck %s

!t = tensor<?x?x?x64xbf16>

// CHECK:        attn::store_shared2(rows + [[SKIP:768]] + 8 * lane,
// CHECK:        skip_0 = lane / 8 == lane % 4 ? attn::load_shared(rows + [[SKIP]] + 4 * (row)) : 0.0f;
// CHECK:        const float diagonal[4] =
// CHECK:        pair[e] =
// CHECK:        if (warpgroup * 64 + 8 * (c + d) == 16 * warp + 8 * h) pair[0] += diagonal[2 * h], pair[1] += diagonal[2 * h + 1];
// CHECK-NEXT:   packed[2 * d + h] = attn::pack_bf16(pair[0], pair[1]);
func.func @attention(%q: !t, %k: !t, %v: !t, %decay: tensor<?x?x?xf32>, %few: tensor<?xf32>) -> !t
    attributes {tile.choices = {emitter = "hopper"}} {
  %o = "attn.linear_attention"(%q, %k, %v, %decay) ({
    "attn.skip"() ({
    ^bb0(%b: index, %h: index, %t: index):
      %e = tensor.extract %few[%h] : tensor<?xf32>
      "attn.yield"(%e) : (f32) -> ()
    }) : () -> ()
  }) {heads = 2 : i64, direction = "forward", channels = "none", state = "kv", outputs = [],
      operandSegmentSizes = array<i32: 1, 1, 1, 1, 0, 0, 0>, resultSegmentSizes = array<i32: 1, 0, 0, 0, 0>}
    : (!t, !t, !t, tensor<?x?x?xf32>) -> !t
  return %o : !t
}
