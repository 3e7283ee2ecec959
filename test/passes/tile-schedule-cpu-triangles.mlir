// Where a map makes a tile zero above or below its diagonal, products with it say so; its other elements, and zeros elsewhere, say nothing.
// RUN: attn-opt %s -p 'tile-schedule{target=cpu}' | FileCheck %s
// RUN: attn-opt %s -p 'tile-schedule{target=cpu},cpu-lower-tiles,canonicalize,cse' | FileCheck %s --check-prefix=LOOPS

// CHECK-LABEL: func.func @triangles(
// CHECK:         "tile.dot"{{.*}} zeros = "above"
// CHECK:         "tile.dot_add"{{.*}} zeros = "below"
// CHECK:         "tile.dot_add"
// CHECK-NOT:     zeros
// CHECK:         return

// The rows of a block multiply what their last one reaches, or what their first one does.
// LOOPS:         %[[END:.*]] = arith.minsi %{{.*}}, %c32
// LOOPS:         scf.for %{{.*}} = %c0 to %[[END]] step %c1 iter_args
// LOOPS:         scf.for %{{.*}} = %{{arg[0-9]+}} to %c32 step %c1 iter_args
func.func @triangles(%n: index, %k: memref<?x?x?x32xf32, strided<[?, ?, ?, ?]>>) attributes {tile.kernel = {block_q = 32, block_kv = 32, grid = "chunks", score = f32}} {
  %b = "tile.program_id"() {axis = 2} : () -> index
  %c32 = arith.constant 32 : index
  %zero = arith.constant 0.0 : f32
  %one = arith.constant 1.0 : f32
  %x = "tile.load"(%k, %b, %b, %b, %c32) : (memref<?x?x?x32xf32, strided<[?, ?, ?, ?]>>, index, index, index, index) -> tensor<32x32xf32>
  %lower = "tile.map"(%c32, %c32) ({
  ^bb0(%i: index, %j: index):
    %before = arith.cmpi sge, %i, %j : index
    %exists = arith.cmpi slt, %j, %n : index
    %present = arith.andi %exists, %before : i1
    %y = arith.select %present, %one, %zero : f32
    "tile.yield"(%y) {operandSegmentSizes = array<i32: 1, 0>} : (f32) -> ()
  }) {reductions = [], resultSegmentSizes = array<i32: 1, 0>} : (index, index) -> tensor<32x32xf32>
  %upper = "tile.map"(%c32, %c32) ({
  ^bb0(%i: index, %j: index):
    %after = arith.cmpi sgt, %j, %i : index
    %y = arith.select %after, %one, %zero : f32
    "tile.yield"(%y) {operandSegmentSizes = array<i32: 1, 0>} : (f32) -> ()
  }) {reductions = [], resultSegmentSizes = array<i32: 1, 0>} : (index, index) -> tensor<32x32xf32>
  %ones = "tile.map"(%c32, %c32) ({
  ^bb0(%i: index, %j: index):
    %after = arith.cmpi sgt, %j, %i : index
    %y = arith.select %after, %zero, %one : f32
    "tile.yield"(%y) {operandSegmentSizes = array<i32: 1, 0>} : (f32) -> ()
  }) {reductions = [], resultSegmentSizes = array<i32: 1, 0>} : (index, index) -> tensor<32x32xf32>
  %first = "tile.dot"(%lower, %x) {transpose_b = false} : (tensor<32x32xf32>, tensor<32x32xf32>) -> tensor<32x32xf32>
  %second = "tile.dot_add"(%first, %upper, %x) {transpose_b = false} : (tensor<32x32xf32>, tensor<32x32xf32>, tensor<32x32xf32>) -> tensor<32x32xf32>
  %third = "tile.dot_add"(%second, %ones, %x) {transpose_b = false} : (tensor<32x32xf32>, tensor<32x32xf32>, tensor<32x32xf32>) -> tensor<32x32xf32>
  "tile.store"(%third, %k, %b, %b, %b, %c32) : (tensor<32x32xf32>, memref<?x?x?x32xf32, strided<[?, ?, ?, ?]>>, index, index, index, index) -> ()
  return
}
