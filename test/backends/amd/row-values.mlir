// What a chunk scan reads for each row, and for none, is read once.
// RUN: attn-opt %s -p amd-row-values | FileCheck %s

// CHECK-LABEL: func.func @attention(
// CHECK:         %[[A:.*]] = memref.load %{{.*}}[%{{.*}}] : memref<?xf32>
// CHECK:         scf.for
// CHECK:           %[[DT:.*]] = "tile.map"(%c64) ({
// CHECK:             memref.load %{{.*}} : memref<?x?x?xf32>
// CHECK:           "tile.map"(%c64, %c32) ({
// CHECK-NOT:         memref.load
// CHECK:             tensor.extract %[[DT]][%{{.*}}] : tensor<64xf32>
// CHECK:             arith.mulf %{{.*}}, %[[A]] : f32
func.func @attention(%x: memref<?x?x?x32xf16>, %dt: memref<?x?x?xf32>, %a: memref<?xf32>, %out: memref<?x?x?x32xf16>)
    attributes {tile.kernel = {grid = "chunks", block_q = 64 : i64, block_kv = 32 : i64, blocks = 1 : i64, over = 0 : i64, score = f32}} {
  %c0 = arith.constant 0 : index
  %c2 = arith.constant 2 : index
  %c32 = arith.constant 32 : index
  %c64 = arith.constant 64 : index
  %h = "tile.program_id"() {axis = 1 : i64} : () -> index
  %b = "tile.program_id"() {axis = 2 : i64} : () -> index
  %length = memref.dim %x, %c2 : memref<?x?x?x32xf16>
  scf.for %begin = %c0 to %length step %c64 {
    %tile = "tile.load"(%x, %b, %h, %begin, %c64) : (memref<?x?x?x32xf16>, index, index, index, index) -> tensor<64x32xf16>
    %changed = "tile.map"(%c64, %c32) ({
    ^bb0(%i: index, %d: index):
      %t = arith.addi %begin, %i : index
      %step = memref.load %dt[%b, %h, %t] : memref<?x?x?xf32>
      %e = tensor.extract %tile[%i, %d] : tensor<64x32xf16>
      %f = arith.extf %e : f16 to f32
      %y = arith.mulf %f, %step : f32
      %a_h = memref.load %a[%h] : memref<?xf32>
      %z = arith.mulf %y, %a_h : f32
      %w = arith.truncf %z : f32 to f16
      "tile.yield"(%w) {operandSegmentSizes = array<i32: 1, 0>} : (f16) -> ()
    }) {reductions = [], resultSegmentSizes = array<i32: 1, 0>} : (index, index) -> tensor<64x32xf16>
    "tile.store"(%changed, %out, %b, %h, %begin, %c64) : (tensor<64x32xf16>, memref<?x?x?x32xf16>, index, index, index, index) -> ()
  }
  return
}
