// Softmax: sum_j dp_j p_j is <do, o>, so no pass is needed; the adjoint of the maximum is zero and dropped.
// RUN: attn-opt %s -p 'attn-differentiate{functions=bwd only=true},canonicalize,cse' | FileCheck %s

// CHECK-LABEL: @attention_bwd(
// CHECK-SAME:    %saved_max: tensor<?x?x?xf32>, %saved_sum: tensor<?x?x?xf32>, %do: tensor<?x?x?x8xf32>)
// CHECK-NOT:     "attn.attention"
// CHECK:         %[[DELTA:[a-z0-9_]+]] = "attn.row_dot"(%do, %o)
// CHECK:         "attn.elements"
// CHECK:           %[[L:[a-z0-9_]+]] = tensor.extract %saved_sum
// CHECK-NEXT:      %[[INVERSE:[a-z0-9_]+]] = arith.divf %{{.*}}, %[[L]] : f32
// CHECK-NEXT:      %[[D:[a-z0-9_]+]] = tensor.extract %[[DELTA]]
// CHECK-NEXT:      %[[NEGATIVE:[a-z0-9_]+]] = arith.negf %[[INVERSE]] : f32
// CHECK-NEXT:      %[[DL:[a-z0-9_]+]] = arith.mulf %[[D]], %[[NEGATIVE]] : f32
// CHECK-NEXT:      "attn.yield"(%[[INVERSE]], %[[DL]])
// CHECK:         "attn.product"(%q, %k)
// CHECK-NEXT:    "attn.product"(%do, %v)
// CHECK:         "attn.pair"() ({
// CHECK-NOT:       cmpf
// CHECK:           %[[E:[a-z0-9_]+]] = math.exp
// CHECK-NOT:       math.exp
// CHECK-NOT:       arith.divf
// CHECK:         }) : () -> none
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
