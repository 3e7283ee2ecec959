// Functions are called in the order in which their inputs are made. An op whose sums depend on one another is computed twice.
// RUN: attn-opt %s -p attn-outline --split-input-file | FileCheck %s

!t = tensor<?x?x?x8xf32>
!row = tensor<?x?x?xf32>

// CHECK-LABEL: func.func @twice(
// CHECK-SAME:    %[[Q:[a-z0-9]+]]: tensor<?x?x?x8xf32>, %[[K:[a-z0-9]+]]: tensor<?x?x?x8xf32>)
// CHECK-NEXT:    %[[SUM:[a-z0-9]+]] = call @twice_0_pairs(%[[Q]], %[[K]])
// CHECK-NEXT:    %[[DOT:[a-z0-9]+]] = call @twice_1_row_dot(%[[Q]], %[[SUM]])
// CHECK-NEXT:    %[[DOUBLED:[a-z0-9]+]] = call @twice_2_elements(%[[SUM]], %[[DOT]])
// CHECK-NEXT:    %[[KEYS:[a-z0-9]+]] = call @twice_3_pairs(%[[Q]], %[[K]], %[[DOUBLED]])
// CHECK-NEXT:    return %[[KEYS]], %[[DOT]]
func.func @twice(%q: !t, %k: !t) -> (!t, !row) {
  %w = "attn.pairs"() ({
    "attn.product"(%q, %k) : (!t, !t) -> ()
    "attn.pair"() ({
    ^bb0(%x: f32, %b: index, %h: index, %i: index, %j: index):
      "attn.yield"(%x) : (f32) -> ()
    }) : () -> ()
  }) : () -> none
  %sum = "attn.query_sum"(%w, %k) {weights = array<i64: 0>} : (none, !t) -> !t
  %dot = "attn.row_dot"(%sum, %q) : (!t, !t) -> !row
  %e = "attn.elements"(%sum) ({
    "attn.element"() ({
    ^bb0(%b: index, %h: index, %i: index, %d: index):
      %x = tensor.extract %sum[%b, %h, %i, %d] : !t
      %y = tensor.extract %dot[%b, %h, %i] : !row
      %z = arith.addf %x, %y : f32
      "attn.yield"(%z) : (f32) -> ()
    }) : () -> ()
  }) : (!t) -> none
  %changed = "attn.collect"(%e) {weight = 0} : (none) -> !t
  %keys = "attn.key_sum"(%w, %changed) {weights = array<i64: 0>} : (none, !t) -> !t
  return %keys, %dot : !t, !row
}

// -----

// Weights that nothing is made of need no function.
// CHECK-LABEL: func.func @unused(
// CHECK-NEXT:    call @unused_0_row_dot
// CHECK-NEXT:    call @unused_1_row_dot
// CHECK-NEXT:    return
// CHECK-NOT:   attn.pairs
!t = tensor<?x?x?x8xf32>
!row = tensor<?x?x?xf32>
func.func @unused(%q: !t, %k: !t) -> (!row, !row) {
  %w = "attn.pairs"() ({
    "attn.product"(%q, %k) : (!t, !t) -> ()
    "attn.pair"() ({
    ^bb0(%x: f32, %b: index, %h: index, %i: index, %j: index):
      "attn.yield"(%x) : (f32) -> ()
    }) : () -> ()
  }) : () -> none
  %a = "attn.row_dot"(%q, %q) : (!t, !t) -> !row
  %b = "attn.row_dot"(%q, %k) : (!t, !t) -> !row
  return %a, %b : !row, !row
}
