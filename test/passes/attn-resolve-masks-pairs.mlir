// RUN: attn-opt %s -p attn-resolve-masks --split-input-file | FileCheck %s

// Pairs are resolved for the rows that see a block of keys. Sliding window: from the first key's own row to the last key's,
// and as far on as the window; the rows in between see the whole block.

!t = tensor<?x?x?x8xf32>

// CHECK-LABEL: func.func @window(
// CHECK-SAME:    %[[Q:[^:]*]]: tensor<?x?x?x8xf32>
// CHECK:         %[[SQ:.*]] = tensor.dim %[[Q]]
// CHECK:         "attn.query_bounds"() ({
// CHECK-NEXT:    ^bb0(%{{[^:]*}}: index, %{{[^:]*}}: index, %[[KV_BEGIN:[^:]*]]: index, %[[KV_END:[^:]*]]: index):
// CHECK:           %[[BEGIN:.*]] = arith.minsi %[[SQ]], %[[KV_BEGIN]] : index
// CHECK:           %[[LAST:.*]] = arith.subi %[[KV_END]], %c1
// CHECK-NEXT:      %[[FULL_BEGIN:.*]] = arith.minsi %[[SQ]], %[[LAST]] : index
// CHECK:           %[[SEEN:.*]] = arith.addi %[[KV_BEGIN]], %c32
// CHECK-NEXT:      %[[SEEN_IN:.*]] = arith.minsi %[[SEEN]], %[[SQ]] : index
// CHECK-NEXT:      %[[FULL_END:.*]] = arith.maxsi %[[FULL_BEGIN]], %[[SEEN_IN]] : index
// CHECK:           %[[REACH:.*]] = arith.addi %[[KV_END]], %c31
// CHECK-NEXT:      %[[END:.*]] = arith.minsi %[[REACH]], %[[SQ]] : index
// CHECK-NEXT:      "attn.yield"(%[[BEGIN]], %[[FULL_BEGIN]], %[[FULL_END]], %[[END]])
// CHECK-NOT:     attn.block_mask
// CHECK-NOT:     rows_nonempty
func.func @window(%q: !t, %k: !t) -> !t {
  %w = "attn.pairs"() ({
    "attn.product"(%q, %k) : (!t, !t) -> ()
    "attn.mask"() ({
    ^bb0(%b: index, %h: index, %q_idx: index, %kv_idx: index):
      %behind = arith.cmpi sge, %q_idx, %kv_idx : index
      %distance = arith.subi %q_idx, %kv_idx : index
      %size = arith.constant 31 : index
      %near = arith.cmpi sle, %distance, %size : index
      %keep = arith.andi %behind, %near : i1
      "attn.yield"(%keep) : (i1) -> ()
    }) : () -> ()
    "attn.pair"() ({
    ^bb0(%x: f32, %b: index, %h: index, %q_idx: index, %kv_idx: index):
      "attn.yield"(%x) : (f32) -> ()
    }) : () -> ()
  }) : () -> none
  %dq = "attn.query_sum"(%w, %k) {weights = array<i64: 0>} : (none, !t) -> !t
  return %dq : !t
}

// -----

!t = tensor<?x?x?x8xf32>

// Documents: blocks are classified by the ranges of ids, (any, all) of rows and keys as in an attention. Old pieces go.

// CHECK-LABEL: func.func @documents(
// CHECK-SAME:    %[[DOC:[^:]*]]: tensor<?xindex>
// CHECK-COUNT-1: "attn.query_bounds"
// CHECK:         "attn.block_mask"() ({
// CHECK:           "attn.range"(%[[DOC]]
// CHECK:           "attn.range"(%[[DOC]]
// CHECK-NOT:     attn.query_bounds
func.func @documents(%doc: tensor<?xindex>, %q: !t, %k: !t) -> !t {
  %w = "attn.pairs"() ({
    "attn.product"(%q, %k) : (!t, !t) -> ()
    "attn.mask"() ({
    ^bb0(%b: index, %h: index, %q_idx: index, %kv_idx: index):
      %mine = tensor.extract %doc[%q_idx] : tensor<?xindex>
      %other = tensor.extract %doc[%kv_idx] : tensor<?xindex>
      %keep = arith.cmpi eq, %mine, %other : index
      "attn.yield"(%keep) : (i1) -> ()
    }) : () -> ()
    "attn.query_bounds"() ({
    ^bb0(%b: index, %h: index, %kv_begin: index, %kv_end: index):
      "attn.yield"(%b, %b, %b, %b) : (index, index, index, index) -> ()
    }) : () -> ()
    "attn.pair"() ({
    ^bb0(%x: f32, %b: index, %h: index, %q_idx: index, %kv_idx: index):
      "attn.yield"(%x) : (f32) -> ()
    }) : () -> ()
  }) : () -> none
  %dq = "attn.query_sum"(%w, %k) {weights = array<i64: 0>} : (none, !t) -> !t
  return %dq : !t
}
