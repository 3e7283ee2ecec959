// RUN: attn-opt %inputs/linear/simple-gla.mlir -p 'attn-split-sequences{segment=256}' --attn-explain | FileCheck %s

// CHECK:      @attention: attn.linear_attention
// CHECK-NEXT:   recurrence, towards later positions
// CHECK-NEXT:     in segments of 256 positions at the same time, each from its own initial state
// CHECK-NEXT:     for the final state only
// CHECK-NOT:    backward
// CHECK:      @attention: attn.decay_sum
// CHECK-NEXT:   G: the sums of the log decays g over segments of 256 positions
// CHECK:      @attention: attn.state_scan
// CHECK-NEXT:   states between segments of 256 positions, first to last
// CHECK-NEXT:     S = exp(G) S + F, where F is what a segment adds, its final state from a zero state
// CHECK-NEXT:   confirmed in float64 against the recurrence: {{[0-9]+}} values, largest relative error {{[0-9].[0-9]e-1[0-9]}}
// CHECK:      @attention: attn.linear_attention
// CHECK-NEXT:   recurrence, towards later positions
// CHECK-NEXT:     in segments of 256 positions at the same time, each from its own initial state
// CHECK-NOT:      for the final state only
