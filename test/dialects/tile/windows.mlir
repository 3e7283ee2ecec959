// Tiles of captured tensors keep their form.
// RUN: attn-opt %s | FileCheck %s

// CHECK-LABEL: func.func @windows(
// CHECK-SAME:    %[[BIAS:[^:]*]]: memref<?x?x?xf16>, %[[TABLE:[^:]*]]: memref<?xf32>, %[[SUMS:[^:]*]]: memref<?x?x?xf32>,
// CHECK-SAME:    %[[TILE:[^:]*]]: tensor<16x?xf32>, %[[N:[^:]*]]: index)
func.func @windows(%bias: memref<?x?x?xf16>, %table: memref<?xf32>, %sums: memref<?x?x?xf32>, %tile: tensor<16x?xf32>, %n: index) {
  // CHECK: "tile.load_window"(%[[BIAS]], %[[N]], %[[N]], %[[N]], %[[N]], %[[N]])
  // CHECK-SAME: {column_steps = array<i64: 0, 0, 1>, row_steps = array<i64: 0, 1, 0>}
  %w = "tile.load_window"(%bias, %n, %n, %n, %n, %n) {row_steps = array<i64: 0, 1, 0>, column_steps = array<i64: 0, 0, 1>} : (memref<?x?x?xf16>, index, index, index, index, index) -> tensor<16x?xf16>
  // CHECK: "tile.band"(%[[N]], %[[N]]) ({
  %b = "tile.band"(%n, %n) ({
  // CHECK-NEXT: ^bb0(%[[I:.*]]: index, %[[J:.*]]: index):
  ^bb0(%i: index, %j: index):
    %apart = arith.subi %i, %j : index
    %x = memref.load %table[%apart] : memref<?xf32>
    "tile.yield"(%x) {operandSegmentSizes = array<i32: 1, 0>} : (f32) -> ()
  }) : (index, index) -> tensor<16x?xf32>
  // CHECK: "tile.add_window"(%[[TILE]], %[[SUMS]], %[[N]], %[[N]], %[[N]], %[[N]], %[[N]])
  "tile.add_window"(%tile, %sums, %n, %n, %n, %n, %n) {row_steps = array<i64: 0, 1, 0>, column_steps = array<i64: 0, 0, 1>} : (tensor<16x?xf32>, memref<?x?x?xf32>, index, index, index, index, index) -> ()
  // CHECK: "tile.add_band"(%[[TILE]], %[[TABLE]], %[[N]], %[[N]]) ({
  "tile.add_band"(%tile, %table, %n, %n) ({
  ^bb0(%i: index, %j: index):
    %apart = arith.subi %i, %j : index
    "tile.yield"(%apart) {operandSegmentSizes = array<i32: 1, 0>} : (index) -> ()
  }) : (tensor<16x?xf32>, memref<?xf32>, index, index) -> ()
  return
}
