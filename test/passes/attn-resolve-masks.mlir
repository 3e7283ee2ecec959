// RUN: attn-opt %s -p attn-resolve-masks --split-input-file | FileCheck %s

// Causal: the loop over keys ends with the block's last row, and masks from its first row on.

// CHECK-LABEL: func.func @causal(
// CHECK-SAME:    %[[Q:[^:]*]]: tensor<?x?x?x8xf32>, %[[K:[^:]*]]: tensor<?x?x?x8xf32>
// CHECK:         %[[SKV:.*]] = tensor.dim %[[K]], %{{.*}} : tensor<?x?x?x8xf32>
// CHECK:         "attn.bounds"() ({
// CHECK-NEXT:    ^bb0(%{{[^:]*}}: index, %{{[^:]*}}: index, %[[Q_BEGIN:[^:]*]]: index, %[[Q_END:[^:]*]]: index):
// CHECK-DAG:       %[[C0:.*]] = arith.constant 0 : index
// CHECK-DAG:       %[[C1:.*]] = arith.constant 1 : index
// CHECK:           %[[NEXT:.*]] = arith.addi %[[Q_BEGIN]], %[[C1]] : index
// CHECK-NEXT:      %[[FULL_END:.*]] = arith.minsi %[[NEXT]], %[[SKV]] : index
// CHECK-NEXT:      %[[END:.*]] = arith.minsi %[[Q_END]], %[[SKV]] : index
// CHECK-NEXT:      "attn.yield"(%[[C0]], %[[C0]], %[[FULL_END]], %[[END]])
// CHECK-NOT:     attn.block_mask
// CHECK:       rows_nonempty = true
func.func @causal(%q: tensor<?x?x?x8xf32>, %k: tensor<?x?x?x8xf32>, %v: tensor<?x?x?x8xf32>) -> tensor<?x?x?x8xf32> {
  %o = "attn.attention"(%q, %k, %v) ({
    "attn.mask"() ({
    ^bb0(%b: index, %h: index, %q_idx: index, %kv_idx: index):
      %0 = arith.cmpi sge, %q_idx, %kv_idx : index
      "attn.yield"(%0) : (i1) -> ()
    }) : () -> ()
    "attn.row"() ({
    ^bb0(%s: f32, %b: index, %h: index, %q_idx: index):
      "attn.yield"(%s) : (f32) -> ()
    }) : () -> ()
  }) {outputs = []} : (tensor<?x?x?x8xf32>, tensor<?x?x?x8xf32>, tensor<?x?x?x8xf32>) -> tensor<?x?x?x8xf32>
  return %o : tensor<?x?x?x8xf32>
}

// -----

// Without a mask there is nothing to bound, and every row has keys.

// CHECK-LABEL: func.func @dense(
// CHECK-NOT:     attn.bounds
// CHECK:         {outputs = [], rows_nonempty = true}
func.func @dense(%q: tensor<?x?x?x8xf32>, %k: tensor<?x?x?x8xf32>, %v: tensor<?x?x?x8xf32>) -> tensor<?x?x?x8xf32> {
  %o = "attn.attention"(%q, %k, %v) ({
    "attn.row"() ({
    ^bb0(%s: f32, %b: index, %h: index, %q_idx: index):
      "attn.yield"(%s) : (f32) -> ()
    }) : () -> ()
  }) {outputs = []} : (tensor<?x?x?x8xf32>, tensor<?x?x?x8xf32>, tensor<?x?x?x8xf32>) -> tensor<?x?x?x8xf32>
  return %o : tensor<?x?x?x8xf32>
}
