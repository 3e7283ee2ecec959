// Blocks of rows end where the rows end; the first one, which is short, stores only its own.
// RUN: attn-opt %s --split-input-file -p 'warp-assign-layouts,canonicalize,cse,warp-align-tiles,canonicalize,cse' | FileCheck %s

!q = memref<?x?x?x64xf16, strided<[?, ?, ?, ?]>>

// CHECK: %[[BLOCKS:.*]] = arith.ceildivsi %[[ROWS:.*]], %c128
// CHECK: %[[ALL:.*]] = arith.muli %[[BLOCKS]], %c128
// CHECK-NEXT: %[[LACKING:.*]] = arith.subi %[[ALL]], %[[ROWS]]
// CHECK-NEXT: %[[GROUPS:.*]] = arith.divui %[[LACKING]], %c64
// CHECK-NEXT: %[[SHIFT:.*]] = arith.muli %[[GROUPS]], %c64
// CHECK: %[[BLOCK:.*]] = arith.remsi %{{.*}}, %[[BLOCKS]]
// CHECK: %[[BEGIN:.*]] = arith.muli %[[BLOCK]], %c128
// CHECK-NEXT: %[[MOVED:.*]] = arith.subi %[[BEGIN]], %[[SHIFT]]
// CHECK: %[[FIRST:.*]] = arith.maxsi %{{.*}}, %c0
// CHECK: %[[NEXT:.*]] = arith.addi %[[MOVED]], %c128
// CHECK: %[[END:.*]] = arith.maxsi %{{.*}}, %c0
// CHECK: "warp.copy_async"(%{{.*}}, %{{.*}}, %{{.*}}, %[[FIRST]],
// CHECK: %[[ROW:.*]] = arith.addi %[[FIRST]], %{{.*}}
// CHECK: %[[OWN:.*]] = arith.cmpi slt, %[[ROW]], %[[END]]
// CHECK-NEXT: %[[TO:.*]] = arith.select %[[OWN]], %[[ROW]], %[[ROWS]]
// CHECK-NEXT: "warp.store"(%{{.*}}, %{{.*}}, %{{.*}}, %{{.*}}, %[[TO]])
func.func @copies(%q: !q, %k: !q, %o: memref<?x?x?xf32>) attributes {tile.kernel = {block_q = 128 : i64, block_kv = 32 : i64}, tile.schedule = {align = "end"}} {
  %c0 = arith.constant 0 : index
  %c2 = arith.constant 2 : index
  %c128 = arith.constant 128 : index
  %block = "tile.program_id"() {axis = 0 : i64} : () -> index
  %h = "tile.program_id"() {axis = 1 : i64} : () -> index
  %b = "tile.program_id"() {axis = 2 : i64} : () -> index
  %rows = memref.dim %q, %c2 : !q
  %begin = arith.muli %block, %c128 : index
  %next = arith.addi %begin, %c128 : index
  %end = arith.minsi %next, %rows : index
  %left = arith.subi %end, %begin : index
  %qs = "tile.load"(%q, %b, %h, %begin, %left) : (!q, index, index, index, index) -> tensor<128x64xf16>
  %keys = memref.dim %k, %c2 : !q
  %ks = "tile.load"(%k, %b, %h, %c0, %keys) : (!q, index, index, index, index) -> tensor<?x64xf16>
  %s = "tile.dot"(%qs, %ks) {transpose_b = true} : (tensor<128x64xf16>, tensor<?x64xf16>) -> tensor<128x?xf32>
  %sum = "tile.map"(%c128, %keys) ({
  ^bb0(%i: index, %j: index):
    %x = tensor.extract %s[%i, %j] : tensor<128x?xf32>
    "tile.yield"(%x) {operandSegmentSizes = array<i32: 0, 1>} : (f32) -> ()
  }) {reductions = ["sum"], resultSegmentSizes = array<i32: 0, 1>} : (index, index) -> tensor<128xf32>
  "tile.store"(%sum, %o, %b, %h, %begin, %left) : (tensor<128xf32>, memref<?x?x?xf32>, index, index, index, index) -> ()
  return
}

// -----

!q = memref<?x?x?x64xf16, strided<[?, ?, ?, ?]>>

// CHECK: warp.refused = {"warp-align-tiles" = "the schedule has blocks that begin with the rows"}
func.func @copies(%q: !q, %k: !q, %o: memref<?x?x?xf32>) attributes {tile.kernel = {block_q = 128 : i64, block_kv = 32 : i64}} {
  %c0 = arith.constant 0 : index
  %c2 = arith.constant 2 : index
  %c128 = arith.constant 128 : index
  %block = "tile.program_id"() {axis = 0 : i64} : () -> index
  %h = "tile.program_id"() {axis = 1 : i64} : () -> index
  %b = "tile.program_id"() {axis = 2 : i64} : () -> index
  %rows = memref.dim %q, %c2 : !q
  %begin = arith.muli %block, %c128 : index
  %next = arith.addi %begin, %c128 : index
  %end = arith.minsi %next, %rows : index
  %left = arith.subi %end, %begin : index
  %qs = "tile.load"(%q, %b, %h, %begin, %left) : (!q, index, index, index, index) -> tensor<128x64xf16>
  %keys = memref.dim %k, %c2 : !q
  %ks = "tile.load"(%k, %b, %h, %c0, %keys) : (!q, index, index, index, index) -> tensor<?x64xf16>
  %s = "tile.dot"(%qs, %ks) {transpose_b = true} : (tensor<128x64xf16>, tensor<?x64xf16>) -> tensor<128x?xf32>
  %sum = "tile.map"(%c128, %keys) ({
  ^bb0(%i: index, %j: index):
    %x = tensor.extract %s[%i, %j] : tensor<128x?xf32>
    "tile.yield"(%x) {operandSegmentSizes = array<i32: 0, 1>} : (f32) -> ()
  }) {reductions = ["sum"], resultSegmentSizes = array<i32: 0, 1>} : (index, index) -> tensor<128xf32>
  "tile.store"(%sum, %o, %b, %h, %begin, %left) : (tensor<128xf32>, memref<?x?x?xf32>, index, index, index, index) -> ()
  return
}
