// Every attention op of a derivative, with the sums made of its weights, becomes a function; the derivative calls them.
// RUN: attn-opt %inputs/derivatives/alibi-causal-softmax-backward.mlir -p attn-outline | FileCheck %s
// RUN: attn-opt %inputs/derivatives/alibi-causal-softmax-backward.mlir -p 'attn-outline{keep-hosts=false}' | FileCheck %s --check-prefix=KERNELS

// A function of the same arguments returns the sizes of what it makes: here those of a row of do.
// CHECK:       func.func private @attention_bwd_0_row_dot_shapes(%{{.*}}: tensor<?x?x?x32xf32>, %[[LIKE:[a-z0-9]+]]: tensor<?x?x?x32xf32>) -> (index, index, index)
// CHECK:         %[[B:.*]] = tensor.dim %[[LIKE]], %c0
// CHECK:         %[[H:.*]] = tensor.dim %[[LIKE]], %c1
// CHECK:         %[[S:.*]] = tensor.dim %[[LIKE]], %c2
// CHECK:         return %[[B]], %[[H]], %[[S]]

// It takes just what it reads.
// CHECK:       func.func private @attention_bwd_0_row_dot(%[[O:[a-z0-9]+]]: tensor<?x?x?x32xf32>, %[[DO:[a-z0-9]+]]: tensor<?x?x?x32xf32>)
// CHECK-SAME:    attributes {shapes = @attention_bwd_0_row_dot_shapes}
// CHECK-NEXT:    %[[DELTA:[a-z0-9]+]] = "attn.row_dot"(%[[DO]], %[[O]])
// CHECK-NEXT:    return %[[DELTA]]

// Of dq, dk, dv and slopes: the sizes of q, of k twice, and of the table.
// CHECK:       func.func private @attention_bwd_1_pairs_shapes(%[[Q:[a-z0-9]+]]: tensor<?x?x?x64xf32>, %[[K:[a-z0-9]+]]: {{.*}}, %[[TABLE:[a-z0-9]+]]: tensor<?xf32>,
// CHECK:         tensor.dim %[[Q]], %c0
// CHECK:         tensor.dim %[[K]], %c0
// CHECK:         tensor.dim %[[TABLE]], %c0

// Tensors that regions read are arguments too; those of the derivative come first.
// CHECK:       func.func private @attention_bwd_1_pairs(
// CHECK-SAME:      %[[Q:[a-z0-9]+]]: tensor<?x?x?x64xf32>, %[[K:[a-z0-9]+]]: tensor<?x?x?x64xf32>, %[[V:[a-z0-9]+]]: tensor<?x?x?x32xf32>,
// CHECK-SAME:      %[[SLOPES:[a-z0-9]+]]: tensor<?xf32>, %[[MAX:[a-z0-9]+]]: tensor<?x?x?xf32>, %[[SUM:[a-z0-9]+]]: tensor<?x?x?xf32>,
// CHECK-SAME:      %[[DO:[a-z0-9]+]]: tensor<?x?x?x32xf32>, %[[DELTA:[a-z0-9]+]]: tensor<?x?x?xf32>)
// CHECK:         %[[W:[a-z0-9]+]] = "attn.pairs"() ({
// CHECK-NEXT:      "attn.product"(%[[Q]], %[[K]])
// CHECK:           tensor.extract %[[SLOPES]]
// CHECK:           tensor.extract %[[DELTA]]
// CHECK:         %[[DQ:[a-z0-9]+]] = "attn.query_sum"(%[[W]], %[[K]])
// CHECK:         %[[DK:[a-z0-9]+]] = "attn.key_sum"(%[[W]], %[[Q]])
// CHECK:         %[[DV:[a-z0-9]+]] = "attn.key_sum"(%[[W]], %[[DO]])
// CHECK:         %[[DSLOPES:[a-z0-9]+]] = "attn.scatter"(%[[W]], %[[SLOPES]])
// CHECK:         return %[[DQ]], %[[DK]], %[[DV]], %[[DSLOPES]]

// CHECK:       func.func @attention_bwd(
// CHECK-NEXT:    %[[ROWS:[a-z0-9]+]] = call @attention_bwd_0_row_dot({{.*}})
// CHECK-NEXT:    %[[GRADS:[a-z0-9]+]]:4 = call @attention_bwd_1_pairs({{.*}}, %[[ROWS]])
// CHECK-NEXT:    return %[[GRADS]]#0, %[[GRADS]]#1, %[[GRADS]]#2, %[[GRADS]]#3

// KERNELS-NOT: shapes
// KERNELS:     @attention_bwd_0_row_dot
// KERNELS:     @attention_bwd_1_pairs
// KERNELS-NOT: @attention_bwd(
