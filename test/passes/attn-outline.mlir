// Every attention op of a derivative, with the sums made of its weights, becomes a function; the derivative calls them.
// RUN: attn-opt %inputs/derivatives/alibi-causal-softmax-backward.mlir -p attn-outline | FileCheck %s
// RUN: attn-opt %inputs/derivatives/alibi-causal-softmax-backward.mlir -p 'attn-outline{keep-hosts=false}' | FileCheck %s --check-prefix=KERNELS

// It takes just what it reads.
// CHECK:       func.func private @attention_bwd_0_row_dot(%[[O:[a-z0-9]+]]: tensor<?x?x?x32xf32>, %[[DO:[a-z0-9]+]]: tensor<?x?x?x32xf32>)
// CHECK-NEXT:    %[[DELTA:[a-z0-9]+]] = "attn.row_dot"(%[[DO]], %[[O]])
// CHECK-NEXT:    return %[[DELTA]]

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

// Roles tell the shapes of what a call makes.
// CHECK:       func.func @attention_bwd(
// CHECK-NEXT:    %[[ROWS:[a-z0-9]+]] = call @attention_bwd_0_row_dot({{.*}}) {roles = ["like:1"]}
// CHECK-NEXT:    %[[GRADS:[a-z0-9]+]]:4 = call @attention_bwd_1_pairs({{.*}}, %[[ROWS]]) {roles = ["query", "key", "key", "like:3"]}
// CHECK-NEXT:    return %[[GRADS]]#0, %[[GRADS]]#1, %[[GRADS]]#2, %[[GRADS]]#3

// KERNELS:     @attention_bwd_0_row_dot
// KERNELS:     @attention_bwd_1_pairs
// KERNELS-NOT: @attention_bwd(
