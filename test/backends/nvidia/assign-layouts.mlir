// A tiled kernel becomes a kernel of the warp dialect: what is loaded lies in shared memory, what is computed in registers.
// RUN: attn-opt %s --split-input-file -p 'warp-assign-layouts,canonicalize,cse' | FileCheck %s

!q = memref<?x?x?x64xf16, strided<[?, ?, ?, ?]>>

// CHECK-LABEL: "warp.kernel"() ({
// CHECK-NEXT: ^bb0(%[[Q:.*]]: memref<{{.*}}>, %[[K:.*]]: memref<{{.*}}>, %[[O:.*]]: memref<{{.*}}>):
// CHECK: %[[BUFFER:.*]] = "warp.alloc"() : () -> memref<1x32x64xf16, #warp.shared<128 : i64>>
// CHECK-NEXT: %[[FULL:.*]] = "warp.mbarrier"() : () -> !warp.barrier<1 : i64, 1 : i64>
// CHECK-NEXT: %[[FREE:.*]] = "warp.mbarrier"() : () -> !warp.barrier<1 : i64, 8 : i64>
// CHECK: "warp.role"() ({
// CHECK-NEXT: ^bb0(%[[GROUP:.*]]: index):
// CHECK: %[[ROW:.*]] = arith.muli %[[GROUP]], %c64 : index
// CHECK: %[[FIRST:.*]] = arith.cmpi eq, %[[GROUP]], %c0 : index
func.func @sums(%q: !q, %k: !q, %o: memref<?x?x?xf32>) attributes {tile.kernel = {block_q = 128 : i64, block_kv = 32 : i64}} {
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
  // One warpgroup copies, all wait.
  // CHECK: %[[STAGE:.*]]:2 = "warp.stage"(%arg1_count) {stages = 1 : i64}
  // CHECK: %[[KEYS:.*]] = "warp.view"(%[[BUFFER]], %[[STAGE]]#0, %c0, %c0)
  // CHECK: scf.if %[[FIRST]] {
  // CHECK: %[[OTHER:.*]] = arith.xori %[[STAGE]]#1, %c1 : index
  // CHECK: "warp.wait"(%[[FREE]], %[[STAGE]]#0, %[[OTHER]])
  // CHECK: "warp.arrive_expect"(%[[FULL]], %[[STAGE]]#0) {bytes = 4096 : i64}
  // CHECK: "warp.copy_async"(%[[K]], {{.*}}, %[[KEYS]], %[[FULL]], %[[STAGE]]#0)
  // CHECK: "warp.wait"(%[[FULL]], %[[STAGE]]#0, %[[STAGE]]#1)
  %ks = "tile.load"(%k, %b, %h, %c0, %keys) : (!q, index, index, index, index) -> tensor<?x64xf16>
  // A product of the warpgroup's rows, which is waited for; then the keys are given back.
  // CHECK: %[[OWN:.*]] = "warp.view"({{.*}}, %[[ROW]], %c0) {{.*}} -> memref<64x64xf16, #warp.shared<128 : i64>>
  // CHECK: "warp.mma_async"(%{{.*}}, %[[OWN]], %[[KEYS]], %false) {transpose_a = false, transpose_b = true}
  // CHECK: "warp.mma_commit"
  // CHECK-NEXT: %[[S:.*]] = "warp.mma_wait"({{.*}}) {pending = 0 : i64} : ({{.*}}) -> tensor<64x32xf32, #warp.layout<"wgmma", "tile">>
  // CHECK: "warp.arrive"(%[[FREE]], %[[STAGE]]#0)
  %s = "tile.dot"(%qs, %ks) {transpose_b = true} : (tensor<128x64xf16>, tensor<?x64xf16>) -> tensor<128x?xf32>
  // Columns that do not exist take part in no sum; each thread sums what it has, then the threads of a row do.
  // CHECK: %[[PARTS:.*]] = "warp.map"() ({
  // CHECK-NEXT: ^bb0(%[[I:.*]]: index, %[[J:.*]]: index):
  // CHECK: %[[X:.*]] = tensor.extract %[[S]][%[[I]], %[[J]]]
  // CHECK: %[[EXISTS:.*]] = arith.cmpi slt, %[[J]], %{{.*}} : index
  // CHECK: arith.select %[[EXISTS]], %[[X]], %cst{{.*}} : f32
  // CHECK: }) {reductions = ["sum"], {{.*}}shape = array<i64: 64, 32>} : () -> tensor<64x4xf32, #warp.layout<"wgmma", "parts">>
  // CHECK-NEXT: %[[SUM:.*]] = "warp.reduce"(%[[PARTS]]) {kind = "sum"}
  %sum = "tile.map"(%c128, %keys) ({
  ^bb0(%i: index, %j: index):
    %x = tensor.extract %s[%i, %j] : tensor<128x?xf32>
    "tile.yield"(%x) {operandSegmentSizes = array<i32: 0, 1>} : (f32) -> ()
  }) {reductions = ["sum"], resultSegmentSizes = array<i32: 0, 1>} : (index, index) -> tensor<128xf32>
  // CHECK: %[[AT:.*]] = arith.addi %{{.*}}, %[[ROW]] : index
  // CHECK-NEXT: "warp.store"(%[[SUM]], %[[O]], %{{.*}}, %{{.*}}, %[[AT]])
  "tile.store"(%sum, %o, %b, %h, %begin, %left) : (tensor<128xf32>, memref<?x?x?xf32>, index, index, index, index) -> ()
  // CHECK: }) {registers = 248 : i64, sym_name = "all", warpgroups = 2 : i64, warps = 4 : i64}
  // CHECK: function = "sums"
  return
}

// -----

// Keys that are computed have no place yet: the function stays, with the reason.
// CHECK-LABEL: func.func @changed_keys
// CHECK-SAME: warp.refused = {"warp-assign-layouts" = "computes a tile of other rows than the 128 of a block: tensor<32x64xf16>"}
func.func @changed_keys(%k: memref<?x?x?x64xf16>) attributes {tile.kernel = {block_q = 128 : i64, block_kv = 32 : i64}} {
  %c0 = arith.constant 0 : index
  %c32 = arith.constant 32 : index
  %c64 = arith.constant 64 : index
  %ks = "tile.load"(%k, %c0, %c0, %c0, %c32) : (memref<?x?x?x64xf16>, index, index, index, index) -> tensor<32x64xf16>
  %t = "tile.map"(%c32, %c64) ({
  ^bb0(%i: index, %j: index):
    %x = tensor.extract %ks[%i, %j] : tensor<32x64xf16>
    "tile.yield"(%x) {operandSegmentSizes = array<i32: 1, 0>} : (f16) -> ()
  }) {reductions = [], resultSegmentSizes = array<i32: 1, 0>} : (index, index) -> tensor<32x64xf16>
  return
}

// -----

// CHECK-LABEL: func.func @pairs
// CHECK-SAME: warp.refused = {"warp-assign-layouts" = "a kernel over pairs has one loop over the blocks of keys of a chunk"}
func.func @pairs() attributes {tile.kernel = {block_q = 128 : i64, block_kv = 32 : i64, grid = "pairs"}} {
  return
}

// -----

// CHECK-LABEL: func.func @rows
// CHECK-SAME: warp.refused = {"warp-assign-layouts" = "a block has 64, 128 or 192 rows, 64 for each warpgroup, not 96"}
func.func @rows() attributes {tile.kernel = {block_q = 96 : i64, block_kv = 32 : i64}} {
  return
}

// -----

// CHECK-LABEL: func.func @turing
// CHECK-SAME: warp.refused = {"warp-assign-layouts" = "there is no description of 'sm_75' (known: sm_90a, sm_80)"}
func.func @turing() attributes {tile.kernel = {block_q = 128 : i64, block_kv = 32 : i64}, tile.schedule = {arch = "sm_75"}} {
  return
}

// -----

// CHECK-LABEL: func.func @nothing
// CHECK-SAME: warp.refused = {"warp-assign-layouts" = "it has no argument number 0, whose rows its programs are"}
func.func @nothing() attributes {tile.kernel = {block_q = 128 : i64, block_kv = 32 : i64}} {
  return
}
