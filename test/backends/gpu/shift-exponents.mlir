// A power of two that multiplies an exponential becomes a term of the exponent; sums of the exponential are divided where they are read.
// RUN: attn-opt %s -p 'gpu-shift-exponents,canonicalize' --split-input-file | FileCheck %s

!tile = tensor<64x64xf32>
!row = tensor<64xf32>

// CHECK-LABEL: func.func @weights(
// CHECK:         [[W:%.*]]:2 = "tile.map"
// CHECK:           [[T:%.*]] = tensor.extract %arg1[
// CHECK:           [[SHIFTED:%.*]] = arith.addf [[T]], %cst{{.*}} : f32
// CHECK:           [[X:%.*]] = math.fma {{.*}}, [[SHIFTED]] : f32
// CHECK:           [[E:%.*]] = math.exp2 [[X]] : f32
// CHECK-NEXT:      "tile.yield"([[E]], [[E]])
// CHECK:         "tile.map"
// CHECK:           [[SUM:%.*]] = tensor.extract [[W]]#1[
// CHECK-NEXT:      [[LESS:%.*]] = arith.mulf [[SUM]], %cst{{.*}} : f32
// CHECK-NEXT:      "tile.yield"([[LESS]])
func.func @weights(%s: !tile, %m: !row) -> (!tile, !row) {
  %n = arith.constant 64 : index
  %c = arith.constant 0.125 : f32
  %scale = arith.constant 256.0 : f32
  %w:2 = "tile.map"(%n, %n) ({
  ^bb0(%i: index, %j: index):
    %a = tensor.extract %s[%i, %j] : !tile
    %t = tensor.extract %m[%i] : !row
    %x = math.fma %a, %c, %t : f32
    %e = math.exp2 %x : f32
    %p = arith.mulf %e, %scale : f32
    "tile.yield"(%p, %e) {operandSegmentSizes = array<i32: 1, 1>} : (f32, f32) -> ()
  }) {reductions = ["sum"], resultSegmentSizes = array<i32: 1, 1>} : (index, index) -> (!tile, !row)
  %r = "tile.map"(%n) ({
  ^bb0(%i: index):
    %a = tensor.extract %w#1[%i] : !row
    "tile.yield"(%a) {operandSegmentSizes = array<i32: 1, 0>} : (f32) -> ()
  }) {reductions = [], resultSegmentSizes = array<i32: 1, 0>} : (index) -> !row
  return %w#0, %r : !tile, !row
}

// -----

!tile = tensor<64x64xf32>
!row = tensor<64xf32>

// No power of two; and a term that differs between elements, which would cost an addition.
// CHECK-LABEL: func.func @others(
// CHECK:         math.exp2
// CHECK-NEXT:    arith.mulf
// CHECK:         math.exp2
// CHECK-NEXT:    arith.mulf
func.func @others(%s: !tile, %u: !tile) -> (!tile, !tile) {
  %n = arith.constant 64 : index
  %three = arith.constant 3.0 : f32
  %four = arith.constant 4.0 : f32
  %w:2 = "tile.map"(%n, %n) ({
  ^bb0(%i: index, %j: index):
    %a = tensor.extract %s[%i, %j] : !tile
    %b = tensor.extract %u[%i, %j] : !tile
    %x = math.fma %a, %three, %four : f32
    %e = math.exp2 %x : f32
    %p = arith.mulf %e, %three : f32
    %y = math.fma %a, %three, %b : f32
    %f = math.exp2 %y : f32
    %q = arith.mulf %f, %four : f32
    "tile.yield"(%p, %q) {operandSegmentSizes = array<i32: 2, 0>} : (f32, f32) -> ()
  }) {reductions = [], resultSegmentSizes = array<i32: 2, 0>} : (index, index) -> (!tile, !tile)
  return %w#0, %w#1 : !tile, !tile
}
