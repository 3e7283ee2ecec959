// s - mean s: d p / d mean is -1 for every key, no multiple of p, so the sum of dp_j is swept before the gradients.
// RUN: attn-opt %s -p 'attn-differentiate{functions=bwd only=true},canonicalize,cse' | FileCheck %s

// CHECK-LABEL: @attention_bwd(
// CHECK:         %[[PASS:[0-9]+]]:2 = "attn.attention"(%do, %v, %v) ({
// CHECK:           "attn.row"() ({
// CHECK-NEXT:      ^bb0(%[[DP:[a-z0-9_]+]]: f32,
// CHECK-NEXT:        %[[SUM:[a-z0-9_]+]] = "attn.reduce"(%[[DP]]) {kind = "sum"}
// CHECK-NEXT:        "attn.yield"(%[[ZERO:[a-z0-9_]+]], %[[SUM]])
// CHECK:         "attn.elements"(
// CHECK:           tensor.extract %[[PASS]]#1
// CHECK:         "attn.pair"() ({
func.func @attention(%q: tensor<?x?x?x8xf32>, %k: tensor<?x?x?x8xf32>, %v: tensor<?x?x?x8xf32>) -> tensor<?x?x?x8xf32> {
  %o = "attn.attention"(%q, %k, %v) ({
    "attn.row"() ({
    ^bb0(%s: f32, %b: index, %h: index, %q_idx: index):
      %one = arith.constant 1.0 : f32
      %n = "attn.reduce"(%one) {kind = "sum"} : (f32) -> f32
      %t = "attn.reduce"(%s) {kind = "sum"} : (f32) -> f32
      %mean = arith.divf %t, %n : f32
      %c = arith.subf %s, %mean : f32
      "attn.yield"(%c) : (f32) -> ()
    }) : () -> ()
  }) {outputs = []} : (tensor<?x?x?x8xf32>, tensor<?x?x?x8xf32>, tensor<?x?x?x8xf32>) -> tensor<?x?x?x8xf32>
  return %o : tensor<?x?x?x8xf32>
}
