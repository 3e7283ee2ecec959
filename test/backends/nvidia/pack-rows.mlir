// Rows of a block are those of eight heads at each position: tensors are seen by them, and the row has its position.
// RUN: attn-opt %s --split-input-file -p 'warp-assign-layouts,canonicalize,cse,warp-pack-rows,canonicalize,cse' | FileCheck %s

!q = memref<?x?x?x64xf16, strided<[?, ?, ?, ?]>>
!rows = memref<?x?x?xf32, strided<[?, ?, ?]>>

// CHECK: ^bb0(%[[Q:.*]]: memref<{{.*}}>, %[[K:.*]]: memref<{{.*}}>, %[[SINKS:.*]]: memref<?xf32>, %[[O:.*]]: memref
// CHECK-DAG: %[[OF_Q:.*]] = "warp.rows_of_heads"(%[[Q]]) {heads = 8 : i64}
// CHECK-DAG: %[[OF_O:.*]] = "warp.rows_of_heads"(%[[O]]) {heads = 8 : i64}
// CHECK-DAG: %[[HEADS:.*]] = memref.dim %[[Q]], %c1
// CHECK: %[[PACKS:.*]] = arith.divui %[[HEADS]], %c8
// CHECK: arith.ceildivsi %{{.*}}, %c16
// CHECK: %[[FIRST:.*]] = arith.muli %[[WARPGROUP:.*]], %c64
// CHECK: %[[PACK:.*]] = arith.remsi %{{.*}}, %[[PACKS]]
// CHECK: %[[HEAD:.*]] = arith.muli %[[PACK]], %c8
// CHECK: %[[OF_KEYS:.*]] = arith.divsi %[[HEAD]],
// CHECK: %[[ROW:.*]] = arith.muli %[[BLOCK:.*]], %c128
// CHECK: %[[POSITION:.*]] = arith.muli %[[BLOCK]], %c16
// CHECK: "warp.copy_async"(%[[OF_Q]], %{{.*}}, %[[PACK]], %[[ROW]],
// CHECK: "warp.copy_async"(%[[K]], %{{.*}}, %[[OF_KEYS]],
// CHECK: "warp.map"
// CHECK-NEXT: ^bb0(%[[I:.*]]: index):
// CHECK-NEXT: %[[OWN:.*]] = arith.remui %[[I]], %c8
// CHECK-NEXT: %[[AT:.*]] = arith.addi %[[HEAD]], %[[OWN]]
// CHECK-NEXT: memref.load %[[SINKS]][%[[AT]]]
// CHECK: ^bb0(%[[I:.*]]: index, %[[J:.*]]: index):
// CHECK: %[[IN_BLOCK:.*]] = arith.addi %[[FIRST]], %[[I]]
// CHECK: %[[PLACE:.*]] = arith.divui %[[IN_BLOCK]], %c8
// CHECK: %[[QUERY:.*]] = arith.addi %[[POSITION]], %[[PLACE]]
// CHECK: arith.cmpi sge, %[[QUERY]], %[[J]]
// CHECK: %[[STORED:.*]] = arith.addi %[[ROW]], %[[FIRST]]
// CHECK: "warp.store"(%{{.*}}, %[[OF_O]], %{{.*}}, %[[PACK]], %[[STORED]])
func.func @copies(%q: !q, %k: !q, %sinks: memref<?xf32>, %o: !rows) attributes {tile.kernel = {block_q = 128 : i64, block_kv = 32 : i64}, tile.schedule = {pack = 8 : i64}} {
  %c0 = arith.constant 0 : index
  %c1 = arith.constant 1 : index
  %c2 = arith.constant 2 : index
  %c128 = arith.constant 128 : index
  %zero = arith.constant 0.0 : f32
  %block = "tile.program_id"() {axis = 0 : i64} : () -> index
  %h = "tile.program_id"() {axis = 1 : i64} : () -> index
  %b = "tile.program_id"() {axis = 2 : i64} : () -> index
  %rows = memref.dim %q, %c2 : !q
  %heads = memref.dim %q, %c1 : !q
  %key_heads = memref.dim %k, %c1 : !q
  %group = arith.divsi %heads, %key_heads : index
  %key_head = arith.divsi %h, %group : index
  %begin = arith.muli %block, %c128 : index
  %next = arith.addi %begin, %c128 : index
  %end = arith.minsi %next, %rows : index
  %left = arith.subi %end, %begin : index
  %qs = "tile.load"(%q, %b, %h, %begin, %left) : (!q, index, index, index, index) -> tensor<128x64xf16>
  %keys = memref.dim %k, %c2 : !q
  %ks = "tile.load"(%k, %b, %key_head, %c0, %keys) : (!q, index, index, index, index) -> tensor<?x64xf16>
  %s = "tile.dot"(%qs, %ks) {transpose_b = true} : (tensor<128x64xf16>, tensor<?x64xf16>) -> tensor<128x?xf32>
  %sink = memref.load %sinks[%h] : memref<?xf32>
  %sum = "tile.map"(%c128, %keys) ({
  ^bb0(%i: index, %j: index):
    %query = arith.addi %begin, %i : index
    %present = arith.cmpi sge, %query, %j : index
    %x = tensor.extract %s[%i, %j] : tensor<128x?xf32>
    %y = arith.addf %x, %sink : f32
    %z = arith.select %present, %y, %zero : f32
    "tile.yield"(%z) {operandSegmentSizes = array<i32: 0, 1>} : (f32) -> ()
  }) {reductions = ["sum"], resultSegmentSizes = array<i32: 0, 1>} : (index, index) -> tensor<128xf32>
  "tile.store"(%sum, %o, %b, %h, %begin, %left) : (tensor<128xf32>, !rows, index, index, index, index) -> ()
  return
}

// -----

// CHECK: warp.refused = {{.*}}"warp-pack-rows" = "the schedule packs no heads"
func.func @fills(%o: memref<?x?x?xf32>) attributes {tile.kernel = {block_q = 64 : i64, block_kv = 32 : i64}} {
  %c64 = arith.constant 64 : index
  %c2 = arith.constant 2 : index
  %block = "tile.program_id"() {axis = 0 : i64} : () -> index
  %h = "tile.program_id"() {axis = 1 : i64} : () -> index
  %b = "tile.program_id"() {axis = 2 : i64} : () -> index
  %rows = memref.dim %o, %c2 : memref<?x?x?xf32>
  %begin = arith.muli %block, %c64 : index
  %next = arith.addi %begin, %c64 : index
  %end = arith.minsi %next, %rows : index
  %left = arith.subi %end, %begin : index
  %zero = arith.constant 0.0 : f32
  %x = "tile.fill"(%zero) {accumulator = 0 : i64} : (f32) -> tensor<64xf32>
  "tile.store"(%x, %o, %b, %h, %begin, %left) : (tensor<64xf32>, memref<?x?x?xf32>, index, index, index, index) -> ()
  return
}

// -----

// A number of each head and key has no place in rows of several heads: nothing is changed.
// CHECK-NOT: warp.rows_of_heads
// CHECK: warp.refused = {{.*}}"warp-pack-rows" = "a number of each pair depends on the head of a query"
func.func @table(%q: memref<?x?x?x64xf16, strided<[?, ?, ?, ?]>>, %k: memref<?x?x?x64xf16, strided<[?, ?, ?, ?]>>, %table: memref<?x?xf32>, %o: memref<?x?x?xf32, strided<[?, ?, ?]>>) attributes {tile.kernel = {block_q = 128 : i64, block_kv = 32 : i64}, tile.schedule = {pack = 8 : i64}} {
  %c0 = arith.constant 0 : index
  %c1 = arith.constant 1 : index
  %c2 = arith.constant 2 : index
  %c128 = arith.constant 128 : index
  %zero = arith.constant 0.0 : f32
  %block = "tile.program_id"() {axis = 0 : i64} : () -> index
  %h = "tile.program_id"() {axis = 1 : i64} : () -> index
  %b = "tile.program_id"() {axis = 2 : i64} : () -> index
  %rows = memref.dim %q, %c2 : memref<?x?x?x64xf16, strided<[?, ?, ?, ?]>>
  %heads = memref.dim %q, %c1 : memref<?x?x?x64xf16, strided<[?, ?, ?, ?]>>
  %key_heads = memref.dim %k, %c1 : memref<?x?x?x64xf16, strided<[?, ?, ?, ?]>>
  %group = arith.divsi %heads, %key_heads : index
  %key_head = arith.divsi %h, %group : index
  %begin = arith.muli %block, %c128 : index
  %next = arith.addi %begin, %c128 : index
  %end = arith.minsi %next, %rows : index
  %left = arith.subi %end, %begin : index
  %qs = "tile.load"(%q, %b, %h, %begin, %left) : (memref<?x?x?x64xf16, strided<[?, ?, ?, ?]>>, index, index, index, index) -> tensor<128x64xf16>
  %keys = memref.dim %k, %c2 : memref<?x?x?x64xf16, strided<[?, ?, ?, ?]>>
  %ks = "tile.load"(%k, %b, %key_head, %c0, %keys) : (memref<?x?x?x64xf16, strided<[?, ?, ?, ?]>>, index, index, index, index) -> tensor<?x64xf16>
  %s = "tile.dot"(%qs, %ks) {transpose_b = true} : (tensor<128x64xf16>, tensor<?x64xf16>) -> tensor<128x?xf32>
  %sum = "tile.map"(%c128, %keys) ({
  ^bb0(%i: index, %j: index):
    %query = arith.addi %begin, %i : index
    %present = arith.cmpi sge, %query, %j : index
    %x = tensor.extract %s[%i, %j] : tensor<128x?xf32>
    %own = memref.load %table[%h, %j] : memref<?x?xf32>
    %y = arith.addf %x, %own : f32
    %z = arith.select %present, %y, %zero : f32
    "tile.yield"(%z) {operandSegmentSizes = array<i32: 0, 1>} : (f32) -> ()
  }) {reductions = ["sum"], resultSegmentSizes = array<i32: 0, 1>} : (index, index) -> tensor<128xf32>
  "tile.store"(%sum, %o, %b, %h, %begin, %left) : (tensor<128xf32>, memref<?x?x?xf32, strided<[?, ?, ?]>>, index, index, index, index) -> ()
  return
}
