// The second backward: sums that the first one has no names for are swept, then all pairs once more.
// RUN: attn-opt %s -p 'attn-differentiate{functions=bwd2 only=true},canonicalize,cse' | FileCheck %s

// CHECK-LABEL: @attention_bwd2(
// CHECK-SAME:    %dd_q: tensor<?x?x?x8xf32>, %dd_k: tensor<?x?x?x8xf32>, %dd_v: tensor<?x?x?x8xf32>)
// CHECK:         "attn.attention"
// CHECK:         "attn.row"() ({
// CHECK:         "attn.pairs"() ({
// CHECK-DAG:       "attn.product"(%q, %k)
// CHECK-DAG:       "attn.product"(%do, %v)
// CHECK-DAG:       "attn.product"(%dd_q, %k)
// CHECK-DAG:       "attn.product"(%q, %dd_k)
// CHECK-DAG:       "attn.product"(%do, %dd_v)
// CHECK:         "attn.query_sum"(%[[W:[0-9]+]], %dd_v, %v)
func.func @attention(%q: tensor<?x?x?x8xf32>, %k: tensor<?x?x?x8xf32>, %v: tensor<?x?x?x8xf32>) -> tensor<?x?x?x8xf32> {
  %o = "attn.attention"(%q, %k, %v) ({
    "attn.row"() ({
    ^bb0(%s: f32, %b: index, %h: index, %q_idx: index):
      %m = "attn.reduce"(%s) {kind = "max"} : (f32) -> f32
      %d = arith.subf %s, %m : f32
      %e = math.exp %d : f32
      %l = "attn.reduce"(%e) {kind = "sum"} : (f32) -> f32
      %p = arith.divf %e, %l : f32
      "attn.yield"(%p) : (f32) -> ()
    }) : () -> ()
  }) {outputs = []} : (tensor<?x?x?x8xf32>, tensor<?x?x?x8xf32>, tensor<?x?x?x8xf32>) -> tensor<?x?x?x8xf32>
  return %o : tensor<?x?x?x8xf32>
}
