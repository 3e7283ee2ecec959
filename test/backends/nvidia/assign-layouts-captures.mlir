// The column of an element is the last that exists at most where a captured number is read at it; beside one of the head it stays as it is.
// RUN: attn-opt %s -p 'warp-assign-layouts,canonicalize,cse' | FileCheck %s

!q = memref<?x?x?x64xf16, strided<[?, ?, ?, 1]>>

// CHECK: "warp.kernel"() ({
// CHECK-NEXT: ^bb0({{.*}}, %[[SLOPES:.*]]: memref<?xf32>, %{{.*}}: memref<?x?x?xf32>):
// CHECK: %[[SLOPE:.*]] = memref.load %[[SLOPES]]
// CHECK: "warp.map"() ({
// CHECK-NEXT: ^bb0(%{{.*}}: index, %[[J:.*]]: index):
// CHECK-NOT: arith.minsi
// CHECK: arith.index_cast %[[J]]
// CHECK: arith.mulf %{{.*}}, %[[SLOPE]]
// CHECK: "warp.map"() ({
// CHECK-NEXT: ^bb0(%{{.*}}: index, %[[OTHER:.*]]: index):
// CHECK: %[[AT:.*]] = arith.minsi %[[OTHER]]
// CHECK: memref.load %[[SLOPES]][%[[AT]]]
func.func @sums(%q: !q, %k: !q, %slopes: memref<?xf32>, %o: memref<?x?x?xf32>) attributes {tile.kernel = {block_q = 128 : i64, block_kv = 32 : i64}} {
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
    %slope = memref.load %slopes[%h] : memref<?xf32>
    %x = tensor.extract %s[%i, %j] : tensor<128x?xf32>
    %whole = arith.index_cast %j : index to i32
    %float = arith.sitofp %whole : i32 to f32
    %term = arith.mulf %float, %slope : f32
    %y = arith.addf %x, %term : f32
    "tile.yield"(%y) {operandSegmentSizes = array<i32: 0, 1>} : (f32) -> ()
  }) {reductions = ["sum"], resultSegmentSizes = array<i32: 0, 1>} : (index, index) -> tensor<128xf32>
  %most = "tile.map"(%c128, %keys) ({
  ^bb0(%i: index, %j: index):
    %own = memref.load %slopes[%j] : memref<?xf32>
    %x = tensor.extract %s[%i, %j] : tensor<128x?xf32>
    %y = arith.addf %x, %own : f32
    "tile.yield"(%y) {operandSegmentSizes = array<i32: 0, 1>} : (f32) -> ()
  }) {reductions = ["sum"], resultSegmentSizes = array<i32: 0, 1>} : (index, index) -> tensor<128xf32>
  %both = "tile.map"(%c128) ({
  ^bb0(%i: index):
    %x = tensor.extract %sum[%i] : tensor<128xf32>
    %y = tensor.extract %most[%i] : tensor<128xf32>
    %z = arith.addf %x, %y : f32
    "tile.yield"(%z) {operandSegmentSizes = array<i32: 1, 0>} : (f32) -> ()
  }) {reductions = [], resultSegmentSizes = array<i32: 1, 0>} : (index) -> tensor<128xf32>
  "tile.store"(%both, %o, %b, %h, %begin, %left) : (tensor<128xf32>, memref<?x?x?xf32>, index, index, index, index) -> ()
  return
}
