// Factors of positions go from the second factor of a product over positions to the first one, which may lie in registers.
// RUN: attn-opt %s -p 'warp-scale-left' | FileCheck %s

!m = memref<?x?x?x64xf16>
!t = tensor<64x64xf16>

// CHECK-LABEL: @scan
func.func @scan(%k: !m, %v: !m, %state: tensor<64x64xf32>, %decays: tensor<64xf32>, %factors: tensor<64xf32>, %i: index) -> tensor<64x64xf32> {
  %c64 = arith.constant 64 : index
  // CHECK: %[[K:.*]] = "tile.load"(%arg0
  // CHECK: %[[V:.*]] = "tile.load"(%arg1
  %kt = "tile.load"(%k, %i, %i, %i, %c64) : (!m, index, index, index, index) -> !t
  %vt = "tile.load"(%v, %i, %i, %i, %c64) : (!m, index, index, index, index) -> !t
  // CHECK: %[[SCALED:.*]] = "tile.map"
  // CHECK:   tensor.extract %[[K]][%[[I:.*]], %[[J:.*]]]
  // CHECK:   tensor.extract %arg4[%[[I]]]
  // CHECK-NOT: "tile.map"
  // CHECK: "tile.dot_rescale"(%arg2, %arg3, %[[SCALED]], %[[V]]) {transpose_a = true
  %scaled = "tile.map"(%c64, %c64) ({
  ^bb0(%a: index, %b: index):
    %x = tensor.extract %vt[%a, %b] : !t
    %wide = arith.extf %x : f16 to f32
    %f = tensor.extract %factors[%a] : tensor<64xf32>
    %y = arith.mulf %wide, %f : f32
    %z = arith.truncf %y : f32 to f16
    "tile.yield"(%z) {operandSegmentSizes = array<i32: 1, 0>} : (f16) -> ()
  }) {reductions = [], resultSegmentSizes = array<i32: 1, 0>} : (index, index) -> !t
  %r = "tile.dot_rescale"(%state, %decays, %kt, %scaled) {transpose_a = true, transpose_b = false}
      : (tensor<64x64xf32>, tensor<64xf32>, !t, !t) -> tensor<64x64xf32>
  return %r : tensor<64x64xf32>
}

// What a mod makes of v is no factor of its rows: it stays.
// CHECK-LABEL: @changed
func.func @changed(%k: !m, %v: !m, %i: index) -> tensor<64x64xf32> {
  %c64 = arith.constant 64 : index
  %kt = "tile.load"(%k, %i, %i, %i, %c64) : (!m, index, index, index, index) -> !t
  %vt = "tile.load"(%v, %i, %i, %i, %c64) : (!m, index, index, index, index) -> !t
  // CHECK: %[[K:.*]] = "tile.load"(%arg0
  // CHECK: %[[SQUARES:.*]] = "tile.map"
  // CHECK: "tile.dot"(%[[K]], %[[SQUARES]])
  %squares = "tile.map"(%c64, %c64) ({
  ^bb0(%a: index, %b: index):
    %x = tensor.extract %vt[%a, %b] : !t
    %wide = arith.extf %x : f16 to f32
    %y = arith.mulf %wide, %wide : f32
    %z = arith.truncf %y : f32 to f16
    "tile.yield"(%z) {operandSegmentSizes = array<i32: 1, 0>} : (f16) -> ()
  }) {reductions = [], resultSegmentSizes = array<i32: 1, 0>} : (index, index) -> !t
  %r = "tile.dot"(%kt, %squares) {transpose_a = true, transpose_b = false} : (!t, !t) -> tensor<64x64xf32>
  return %r : tensor<64x64xf32>
}
