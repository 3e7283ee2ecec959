// Sums of scores that may be large, here by a captured number, stay whole: no factor goes to their terms. Ordinary ones are taken apart.
// RUN: attn-opt %s -p 'gpu-sink-factors,gpu-exp2,canonicalize,cse' | FileCheck %s

// CHECK-LABEL: func.func @weights(
// CHECK-DAG:     %[[C:.*]] = arith.constant 2.45258164 : f32
// CHECK:           %[[BIAS:.*]] = memref.load
// CHECK:           %[[S:.*]] = arith.addf %{{.*}}, %[[BIAS]]
// CHECK:           %[[D:.*]] = arith.subf %[[S]], %{{.*}} : f32
// CHECK-NEXT:      %[[X:.*]] = arith.mulf %[[D]], %[[C]] : f32
// CHECK-NEXT:      math.exp2 %[[X]]
// CHECK-NOT:       arith.subf
// CHECK:           %[[Y:.*]] = math.fma %{{.*}}, %{{.*}}, %{{.*}} : f32
// CHECK-NEXT:      math.exp2 %[[Y]]

// A product that a difference is taken of is rounded before, in the rows of such a kernel, too; a quotient is one with the reciprocal.
// CHECK:           %[[R:.*]] = arith.divf %{{.*}}, %[[T:.*]] : f32
// CHECK-NEXT:      %[[MT:.*]] = math.fma %{{.*}}, %[[R]], %{{.*}} : f32
// CHECK-NEXT:      arith.subf %{{.*}}, %[[MT]] : f32
func.func @weights(%s: tensor<64x64xf32>, %m: tensor<64xf32>, %l: tensor<64xf32>, %b: memref<64x64xf32>, %t: f32, %n: index)
    -> (tensor<64x64xf32>, tensor<64x64xf32>, tensor<64xf32>, tensor<64xf32>) {
  %c = arith.constant 1.7 : f32
  %p:3 = "tile.map"(%n, %n) ({
  ^bb0(%i: index, %j: index):
    %x = tensor.extract %s[%i, %j] : tensor<64x64xf32>
    %bias = memref.load %b[%i, %j] : memref<64x64xf32>
    %score = arith.addf %x, %bias : f32
    %max = tensor.extract %m[%i] : tensor<64xf32>
    %d = arith.subf %score, %max : f32
    %scaled = arith.mulf %d, %c : f32
    %e = math.exp %scaled : f32
    %other = arith.subf %x, %max : f32
    %multiple = arith.mulf %other, %c : f32
    %f = math.exp %multiple : f32
    "tile.yield"(%e, %f, %score) {operandSegmentSizes = array<i32: 2, 1>} : (f32, f32, f32) -> ()
  }) {reductions = ["max"], resultSegmentSizes = array<i32: 2, 1>} : (index, index) -> (tensor<64x64xf32>, tensor<64x64xf32>, tensor<64xf32>)
  %r = "tile.map"(%n) ({
  ^bb0(%i: index):
    %max = tensor.extract %m[%i] : tensor<64xf32>
    %largest = tensor.extract %l[%i] : tensor<64xf32>
    %multiple = arith.divf %max, %t : f32
    %d = arith.subf %largest, %multiple : f32
    %e = math.exp %d : f32
    "tile.yield"(%e) {operandSegmentSizes = array<i32: 1, 0>} : (f32) -> ()
  }) {reductions = [], resultSegmentSizes = array<i32: 1, 0>} : (index) -> tensor<64xf32>
  return %p#0, %p#1, %p#2, %r : tensor<64x64xf32>, tensor<64x64xf32>, tensor<64xf32>, tensor<64xf32>
}
