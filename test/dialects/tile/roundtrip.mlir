// Every op of the dialect parses, prints, and parses again to the same text.
// RUN: attn-opt %s | attn-opt | FileCheck %s

!kv = memref<?x?x?x64xf16, strided<[?, ?, ?, ?]>>

// CHECK-LABEL: func.func @kernel(
// CHECK-SAME:    %[[K:[^:]*]]: memref<?x?x?x64xf16
// CHECK-SAME:    %[[LSE:[^:]*]]: memref<?x?x?xf32
func.func @kernel(%k: !kv, %lse: memref<?x?x?xf32>, %n: index, %rows: memref<?xi32>) {
  // CHECK: %[[BLOCK:.*]] = "tile.program_id"() {axis = 0 : i64} : () -> index
  %block = "tile.program_id"() {axis = 0} : () -> index
  %h = "tile.program_id"() {axis = 1} : () -> index
  %b = "tile.program_id"() {axis = 2} : () -> index
  // CHECK: %[[A:.*]] = "tile.load"(%[[K]], %{{.*}}, %{{.*}}, %[[BLOCK]], %{{.*}}) : ({{.*}}) -> tensor<32x64xf16>
  %a = "tile.load"(%k, %b, %h, %block, %n) : (!kv, index, index, index, index) -> tensor<32x64xf16>
  // CHECK: "tile.gather"(%[[K]], %{{.*}}, %{{.*}}, %{{.*}}, %{{.*}}, %[[BLOCK]]) : ({{.*}}) -> tensor<?x64xf16>
  %g = "tile.gather"(%k, %b, %h, %rows, %n, %block) : (!kv, index, index, memref<?xi32>, index, index) -> tensor<?x64xf16>
  %zero = arith.constant 0.0 : f32
  // CHECK: %[[ACC:.*]] = "tile.fill"(%{{.*}}) : (f32) -> tensor<32x32xf32>
  %acc = "tile.fill"(%zero) : (f32) -> tensor<32x32xf32>
  // CHECK: %[[S:.*]] = "tile.dot"(%[[A]], %[[A]]) {transpose_b = true}
  %s = "tile.dot"(%a, %a) {transpose_b = true} : (tensor<32x64xf16>, tensor<32x64xf16>) -> tensor<32x32xf32>
  // CHECK: %[[SUM:.*]] = "tile.dot_add"(%[[ACC]], %[[A]], %[[A]]) {transpose_b = true}
  %sum = "tile.dot_add"(%acc, %a, %a) {transpose_b = true} : (tensor<32x32xf32>, tensor<32x64xf16>, tensor<32x64xf16>) -> tensor<32x32xf32>
  // CHECK: %[[MAP:.*]]:2 = "tile.map"(%{{.*}}, %{{.*}}) ({
  %c32 = arith.constant 32 : index
  %e, %max = "tile.map"(%c32, %c32) ({
  // CHECK-NEXT: ^bb0(%[[I:.*]]: index, %[[J:.*]]: index):
  ^bb0(%i: index, %j: index):
    // CHECK-NEXT: %[[X:.*]] = tensor.extract %[[S]][%[[I]], %[[J]]]
    %x = tensor.extract %s[%i, %j] : tensor<32x32xf32>
    // CHECK-NEXT: "tile.yield"(%[[X]], %[[X]]) {operandSegmentSizes = array<i32: 1, 1>} : (f32, f32) -> ()
    "tile.yield"(%x, %x) {operandSegmentSizes = array<i32: 1, 1>} : (f32, f32) -> ()
  // CHECK-NEXT: {reductions = ["max"], resultSegmentSizes = array<i32: 1, 1>}
  }) {reductions = ["max"], resultSegmentSizes = array<i32: 1, 1>} : (index, index) -> (tensor<32x32xf32>, tensor<32xf32>)
  // CHECK: "tile.dot_rescale"(%[[SUM]], %[[MAP]]#1, %[[A]], %[[A]]) {transpose_b = true}
  %r = "tile.dot_rescale"(%sum, %max, %a, %a) {transpose_b = true} : (tensor<32x32xf32>, tensor<32xf32>, tensor<32x64xf16>, tensor<32x64xf16>) -> tensor<32x32xf32>
  // CHECK: "tile.store"(%[[MAP]]#1, %[[LSE]],
  "tile.store"(%max, %lse, %b, %h, %block, %n) : (tensor<32xf32>, memref<?x?x?xf32>, index, index, index, index) -> ()
  return
}

// CHECK-LABEL: func.func @sums(
// CHECK-SAME:    %[[DQ:[^:]*]]: memref<?x?x?x?x64xf32>, %[[TABLE:[^:]*]]: memref<?x?xf32>
func.func @sums(%dq: memref<?x?x?x?x64xf32>, %table: memref<?x?xf32>, %w: tensor<16x?xf32>, %k: tensor<?x64xf32>, %n: index) {
  // CHECK: "tile.accumulate"(%{{.*}}, %{{.*}}, %[[DQ]], %[[N:[^,]*]], %[[N]], %[[N]], %[[N]], %[[N]])
  "tile.accumulate"(%w, %k, %dq, %n, %n, %n, %n, %n) : (tensor<16x?xf32>, tensor<?x64xf32>, memref<?x?x?x?x64xf32>, index, index, index, index, index) -> ()
  // CHECK: "tile.scatter_add"(%[[TABLE]], %[[N]], %[[N]]) ({
  "tile.scatter_add"(%table, %n, %n) ({
  // CHECK-NEXT: ^bb0(%[[ROW:.*]]: index, %[[COLUMN:.*]]: index):
  ^bb0(%i: index, %j: index):
    // CHECK-NEXT: %[[X:.*]] = tensor.extract
    %x = tensor.extract %w[%i, %j] : tensor<16x?xf32>
    // CHECK-NEXT: %[[PRESENT:.*]] = arith.cmpi
    %present = arith.cmpi slt, %i, %j : index
    // CHECK-NEXT: "tile.scatter_yield"(%[[X]], %[[PRESENT]], %[[COLUMN]], %[[ROW]]) : (f32, i1, index, index) -> ()
    "tile.scatter_yield"(%x, %present, %j, %i) : (f32, i1, index, index) -> ()
  }) : (memref<?x?xf32>, index, index) -> ()
  return
}
