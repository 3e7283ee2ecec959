// RUN: attn-opt %s -p 'nvidia-number-rows,canonicalize' | FileCheck %s

// What a map computes for a row is a number of the row, which another map makes; one that is only read stays.
// CHECK-LABEL: func.func @scan(
// CHECK:         scf.for
// CHECK:           %[[NUMBERS:.*]] = "tile.map"(%c32) ({
// CHECK:             %[[SQUARE:.*]] = memref.load %{{.*}}[%{{.*}}]
// CHECK:             %[[LENGTH:.*]] = math.rsqrt %[[SQUARE]]
// CHECK:             "tile.yield"(%[[LENGTH]])
// CHECK:           }) {{.*}} -> tensor<32xf32>
// CHECK:           "tile.map"(%c32, %c64)
// CHECK-NEXT:      ^bb0(%[[I:.*]]: index, %[[J:.*]]: index):
// CHECK-DAG:         %[[NUMBER:.*]] = tensor.extract %[[NUMBERS]][%[[I]]]
// CHECK-DAG:         memref.load %{{.*}}[%[[I]]]
// CHECK-NOT:         math.rsqrt
// CHECK:             "tile.yield"

// Other kernels have no warps that help.
// CHECK-LABEL: func.func @other(
// CHECK-NOT:       "tile.map"(%c32)
func.func @scan(%x: tensor<32x64xf32>, %squares: memref<?xf32>, %beta: memref<?xf32>, %out: memref<?x?x?x64xf32>, %end: index) attributes {gpu.prepared = {}} {
  %c0 = arith.constant 0 : index
  %c32 = arith.constant 32 : index
  %c64 = arith.constant 64 : index
  scf.for %at = %c0 to %end step %c32 {
    %scaled = "tile.map"(%c32, %c64) ({
    ^bb0(%i: index, %j: index):
      %place = arith.addi %at, %i : index
      %square = memref.load %squares[%place] : memref<?xf32>
      %length = math.rsqrt %square : f32
      %share = memref.load %beta[%i] : memref<?xf32>
      %a = tensor.extract %x[%i, %j] : tensor<32x64xf32>
      %b = arith.mulf %a, %length : f32
      %c = arith.mulf %b, %share : f32
      "tile.yield"(%c) {operandSegmentSizes = array<i32: 1, 0>} : (f32) -> ()
    }) {reductions = [], resultSegmentSizes = array<i32: 1, 0>} : (index, index) -> tensor<32x64xf32>
    "tile.store"(%scaled, %out, %c0, %c0, %at, %c32) : (tensor<32x64xf32>, memref<?x?x?x64xf32>, index, index, index, index) -> ()
  }
  return
}

func.func @other(%x: tensor<32x64xf32>, %squares: memref<?xf32>, %out: memref<?x?x?x64xf32>, %end: index) {
  %c0 = arith.constant 0 : index
  %c32 = arith.constant 32 : index
  %c64 = arith.constant 64 : index
  scf.for %at = %c0 to %end step %c32 {
    %scaled = "tile.map"(%c32, %c64) ({
    ^bb0(%i: index, %j: index):
      %square = memref.load %squares[%i] : memref<?xf32>
      %length = math.rsqrt %square : f32
      %a = tensor.extract %x[%i, %j] : tensor<32x64xf32>
      %b = arith.mulf %a, %length : f32
      "tile.yield"(%b) {operandSegmentSizes = array<i32: 1, 0>} : (f32) -> ()
    }) {reductions = [], resultSegmentSizes = array<i32: 1, 0>} : (index, index) -> tensor<32x64xf32>
    "tile.store"(%scaled, %out, %c0, %c0, %at, %c32) : (tensor<32x64xf32>, memref<?x?x?x64xf32>, index, index, index, index) -> ()
  }
  return
}
