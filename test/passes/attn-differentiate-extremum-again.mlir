// The maximum of values that read a sum: rounding may have made another number of it in the forward pass, so that the keys that attain
// it are found among values that are computed again, of the sum as it is known.
// RUN: attn-opt %s -p 'attn-differentiate{functions=bwd+jvp only=true},canonicalize,cse' | FileCheck %s

// CHECK-LABEL: @attention_bwd(
// CHECK-SAME:    %[[SAVED:saved_sum]]: tensor<?x?x?xf32>
// CHECK:         %[[SWEPT:[0-9]+]]:4 = "attn.attention"
// CHECK:           %[[SUM:.*]] = tensor.extract %[[SAVED]]
// CHECK-NEXT:      %[[VALUE:.*]] = arith.mulf %s, %[[SUM]]
// CHECK-NEXT:      %[[MAX:.*]] = "attn.reduce"(%[[VALUE]]) {kind = "max"}
// CHECK-NEXT:      %[[IS:.*]] = arith.cmpf oeq, %[[VALUE]], %[[MAX]]
// CHECK:         "attn.pair"
// CHECK:           %[[SUM:.*]] = tensor.extract %[[SAVED]]
// CHECK-NEXT:      %[[VALUE:.*]] = arith.mulf %x, %[[SUM]]
// CHECK-NEXT:      %[[MAX:.*]] = tensor.extract %[[SWEPT]]#1
// CHECK-NEXT:      arith.cmpf oeq, %[[VALUE]], %[[MAX]]

// The tangent needs another pass for that: one for the sums, one for the maximum and what it counts.
// CHECK-LABEL: @attention_jvp(
// CHECK:         %[[FIRST:[0-9]+]]:3 = "attn.attention"
// CHECK-NOT:       {kind = "max"}
// CHECK:         outputs = ["sum", "sum_dot"]
// CHECK:         "attn.attention"
// CHECK:           %[[SUM:.*]] = tensor.extract %[[FIRST]]#1
// CHECK-NEXT:      %[[VALUE:.*]] = arith.mulf %s, %[[SUM]]
// CHECK-NEXT:      %[[MAX:.*]] = "attn.reduce"(%[[VALUE]]) {kind = "max"}
// CHECK-NEXT:      arith.cmpf oeq, %[[VALUE]], %[[MAX]]
func.func @attention(%q: tensor<?x?x?x8xf32>, %k: tensor<?x?x?x8xf32>, %v: tensor<?x?x?x8xf32>) -> (tensor<?x?x?x8xf32>, tensor<?x?x?xf32>) {
  %o, %most = "attn.attention"(%q, %k, %v) ({
    "attn.row"() ({
    ^bb0(%s: f32, %b: index, %h: index, %q_idx: index):
      %total = "attn.reduce"(%s) {kind = "sum"} : (f32) -> f32
      %x = arith.mulf %s, %total : f32
      %most = "attn.reduce"(%x) {kind = "max"} : (f32) -> f32
      "attn.yield"(%s, %most) : (f32, f32) -> ()
    }) : () -> ()
  }) {outputs = ["most"]} : (tensor<?x?x?x8xf32>, tensor<?x?x?x8xf32>, tensor<?x?x?x8xf32>) -> (tensor<?x?x?x8xf32>, tensor<?x?x?xf32>)
  return %o, %most : tensor<?x?x?x8xf32>, tensor<?x?x?xf32>
}
