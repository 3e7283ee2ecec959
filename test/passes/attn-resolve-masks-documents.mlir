// RUN: attn-opt %s -p attn-resolve-masks | FileCheck %s

// Documents: no bounds follow from the ids beyond those of the causal part; a block is classified by the ranges of
// the ids of its rows and of its keys.

// CHECK-LABEL: func.func @attention(
// CHECK-SAME:    %[[DOC:[^:]*]]: tensor<?xi32>)
// CHECK:         "attn.bounds"() ({
// CHECK-NOT:       attn.range
// CHECK:         "attn.block_mask"() ({
// CHECK-NEXT:    ^bb0(%{{[^:]*}}: index, %{{[^:]*}}: index, %[[Q_BEGIN:[^:]*]]: index, %[[Q_END:[^:]*]]: index, %[[KV_BEGIN:[^:]*]]: index, %[[KV_END:[^:]*]]: index):
// CHECK:           %[[Q_IN:.*]] = arith.minsi %[[Q_BEGIN]], %[[LAST:.*]] : index
// CHECK-NEXT:      %[[Q_LOW:.*]] = arith.maxsi %{{.*}}, %[[Q_IN]] : index
// CHECK-NEXT:      %[[Q_HIGH:.*]] = arith.minsi %[[Q_END]], %[[SIZE:.*]] : index
// CHECK-NEXT:      %[[ROWS:.*]]:2 = "attn.range"(%[[DOC]], %[[Q_LOW]], %[[Q_HIGH]])
// CHECK:           %[[KV_HIGH:.*]] = arith.minsi %[[KV_END]], %[[SIZE]] : index
// CHECK-NEXT:      %[[KEYS:.*]]:2 = "attn.range"(%[[DOC]], %{{.*}}, %[[KV_HIGH]])
// CHECK-NEXT:      %[[UP:.*]] = arith.cmpi sge, %[[KEYS]]#1, %[[ROWS]]#0 : index
// CHECK-NEXT:      %[[DOWN:.*]] = arith.cmpi sge, %[[ROWS]]#1, %[[KEYS]]#0 : index
// CHECK:           %[[BEHIND:.*]] = arith.cmpi sgt, %[[Q_END]], %[[KV_BEGIN]] : index
// CHECK:           %[[BOTH:.*]] = arith.andi %[[UP]], %[[DOWN]] : i1
// CHECK-NEXT:      %[[ANY:.*]] = arith.andi %[[BOTH]], %[[BEHIND]] : i1
// CHECK:           "attn.yield"(%[[ANY]], %{{.*}}) : (i1, i1) -> ()
func.func @attention(%q: tensor<?x?x?x8xf32>, %k: tensor<?x?x?x8xf32>, %v: tensor<?x?x?x8xf32>, %doc: tensor<?xi32>) -> tensor<?x?x?x8xf32> {
  %o = "attn.attention"(%q, %k, %v) ({
    "attn.mask"() ({
    ^bb0(%b: index, %h: index, %q_idx: index, %kv_idx: index):
      %0 = tensor.extract %doc[%q_idx] : tensor<?xi32>
      %1 = arith.index_cast %0 : i32 to index
      %2 = tensor.extract %doc[%kv_idx] : tensor<?xi32>
      %3 = arith.index_cast %2 : i32 to index
      %4 = arith.cmpi eq, %1, %3 : index
      %5 = arith.cmpi sge, %q_idx, %kv_idx : index
      %6 = arith.andi %4, %5 : i1
      "attn.yield"(%6) : (i1) -> ()
    }) : () -> ()
    "attn.row"() ({
    ^bb0(%s: f32, %b: index, %h: index, %q_idx: index):
      "attn.yield"(%s) : (f32) -> ()
    }) : () -> ()
  }) {outputs = []} : (tensor<?x?x?x8xf32>, tensor<?x?x?x8xf32>, tensor<?x?x?x8xf32>) -> tensor<?x?x?x8xf32>
  return %o : tensor<?x?x?x8xf32>
}
