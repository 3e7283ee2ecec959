// What the user wrote for a key's weight and its score's gradient stands in the pairs; the rest follows by the chain rule.
// RUN: attn-opt %S/../Inputs/derivatives/written-softmax.mlir -p 'attn-custom-vjp' | FileCheck %s
// RUN: attn-opt %S/../Inputs/derivatives/written-softmax.mlir -p 'attn-custom-vjp{wrt=v}' | FileCheck %s --check-prefix=ONE

// CHECK-LABEL: func.func @attention_bwd(
// CHECK-SAME:    %[[Q:[a-z0-9]*]]: tensor<?x?x?x8xf32>, %[[K:[a-z0-9]*]]: tensor<?x?x?x8xf32>, %[[V:[a-z0-9]*]]: tensor<?x?x?x4xf32>,
// CHECK-SAME:    %[[SLOPES:[a-z0-9]*]]: tensor<?xf32>, %[[O:[a-z0-9]*]]: tensor<?x?x?x4xf32>, %[[LSE:[a-z0-9_]*]]: tensor<?x?x?xf32>,
// CHECK-SAME:    %[[DO:[a-z0-9]*]]: tensor<?x?x?x4xf32>, %{{.*}}: tensor<?x?x?xf32>)
// CHECK:         %[[DELTA:.*]] = "attn.row_dot"(%[[DO]], %[[O]])
// CHECK:         "attn.product"(%[[Q]], %[[K]])
// CHECK:         "attn.product"(%[[DO]], %[[V]])
// CHECK:         "attn.mask"
// CHECK:         ^bb0(%[[X:.*]]: f32, %[[DP:.*]]: f32, %[[B:.*]]: index, %[[H:.*]]: index, %[[I:.*]]: index, %{{.*}}: index):
// CHECK:           %[[SLOPE:.*]] = tensor.extract %[[SLOPES]][%[[H]]]
// CHECK:           %[[S:.*]] = arith.mulf %[[X]], %[[SLOPE]]
// CHECK:           %[[ROW_LSE:.*]] = tensor.extract %[[LSE]][%[[B]], %[[H]], %[[I]]]
// CHECK:           %[[D:.*]] = arith.subf %[[S]], %[[ROW_LSE]]
// CHECK:           %[[P:.*]] = math.exp %[[D]]
// CHECK:           %[[ROW_DELTA:.*]] = tensor.extract %[[DELTA]][%[[B]], %[[H]], %[[I]]]
// CHECK:           %[[CENTRED:.*]] = arith.subf %[[DP]], %[[ROW_DELTA]]
// CHECK:           %[[DS:.*]] = arith.mulf %[[CENTRED]], %[[P]]
// CHECK-DAG:       %[[DX:.*]] = arith.mulf %[[DS]], %[[SLOPE]]
// CHECK-DAG:       %[[DSLOPE:.*]] = arith.mulf %[[DS]], %[[X]]
// CHECK:           "attn.yield"(%[[P]], %[[DX]], %[[DSLOPE]])
// CHECK-DAG:     "attn.query_sum"(%{{.*}}, %[[K]]) {weights = array<i64: 1>}
// CHECK-DAG:     "attn.key_sum"(%{{.*}}, %[[Q]]) {weights = array<i64: 1>}
// CHECK-DAG:     "attn.key_sum"(%{{.*}}, %[[DO]]) {weights = array<i64: 0>}
// CHECK-DAG:     "attn.scatter"(%{{.*}}, %[[SLOPES]])
// CHECK-NOT:     @attention_dscore

// ONE:           %[[DV:.*]] = "attn.key_sum"
// ONE-NOT:       attn.query_sum
// ONE:           return %[[DV]] : tensor<?x?x?x4xf32>
