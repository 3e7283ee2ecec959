// A score that is used twice is counted once each way: s = (2 x)^2 has derivative 8 x.
// RUN: attn-opt %s -p 'attn-differentiate{functions=bwd only=true},canonicalize,cse' | FileCheck %s

// CHECK-LABEL: @attention_bwd
// CHECK:         %[[C4:[a-z0-9_]+]] = arith.constant 4.000000e+00
// CHECK-NOT:     "attn.attention"
// CHECK-NOT:     "attn.row_dot"
// CHECK:         "attn.pair"() ({
// CHECK-NEXT:    ^bb0(%[[X:[a-z0-9_]+]]: f32, %[[DP:[a-z0-9_]+]]: f32,
// CHECK-NEXT:      %[[Y:[a-z0-9_]+]] = arith.mulf %[[X]], %[[TWO:[a-z0-9_]+]] : f32
// CHECK-NEXT:      %[[P:[a-z0-9_]+]] = arith.mulf %[[Y]], %[[Y]] : f32
// CHECK-NEXT:      %[[XDP:[a-z0-9_]+]] = arith.mulf %[[X]], %[[DP]] : f32
// CHECK-NEXT:      %[[FOUR:[a-z0-9_]+]] = arith.mulf %[[XDP]], %[[C4]] : f32
// CHECK-NEXT:      %[[DX:[a-z0-9_]+]] = arith.mulf %[[FOUR]], %[[TWO]] : f32
// CHECK-NEXT:      "attn.yield"(%[[P]], %[[DX]])
// CHECK:         "attn.key_sum"(%[[W:[0-9]+]], %do) {weights = array<i64: 0>}
// CHECK:         "attn.query_sum"(%[[W]], %k) {weights = array<i64: 1>}
// CHECK:         "attn.key_sum"(%[[W]], %q) {weights = array<i64: 1>}
func.func @attention(%q: tensor<?x?x?x8xf32>, %k: tensor<?x?x?x8xf32>, %v: tensor<?x?x?x8xf32>) -> tensor<?x?x?x8xf32> {
  %o = "attn.attention"(%q, %k, %v) ({
    "attn.score"() ({
    ^bb0(%x: f32, %b: index, %h: index, %q_idx: index, %kv_idx: index):
      %c2 = arith.constant 2.0 : f32
      %y = arith.mulf %x, %c2 : f32
      %s = arith.mulf %y, %y : f32
      "attn.yield"(%s) : (f32) -> ()
    }) : () -> ()
    "attn.row"() ({
    ^bb0(%s: f32, %b: index, %h: index, %q_idx: index):
      "attn.yield"(%s) : (f32) -> ()
    }) : () -> ()
  }) {outputs = []} : (tensor<?x?x?x8xf32>, tensor<?x?x?x8xf32>, tensor<?x?x?x8xf32>) -> tensor<?x?x?x8xf32>
  return %o : tensor<?x?x?x8xf32>
}
