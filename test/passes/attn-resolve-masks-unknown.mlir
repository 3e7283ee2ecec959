// RUN: attn-opt %s -p attn-resolve-masks | FileCheck %s

// A condition on floats is not understood: it can be true or false anywhere. The causal part still bounds the keys,
// no position counts as surely present, and a block mask would add nothing.

// CHECK:         "attn.bounds"() ({
// CHECK-NEXT:    ^bb0(%{{[^:]*}}: index, %{{[^:]*}}: index, %{{[^:]*}}: index, %[[Q_END:[^:]*]]: index):
// CHECK:           %[[END:.*]] = arith.minsi %[[Q_END]], %{{.*}} : index
// CHECK-NEXT:      "attn.yield"(%[[C0:.*]], %[[C0]], %[[C0]], %[[END]])
// CHECK-NOT:     attn.block_mask
// CHECK:         rows_nonempty = false
func.func @attention(%q: tensor<?x?x?x8xf32>, %k: tensor<?x?x?x8xf32>, %v: tensor<?x?x?x8xf32>, %gate: tensor<?xf32>) -> tensor<?x?x?x8xf32> {
  %zero = arith.constant 0.0 : f32
  %o = "attn.attention"(%q, %k, %v) ({
    "attn.mask"() ({
    ^bb0(%b: index, %h: index, %q_idx: index, %kv_idx: index):
      %0 = tensor.extract %gate[%kv_idx] : tensor<?xf32>
      %1 = arith.cmpf ogt, %0, %zero : f32
      %2 = arith.cmpi sge, %q_idx, %kv_idx : index
      %3 = arith.andi %1, %2 : i1
      "attn.yield"(%3) : (i1) -> ()
    }) : () -> ()
    "attn.row"() ({
    ^bb0(%s: f32, %b: index, %h: index, %q_idx: index):
      "attn.yield"(%s) : (f32) -> ()
    }) : () -> ()
  }) {outputs = []} : (tensor<?x?x?x8xf32>, tensor<?x?x?x8xf32>, tensor<?x?x?x8xf32>) -> tensor<?x?x?x8xf32>
  return %o : tensor<?x?x?x8xf32>
}
