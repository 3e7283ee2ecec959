// Products of a chunk that solves a system: those with a factor in common stand one after the other, with what they need.
// RUN: attn-opt %s -p nvidia-gather-products --split-input-file | FileCheck %s

!m = memref<?x?x?x16xf32, strided<[?, ?, ?, 1]>>
!t = tensor<32x16xf32>
!c = tensor<32x32xf32>

// %k is multiplied with %e and with %q: then nothing needs it any more. Rows of q are read before the system is solved.
// CHECK-LABEL: func.func @common(
// CHECK:       %[[K:.*]] = "tile.load"(%arg1,
// CHECK-NEXT:  %[[E:.*]] = "tile.load"(%arg2,
// CHECK-NEXT:  %[[A:.*]] = "tile.dot"(%[[E]], %[[K]])
// CHECK-NEXT:  %[[Q:.*]] = "tile.load"(%arg0,
// CHECK-NEXT:  %[[P:.*]] = "tile.dot"(%[[Q]], %[[K]])
// CHECK-NEXT:  %[[X:.*]] = "tile.solve_unit"(%[[A]], %[[A]])
// The product with what was solved for stays after it.
// CHECK-NEXT:  "tile.dot"(%[[P]], %[[X]])
func.func @common(%arg0: !m, %arg1: !m, %arg2: !m, %arg3: !m) attributes {tile.kernel = {block_kv = 16 : i64, block_q = 32 : i64, grid = "chunks", over = 0 : i64}} {
  %c0 = arith.constant 0 : index
  %c32 = arith.constant 32 : index
  %k = "tile.load"(%arg1, %c0, %c0, %c0, %c32) : (!m, index, index, index, index) -> !t
  %e = "tile.load"(%arg2, %c0, %c0, %c0, %c32) : (!m, index, index, index, index) -> !t
  %a = "tile.dot"(%e, %k) {transpose_b = true} : (!t, !t) -> !c
  %x = "tile.solve_unit"(%a, %a) {upper = false} : (!c, !c) -> !c
  %q = "tile.load"(%arg0, %c0, %c0, %c0, %c32) : (!m, index, index, index, index) -> !t
  %p = "tile.dot"(%q, %k) {transpose_b = true} : (!t, !t) -> !c
  %o = "tile.dot"(%p, %x) {transpose_b = false} : (!c, !c) -> !c
  %r = "tile.dot"(%o, %k) {transpose_b = false} : (!c, !t) -> !t
  "tile.store"(%r, %arg3, %c0, %c0, %c0, %c32) : (!t, !m, index, index, index, index) -> ()
  return
}

// -----

!m = memref<?x?x?x16xf32, strided<[?, ?, ?, 1]>>
!t = tensor<32x16xf32>
!c = tensor<32x32xf32>

// Other chunk scans stay as they are.
// CHECK-LABEL: func.func @plain(
// CHECK:       "tile.dot"(%[[E:.*]], %[[K:.*]]) {
// CHECK-NEXT:  "tile.dot"(%[[A:.*]], %[[E]])
// CHECK-NEXT:  %[[Q:.*]] = "tile.load"
// CHECK-NEXT:  "tile.dot"(%[[Q]], %[[K]])
func.func @plain(%arg0: !m, %arg1: !m, %arg2: !m) attributes {tile.kernel = {block_kv = 16 : i64, block_q = 32 : i64, grid = "chunks", over = 0 : i64}} {
  %c0 = arith.constant 0 : index
  %c32 = arith.constant 32 : index
  %k = "tile.load"(%arg1, %c0, %c0, %c0, %c32) : (!m, index, index, index, index) -> !t
  %e = "tile.load"(%arg2, %c0, %c0, %c0, %c32) : (!m, index, index, index, index) -> !t
  %a = "tile.dot"(%e, %k) {transpose_b = true} : (!t, !t) -> !c
  %b = "tile.dot"(%a, %e) {transpose_b = false} : (!c, !t) -> !t
  %q = "tile.load"(%arg0, %c0, %c0, %c0, %c32) : (!m, index, index, index, index) -> !t
  %p = "tile.dot"(%q, %k) {transpose_b = true} : (!t, !t) -> !c
  return
}
