// A loop changes the tile that it starts from: of two that start from one fill, one starts from a fill of its own.
// RUN: attn-opt %s -p 'tile-schedule{target=cpu}' | FileCheck %s

// CHECK-LABEL: func.func @fills(
// CHECK:         %[[FIRST:.*]] = "tile.fill"(%{{.*}})
// CHECK:         %[[SECOND:.*]] = "tile.fill"(%{{.*}})
// CHECK:         scf.for {{.*}} iter_args(%{{.*}} = %[[SECOND]])
// CHECK:         scf.for {{.*}} iter_args(%{{.*}} = %[[FIRST]])
func.func @fills(%o: memref<?x?x?x16xf32>) attributes {tile.kernel = {grid = "chunks", block_q = 16 : i64, block_kv = 16 : i64, blocks = 1 : i64, over = 0 : i64, outputs = ["store"], score = f32}} {
  %c0 = arith.constant 0 : index
  %c1 = arith.constant 1 : index
  %c4 = arith.constant 4 : index
  %c16 = arith.constant 16 : index
  %zero = arith.constant 0.0 : f32
  %one = arith.constant 1.0 : f32
  %fill = "tile.fill"(%zero) {accumulator = 1 : i64} : (f32) -> tensor<16x16xf32>
  %a = scf.for %n = %c0 to %c4 step %c1 iter_args(%x = %fill) -> (tensor<16x16xf32>) {
    %y = "tile.map"(%c16, %c16) ({
    ^bb0(%i: index, %j: index):
      %old = tensor.extract %x[%i, %j] : tensor<16x16xf32>
      %new = arith.addf %old, %one : f32
      "tile.yield"(%new) {operandSegmentSizes = array<i32: 1, 0>} : (f32) -> ()
    }) {reductions = [], resultSegmentSizes = array<i32: 1, 0>} : (index, index) -> tensor<16x16xf32>
    scf.yield %y : tensor<16x16xf32>
  }
  %b = scf.for %n = %c0 to %c4 step %c1 iter_args(%x = %fill) -> (tensor<16x16xf32>) {
    %y = "tile.map"(%c16, %c16) ({
    ^bb0(%i: index, %j: index):
      %old = tensor.extract %x[%i, %j] : tensor<16x16xf32>
      %other = tensor.extract %a[%i, %j] : tensor<16x16xf32>
      %new = arith.addf %old, %other : f32
      "tile.yield"(%new) {operandSegmentSizes = array<i32: 1, 0>} : (f32) -> ()
    }) {reductions = [], resultSegmentSizes = array<i32: 1, 0>} : (index, index) -> tensor<16x16xf32>
    scf.yield %y : tensor<16x16xf32>
  }
  "tile.store"(%b, %o, %c0, %c0, %c0, %c16) : (tensor<16x16xf32>, memref<?x?x?x16xf32>, index, index, index, index) -> ()
  return
}
