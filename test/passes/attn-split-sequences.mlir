// Sequences are cut into segments that are swept twice: for their final states, and from the states before them.
// RUN: attn-opt %s -p 'attn-split-sequences{segment=256}' --split-input-file | attn-opt --split-input-file | FileCheck %s
// RUN: attn-opt %s -p 'attn-split-sequences' --split-input-file | FileCheck %s --check-prefix=OFF
// OFF-NOT: attn.state_scan

!q = tensor<?x?x?x16xf32>
!v = tensor<?x?x?x8xf32>
!g = tensor<?x?x?xf32>
!s = tensor<?x?x?x8xf32>

// CHECK-LABEL: func.func @forward(
// CHECK-SAME:    %[[Q:[^:]*]]: {{[^%]*}}%[[K:[^:]*]]: {{[^%]*}}%[[V:[^:]*]]: {{[^%]*}}%[[G:[^:]*]]: {{[^%]*}}%[[INITIAL:[^:]*]]:
// CHECK:         %[[ADDED:.*]]:2 = "attn.linear_attention"(%[[K]], %[[K]], %[[V]], %[[G]])
// CHECK-NOT:       attn.query
// CHECK:           outputs = ["final_state"], {{.*}}segment = 256
// CHECK:         %[[TOTALS:.*]] = "attn.decay_sum"(%[[V]], %[[G]])
// CHECK:         %[[BEFORE:.*]]:2 = "attn.state_scan"(%[[ADDED]]#1, %[[V]], %[[TOTALS]], %[[INITIAL]]) {direction = "forward", {{.*}}rows = 16
// CHECK:         %[[O:.*]] = "attn.linear_attention"(%[[Q]], %[[K]], %[[V]], %[[G]], %[[BEFORE]]#0)
// CHECK:           attn.query
// CHECK:           outputs = [], {{.*}}segment = 256
// CHECK:         return %[[O]], %[[BEFORE]]#1
func.func @forward(%q: !q, %k: !q, %v: !v, %g: !g, %initial: !s) -> (!v, !s) {
  %o, %final = "attn.linear_attention"(%q, %k, %v, %g, %initial) ({
    "attn.query"() ({
    ^bb0(%x: f32, %b: index, %h: index, %t: index, %d: index):
      %y = arith.mulf %x, %x : f32
      "attn.yield"(%y) : (f32) -> ()
    }) : () -> ()
  }) {heads = 2 : i64, direction = "forward", channels = "none", state = "kv", outputs = ["final_state"], operandSegmentSizes = array<i32: 1, 1, 1, 1, 1, 0, 0>, resultSegmentSizes = array<i32: 1, 1, 0, 0, 0>}
    : (!q, !q, !v, !g, !s) -> (!v, !s)
  return %o, %final : !v, !s
}

// -----

// The scans of dk and dv have the same states: what segments add to them is computed once.

!k = tensor<?x?x?x16xf16>
!v = tensor<?x?x?x8xf16>
!s = tensor<?x?x?x8xf32>

// CHECK-LABEL: func.func @backward(
// CHECK-SAME:    %[[Q:[^:]*]]: {{[^%]*}}%[[K:[^:]*]]: {{[^%]*}}%[[V:[^:]*]]: {{[^%]*}}%[[DO:[^:]*]]:
// CHECK:         "attn.linear_attention"(%[[Q]], %[[Q]], %[[DO]])
// CHECK:           channels = "none", compensated, direction = "backward", heads = 2 : i64, {{.*}}state = "kv"
// CHECK-NOT:     attn.decay_sum
// CHECK:         "attn.state_scan"({{.*}}direction = "backward"
// CHECK:         "attn.linear_attention"(%[[V]], %[[DO]], %[[Q]]
// CHECK:           interval = 128 : i64, {{.*}}outputs = ["products", "states"], paired
// CHECK:         "attn.linear_attention"(%[[Q]], %[[Q]], %[[DO]])
// CHECK:           channels = "none", compensated, direction = "backward", heads = 2 : i64, {{.*}}state = "kv"
func.func @backward(%q: !k, %k: !k, %v: !v, %do: !v) -> (!k, tensor<?x?x?xf32>, !s, !v) {
  %dk, %products, %states = "attn.linear_attention"(%v, %do, %q, %k) ({
  ^bb0:
  }) {heads = 1 : i64, direction = "backward", channels = "none", state = "vk", outputs = ["products", "states"], interval = 128 : i64, paired, operandSegmentSizes = array<i32: 1, 1, 1, 0, 0, 1, 0>, resultSegmentSizes = array<i32: 1, 0, 1, 1, 0>}
    : (!v, !v, !k, !k) -> (!k, tensor<?x?x?xf32>, !s)
  %dv = "attn.linear_attention"(%k, %q, %do) ({
  ^bb0:
  }) {heads = 2 : i64, direction = "backward", channels = "none", state = "kv", outputs = [], operandSegmentSizes = array<i32: 1, 1, 1, 0, 0, 0, 0>, resultSegmentSizes = array<i32: 1, 0, 0, 0, 0>}
    : (!k, !k, !v) -> !v
  return %dk, %products, %states, %dv : !k, tensor<?x?x?xf32>, !s, !v
}
