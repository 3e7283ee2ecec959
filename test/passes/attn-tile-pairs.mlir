// RUN: attn-opt %s -p 'attn-tile{block-q=16 block-kv=32},canonicalize,cse' | FileCheck %s

// Pairs: one program per chunk of keys, key head and batch. For each block of keys all query heads of the group and all
// blocks of queries; sums over queries stay in a tile, sums over keys go to memory. Unused products are not computed.

!t = tensor<?x?x?x8xf32>

// CHECK-LABEL: func.func @pairs(
// CHECK-SAME:    %[[Q:[^:]*]]: memref<?x?x?x8xf32, {{[^>]*>>}}, %[[K:[^:]*]]: memref<?x?x?x8xf32, {{[^>]*>>}}, %{{[^:]*}}: memref<?x?x?xf32, {{[^>]*>>}}, %[[DQ:[^:]*]]: memref<?x?x?x?x8xf32, {{[^>]*>>}}, %[[DK:[^:]*]]: memref<?x?x?x8xf32, {{[^>]*>>}}, %[[CHUNK:[^:]*]]: index)
// CHECK-SAME:    attributes {tile.kernel = {block_kv = 32 : i64, block_q = 16 : i64, disjoint = [[], []], grid = "pairs", outputs = ["accumulate", "store"], over = 1 : i64, score = f32}}
// CHECK-DAG:     %[[SLOT:.*]] = "tile.program_id"() {axis = 0 : i64}
// CHECK-DAG:     %[[HEAD:.*]] = "tile.program_id"() {axis = 1 : i64}
// CHECK-DAG:     %[[B:.*]] = "tile.program_id"() {axis = 2 : i64}
// CHECK:         %[[GROUP:.*]] = arith.divsi
// CHECK:         %[[FIRST:.*]] = arith.muli %[[SLOT]], %[[CHUNK]] : index
// CHECK:         scf.for %[[KV:[^ ]*]] = %[[FIRST]] to %{{.*}} step %c16
// CHECK:           %[[LANES:.*]] = "tile.load"(%[[K]], %[[B]], %[[HEAD]], %[[KV]], %[[KEYS:[^)]*]]) {{.*}} -> tensor<16x8xf32>
// CHECK:           %[[ROWS:.*]] = "tile.load"(%[[K]], %[[B]], %[[HEAD]], %[[KV]], %[[KEYS]]) {{.*}} -> tensor<?x8xf32>
// CHECK:           %[[ZERO:.*]] = "tile.fill"
// CHECK:           %[[SUM:.*]] = scf.for {{.*}} to %[[GROUP]] step %{{.*}} iter_args(%[[OF_HEADS:.*]] = %[[ZERO]])
// CHECK:             scf.for %[[ROW:[^ ]*]] = {{.*}} step %c32 iter_args(%[[OF_BLOCKS:.*]] = %[[OF_HEADS]])
// CHECK:               %[[QUERIES:.*]] = "tile.load"(%[[Q]], %[[B]], %[[H:[^,]*]], %[[ROW]], %[[COUNT:[^)]*]])
// CHECK-NEXT:          %[[X:.*]] = "tile.dot"(%[[LANES]], %[[QUERIES]]) {transpose_b = true} {{.*}} -> tensor<16x?xf32>
// CHECK-NOT:           tile.dot"
// CHECK:               %[[W:.*]] = "tile.map"(%c16, %[[COUNT]])
// CHECK:               %[[NEXT:.*]] = "tile.dot_add"(%[[OF_BLOCKS]], %[[W]], %[[QUERIES]])
// CHECK-NEXT:          "tile.accumulate"(%[[W]], %[[ROWS]], %[[DQ]], %[[SLOT]], %[[B]], %[[H]], %[[ROW]], %[[COUNT]])
// CHECK-NEXT:          scf.yield %[[NEXT]]
// CHECK:           "tile.store"(%[[SUM]], %[[DK]], %[[B]], %[[HEAD]], %[[KV]], %[[KEYS]])
func.func @pairs(%q: !t, %k: !t, %lse: tensor<?x?x?xf32>) -> (!t, !t) {
  %w = "attn.pairs"() ({
    "attn.product"(%q, %k) : (!t, !t) -> ()
    "attn.product"(%k, %q) : (!t, !t) -> ()
    "attn.pair"() ({
    ^bb0(%x: f32, %y: f32, %b: index, %h: index, %q_idx: index, %kv_idx: index):
      %l = tensor.extract %lse[%b, %h, %q_idx] : tensor<?x?x?xf32>
      %d = arith.subf %x, %l : f32
      "attn.yield"(%d) : (f32) -> ()
    }) : () -> ()
  }) : () -> none
  %dq = "attn.query_sum"(%w, %k) {weights = array<i64: 0>} : (none, !t) -> !t
  %dk = "attn.key_sum"(%w, %q) {weights = array<i64: 0>} : (none, !t) -> !t
  return %dq, %dk : !t, !t
}
