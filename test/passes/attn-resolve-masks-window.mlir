// RUN: attn-opt %s -p attn-resolve-masks | FileCheck %s

// A causal window of runtime width bounds the keys on both sides. A negative width leaves rows empty, so that
// nothing is proved about them. The largest widths mean no limit, and must not wrap around when they are added to.

// CHECK-LABEL: func.func @attention(
// CHECK-SAME:    %[[WIDTH:[^:]*]]: index)
// CHECK:         %[[SKV:.*]] = tensor.dim
// CHECK:         "attn.bounds"() ({
// CHECK-NEXT:    ^bb0(%{{[^:]*}}: index, %{{[^:]*}}: index, %[[Q_BEGIN:[^:]*]]: index, %[[Q_END:[^:]*]]: index):
// CHECK:           %[[MOST:.*]] = arith.minsi %[[WIDTH]], %c4611686018427387904 : index
// CHECK:           %[[NEAR:.*]] = arith.maxsi %[[MOST]], %c-4611686018427387904 : index
// CHECK:           %[[OLDEST:.*]] = arith.subi %[[Q_BEGIN]], %[[NEAR]] : index
// CHECK-NEXT:      %[[CLAMPED:.*]] = arith.maxsi %{{.*}}, %[[OLDEST]] : index
// CHECK-NEXT:      %[[BEGIN:.*]] = arith.minsi %[[SKV]], %[[CLAMPED]] : index
// CHECK:           %[[LAST_END:.*]] = arith.minsi %[[Q_END]], %[[SKV]] : index
// CHECK-NEXT:      %[[END:.*]] = arith.maxsi %[[BEGIN]], %[[LAST_END]] : index
// CHECK:           "attn.yield"(%[[BEGIN]], %{{.*}}, %{{.*}}, %[[END]])
// CHECK-NOT:     attn.block_mask
// CHECK:         rows_nonempty = false
func.func @attention(%q: tensor<?x?x?x8xf32>, %k: tensor<?x?x?x8xf32>, %v: tensor<?x?x?x8xf32>, %width: index) -> tensor<?x?x?x8xf32> {
  %o = "attn.attention"(%q, %k, %v) ({
    "attn.mask"() ({
    ^bb0(%b: index, %h: index, %q_idx: index, %kv_idx: index):
      %0 = arith.cmpi sge, %q_idx, %kv_idx : index
      %1 = arith.subi %q_idx, %kv_idx : index
      %2 = arith.cmpi sle, %1, %width : index
      %3 = arith.andi %0, %2 : i1
      "attn.yield"(%3) : (i1) -> ()
    }) : () -> ()
    "attn.row"() ({
    ^bb0(%s: f32, %b: index, %h: index, %q_idx: index):
      "attn.yield"(%s) : (f32) -> ()
    }) : () -> ()
  }) {outputs = []} : (tensor<?x?x?x8xf32>, tensor<?x?x?x8xf32>, tensor<?x?x?x8xf32>) -> tensor<?x?x?x8xf32>
  return %o : tensor<?x?x?x8xf32>
}
