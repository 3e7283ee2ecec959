// On sm_80 each warp multiplies its own rows, and copies its share of what is loaded; all meet before and behind the copies.
// RUN: attn-opt %s --split-input-file -p 'warp-assign-layouts{arch=sm_80},canonicalize,cse' | FileCheck %s

!q = memref<?x?x?x64xf16, strided<[?, ?, ?, ?]>>

// CHECK-LABEL: "warp.kernel"() ({
// CHECK-NEXT: ^bb0(%[[Q:.*]]: memref<{{.*}}>, %[[K:.*]]: memref<{{.*}}>, %[[O:.*]]: memref<{{.*}}>):
// CHECK: %[[BUFFER:.*]] = "warp.alloc"() : () -> memref<1x64x64xf16, #warp.shared<128 : i64>>
// CHECK-NOT: warp.mbarrier
// CHECK: "warp.role"() ({
// CHECK-NEXT: ^bb0(%[[GROUP:.*]]: index):
// CHECK: %[[ROW:.*]] = arith.muli %[[GROUP]], %c64 : index
func.func @sums(%q: !q, %k: !q, %o: memref<?x?x?xf32>) attributes {tile.kernel = {block_q = 128 : i64, block_kv = 64 : i64},
                                                                   tile.schedule = {warp_rows = 16 : i64}} {
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
  // CHECK: %[[OWN:.*]] = "warp.view"(%{{.*}}, %{{.*}}, %[[ROW]], %c0) : {{.*}} -> memref<64x64xf16, #warp.shared<128 : i64>>
  // CHECK: "warp.copy_lanes_async"(%[[Q]], %{{.*}}, %{{.*}}, %{{.*}}, %c0, %[[OWN]])
  %qs = "tile.load"(%q, %b, %h, %begin, %left) : (!q, index, index, index, index) -> tensor<128x64xf16>
  %keys = memref.dim %k, %c2 : !q
  // Each warpgroup's share of 32 rows: nobody reads the stage any more, its lanes copy, all have copied.
  // CHECK: %[[STAGE:.*]]:2 = "warp.stage"(%arg1_count) {stages = 1 : i64}
  // CHECK-NEXT: %[[TILE:.*]] = "warp.view"(%[[BUFFER]], %[[STAGE]]#0, %c0, %c0)
  // CHECK-NEXT: %[[FIRST:.*]] = arith.muli %[[GROUP]], %c32 : index
  // CHECK-NEXT: %[[SHARE:.*]] = "warp.view"(%[[BUFFER]], %[[STAGE]]#0, %[[FIRST]], %c0) : {{.*}} -> memref<32x64xf16, #warp.shared<128 : i64>>
  // CHECK-NEXT: "warp.named_sync"(%c1) {threads = 256 : i64}
  // CHECK-NEXT: "warp.copy_lanes_async"(%[[K]], %{{.*}}, %{{.*}}, %[[FIRST]], %c0, %[[SHARE]])
  // CHECK-NEXT: "warp.copy_commit"()
  // CHECK-NEXT: "warp.copy_wait"() {pending = 0 : i64}
  // CHECK-NEXT: "warp.named_sync"(%c1) {threads = 256 : i64}
  %ks = "tile.load"(%k, %b, %h, %c0, %keys) : (!q, index, index, index, index) -> tensor<?x64xf16>
  // A warpgroup's rows of q, in shared memory, times k, added to zeros.
  // CHECK: %[[ZEROS:.*]] = "warp.map"() ({
  // CHECK: %[[S:.*]] = "warp.mma"(%[[ZEROS]], %[[OWN]], %[[TILE]]) {transpose_a = false, transpose_b = true}
  // CHECK-SAME: -> tensor<64x64xf32, #warp.layout<"mma16", "tile">>
  %s = "tile.dot"(%qs, %ks) {transpose_b = true} : (tensor<128x64xf16>, tensor<?x64xf16>) -> tensor<128x?xf32>
  // CHECK-NOT: warp.arrive
  // CHECK: "warp.reduce"
  %sum = "tile.map"(%c128, %keys) ({
  ^bb0(%i: index, %j: index):
    %x = tensor.extract %s[%i, %j] : tensor<128x?xf32>
    "tile.yield"(%x) {operandSegmentSizes = array<i32: 0, 1>} : (f32) -> ()
  }) {reductions = ["sum"], resultSegmentSizes = array<i32: 0, 1>} : (index, index) -> tensor<128xf32>
  // CHECK: "warp.store"
  "tile.store"(%sum, %o, %b, %h, %begin, %left) : (tensor<128xf32>, memref<?x?x?xf32>, index, index, index, index) -> ()
  // CHECK: warp.schedule = {arch = "sm_80", warp_rows = 16 : i64}
  return
}

// -----

// CHECK-LABEL: func.func @chunks
// CHECK-SAME: warp.refused = {"warp-assign-layouts" = "its programs are chunks, not blocks of rows"}
func.func @chunks(%q: memref<?x?x?x64xf16>) attributes {tile.kernel = {block_q = 128 : i64, block_kv = 32 : i64, grid = "chunks"}} {
  return
}

// -----

// CHECK-LABEL: func.func @rows
// CHECK-SAME: warp.refused = {"warp-assign-layouts" = "a block has 64 or 128 rows, 16 for each of 4 or 8 warps, not 192"}
func.func @rows(%q: memref<?x?x?x64xf16>) attributes {tile.kernel = {block_q = 192 : i64, block_kv = 32 : i64}} {
  return
}

// -----

// CHECK-LABEL: func.func @rows_of_a_warp
// CHECK-SAME: warp.refused = {"warp-assign-layouts" = "a warp has 16 or 32 rows, not 48"}
func.func @rows_of_a_warp(%q: memref<?x?x?x64xf16>) attributes {tile.kernel = {block_q = 192 : i64, block_kv = 32 : i64},
                                                                tile.schedule = {warp_rows = 48 : i64}} {
  return
}

// -----

// CHECK-LABEL: func.func @few_keys
// CHECK-SAME: warp.refused = {"warp-assign-layouts" = "8 warps copy a multiple of 8 rows each, not 32 together"}
func.func @few_keys(%k: memref<?x?x?x64xf16>) attributes {tile.kernel = {block_q = 128 : i64, block_kv = 32 : i64},
                                                          tile.schedule = {warp_rows = 16 : i64}} {
  %c0 = arith.constant 0 : index
  %c32 = arith.constant 32 : index
  %ks = "tile.load"(%k, %c0, %c0, %c0, %c32) : (memref<?x?x?x64xf16>, index, index, index, index) -> tensor<32x64xf16>
  %s = "tile.dot"(%ks, %ks) {transpose_b = true} : (tensor<32x64xf16>, tensor<32x64xf16>) -> tensor<32x32xf32>
  return
}
