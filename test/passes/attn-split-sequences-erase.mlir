// What erases multiplies the state by a matrix: passes from the identity make its columns, as many in a tensor as v has.
// RUN: attn-opt %inputs/linear/gated-delta.mlir -p 'attn-split-sequences{segment=32}' | FileCheck %s
// RUN: attn-opt %inputs/linear/gated-delta.mlir -p 'attn-split-sequences{segment=32}' --attn-explain | FileCheck %s --check-prefix=EXPLAIN
// RUN: attn-run %inputs/linear/gated-delta.mlir -p 'attn-split-sequences{segment=32},func.func(cse),attn-chunk-rewrite{chunk=16}'
// RUN: attn-run %inputs/linear/removed-key.mlir -p 'attn-split-sequences{segment=16},func.func(cse),attn-chunk-rewrite{chunk=8}'
// RUN: attn-run %inputs/linear/delta-backward.mlir -p 'attn-split-sequences{segment=16},func.func(cse),attn-chunk-rewrite{chunk=8}'

// CHECK-LABEL: func.func @attention(
// CHECK-SAME:    %[[Q:[^:]*]]: {{[^%]*}}%[[K:[^:]*]]: {{[^%]*}}%[[V:[^:]*]]: {{[^%]*}}%[[G:[^:]*]]: {{[^%]*}}%[[INITIAL:[^:]*]]:
// CHECK:         %[[ADDED:.*]]:2 = "attn.linear_attention"(%[[K]], %[[K]], %[[V]], %[[G]])
// CHECK:           "attn.erase"(%[[K]])
// CHECK:           outputs = ["final_state"], {{.*}}segment = 32
// CHECK:         %[[FIRST:.*]]:2 = "attn.linear_attention"(%[[K]], %[[K]], %[[V]], %[[G]])
// CHECK:           "attn.erase"(%[[K]])
// CHECK:           "attn.value"
// CHECK-NEXT:      ^bb0(
// CHECK-NEXT:        %[[NOTHING:.*]] = arith.constant 0.000000e+00 : f32
// CHECK-NEXT:        "attn.yield"(%[[NOTHING]])
// CHECK:           identity = 0 : i64, {{.*}}outputs = ["final_state"]
// CHECK:         %[[SECOND:.*]]:2 = "attn.linear_attention"
// CHECK:           identity = 8 : i64, {{.*}}outputs = ["final_state"]
// CHECK-NEXT:    %[[BEFORE:.*]]:2 = "attn.transition_scan"(%[[ADDED]]#1, %[[V]], %[[INITIAL]], %[[FIRST]]#1, %[[SECOND]]#1)
// CHECK-SAME:      direction = "forward", {{.*}}rows = 16 : i64, segment = 32 : i64
// CHECK:         %[[O:.*]] = "attn.linear_attention"(%[[Q]], %[[K]], %[[V]], %[[G]], %[[BEFORE]]#0)
// CHECK:           outputs = [], {{.*}}segment = 32
// CHECK:         return %[[O]], %[[BEFORE]]#1

// EXPLAIN:      in segments of 32 positions at the same time, each from columns of the identity
// EXPLAIN:      @attention: attn.transition_scan
// EXPLAIN-NEXT:   states between segments of 32 positions, first to last
// EXPLAIN-NEXT:     S = M S + F, where F is what a segment adds, its final state from a zero state
// EXPLAIN-NEXT:     M is the matrix by which a segment multiplies the state: its final state from the identity, without values
// EXPLAIN-NEXT:   confirmed in float64 against the recurrence: {{[0-9]+}} values, largest relative error {{[0-9].[0-9]e-1[0-9]}}
