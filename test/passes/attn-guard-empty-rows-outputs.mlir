// All outputs of a fully masked row are zero. Saved values of such a row may be anything: what they divide is guarded by a count.
// RUN: attn-opt %inputs/derivatives/softmax-tangent.mlir -p 'attn-online-rewrite,attn-guard-empty-rows' | FileCheck %s --check-prefix=TANGENT
// RUN: attn-opt %s -p 'attn-online-rewrite,attn-guard-empty-rows' | FileCheck %s

// TANGENT:      "attn.finalize"
// TANGENT:        %[[EMPTY:[0-9]+]] = arith.cmpf oeq, %max
// TANGENT:        %[[O:[a-z0-9_]+]] = arith.select %[[EMPTY]]
// TANGENT:        %[[O_DOT:[a-z0-9_]+]] = arith.select %[[EMPTY]]
// TANGENT-NEXT:   "attn.yield"(%[[O]], %[[O_DOT]])

// CHECK:        "attn.finalize"() ({
// CHECK-NEXT:   ^bb0(%[[ACC:[a-z0-9_]+]]: f32, {{.*}}, %[[COUNT:[a-z0-9_]+]]: f32):
// CHECK-NEXT:     %[[L:[a-z0-9_]+]] = tensor.extract
// CHECK-NEXT:     arith.divf %[[ACC]], %[[L]]
// CHECK:          arith.cmpf oeq, %[[COUNT]],
// CHECK:          %[[O:[a-z0-9_]+]] = arith.select
// CHECK-NEXT:     "attn.yield"(%[[O]])
func.func @attention(%q: tensor<?x?x?x8xf32>, %k: tensor<?x?x?x8xf32>, %v: tensor<?x?x?x8xf32>, %l: tensor<?x?x?xf32>) -> tensor<?x?x?x8xf32> {
  %o = "attn.attention"(%q, %k, %v) ({
    "attn.row"() ({
    ^bb0(%s: f32, %b: index, %h: index, %q_idx: index):
      %row_sum = tensor.extract %l[%b, %h, %q_idx] : tensor<?x?x?xf32>
      %e = math.exp %s : f32
      %p = arith.divf %e, %row_sum : f32
      "attn.yield"(%p) : (f32) -> ()
    }) : () -> ()
  }) {outputs = []} : (tensor<?x?x?x8xf32>, tensor<?x?x?x8xf32>, tensor<?x?x?x8xf32>) -> tensor<?x?x?x8xf32>
  return %o : tensor<?x?x?x8xf32>
}
