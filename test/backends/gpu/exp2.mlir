// exp becomes exp2, whose factor log2(e) costs an element nothing: c s - m feeds it by one multiply-add, with -m log2(e) made once a row.
// RUN: attn-opt %s -p 'gpu-exp2,canonicalize' | FileCheck %s

// CHECK-LABEL: func.func @weights(
// CHECK-DAG:     %[[C:.*]] = arith.constant 0.180336878 : f32
// CHECK-DAG:     %[[MINUS_LOG2E:.*]] = arith.constant -1.44269502 : f32
// CHECK-DAG:     %[[LARGEST:.*]] = arith.constant 3.40282347E+38 : f32
// CHECK:           %[[S:.*]] = tensor.extract %{{.*}}[%{{.*}}, %{{.*}}]
// CHECK:           %[[M:.*]] = tensor.extract %{{.*}} : tensor<128xf32>
// CHECK-NEXT:      %[[SCALED:.*]] = arith.mulf %[[M]], %[[MINUS_LOG2E]]
// The maximum over nothing is the lowest finite number; -inf less a multiple of it must not be NaN.
// CHECK-NEXT:      %[[FINITE:.*]] = arith.minimumf %[[SCALED]], %[[LARGEST]]
// CHECK-NEXT:      %[[X:.*]] = math.fma %[[S]], %[[C]], %[[FINITE]]
// CHECK-NEXT:      math.exp2 %[[X]]
// CHECK-NOT:       math.exp{{ }}
// A difference of two row values is scaled as a whole.
// CHECK:           %[[D:.*]] = arith.subf
// CHECK-NEXT:      %[[E:.*]] = arith.mulf %[[D]], %{{.*}}
// CHECK-NEXT:      math.exp2 %[[E]]
// CHECK:           %[[L:.*]] = math.log2
// CHECK-NEXT:      arith.mulf %[[L]], %{{.*}}
func.func @weights(%s: tensor<128x64xf32>, %m: tensor<128xf32>, %old: tensor<128xf32>, %rows: index, %columns: index)
    -> (tensor<128x64xf32>, tensor<128xf32>, tensor<128xf32>) {
  %c = arith.constant 0.125 : f32
  %p = "tile.map"(%rows, %columns) ({
  ^bb0(%i: index, %j: index):
    %x = tensor.extract %s[%i, %j] : tensor<128x64xf32>
    %scaled = arith.mulf %x, %c : f32
    %max = tensor.extract %m[%i] : tensor<128xf32>
    %d = arith.subf %scaled, %max : f32
    %e = math.exp %d : f32
    "tile.yield"(%e) {operandSegmentSizes = array<i32: 1, 0>} : (f32) -> ()
  }) {reductions = [], resultSegmentSizes = array<i32: 1, 0>} : (index, index) -> tensor<128x64xf32>
  %r:2 = "tile.map"(%rows) ({
  ^bb0(%i: index):
    %before = tensor.extract %old[%i] : tensor<128xf32>
    %max = tensor.extract %m[%i] : tensor<128xf32>
    %d = arith.subf %before, %max : f32
    %e = math.exp %d : f32
    %l = math.log %before : f32
    "tile.yield"(%e, %l) {operandSegmentSizes = array<i32: 2, 0>} : (f32, f32) -> ()
  }) {reductions = [], resultSegmentSizes = array<i32: 2, 0>} : (index) -> (tensor<128xf32>, tensor<128xf32>)
  return %p, %r#0, %r#1 : tensor<128x64xf32>, tensor<128xf32>, tensor<128xf32>
}

// Differences of a row's and a column's value, or of two values of an element, come first: exp of the difference of equal ones is 1.
// CHECK-LABEL: func.func @differences(
// CHECK:           %[[P:.*]] = tensor.extract %{{.*}}[%[[I:.*]]] : tensor<64xf32>
// CHECK-NEXT:      %[[Q:.*]] = tensor.extract %{{.*}}[%[[J:.*]]] : tensor<64xf32>
// CHECK-NEXT:      %[[PQ:.*]] = arith.subf %[[P]], %[[Q]]
// CHECK-NEXT:      %[[X:.*]] = arith.mulf %[[PQ]], %cst
// CHECK-NEXT:      math.exp2 %[[X]]
// CHECK:           %[[XY:.*]] = arith.subf %{{.*}}, %{{.*}} : f32
// CHECK-NEXT:      %[[Y:.*]] = arith.mulf %[[XY]], %cst
// CHECK-NEXT:      math.exp2 %[[Y]]
// CHECK:           %[[XX:.*]] = arith.subf %{{.*}}, %{{.*}} : f32
// CHECK-NEXT:      %[[Z:.*]] = arith.mulf %[[XX]], %cst
// CHECK-NEXT:      math.exp2 %[[Z]]
func.func @differences(%p: tensor<64xf32>, %x: tensor<64x64xf32>, %y: tensor<64x64xf32>, %rows: index, %n: index)
    -> (tensor<64x64xf32>, tensor<64x64xf32>, tensor<64x64xf32>) {
  %r:3 = "tile.map"(%rows, %rows) ({
  ^bb0(%i: index, %j: index):
    %of_row = tensor.extract %p[%i] : tensor<64xf32>
    %of_column = tensor.extract %p[%j] : tensor<64xf32>
    %d = arith.subf %of_row, %of_column : f32
    %e = math.exp %d : f32
    %a = tensor.extract %x[%i, %j] : tensor<64x64xf32>
    %b = tensor.extract %y[%i, %j] : tensor<64x64xf32>
    %c = arith.subf %a, %b : f32
    %f = math.exp %c : f32
    %other = tensor.extract %x[%n, %j] : tensor<64x64xf32>
    %h = arith.subf %a, %other : f32
    %g = math.exp %h : f32
    "tile.yield"(%e, %f, %g) {operandSegmentSizes = array<i32: 3, 0>} : (f32, f32, f32) -> ()
  }) {reductions = [], resultSegmentSizes = array<i32: 3, 0>} : (index, index) -> (tensor<64x64xf32>, tensor<64x64xf32>, tensor<64x64xf32>)
  return %r#0, %r#1, %r#2 : tensor<64x64xf32>, tensor<64x64xf32>, tensor<64x64xf32>
}

// A captured number may be large: the difference comes first, and the logarithm of the sum joins it.
// CHECK-LABEL: func.func @large(
// CHECK:           %[[BIAS:.*]] = memref.load
// CHECK:           %[[SCORE:.*]] = arith.addf %{{.*}}, %[[BIAS]]
// CHECK:           %[[D:.*]] = arith.subf %[[SCORE]], %{{.*}}
// CHECK:           %[[L:.*]] = arith.minimumf
// CHECK-NEXT:      %[[X:.*]] = math.fma %[[D]], %{{.*}}, %[[L]]
// CHECK-NEXT:      math.exp2 %[[X]]
// One of f16 is not: the factor goes to the terms.
// CHECK:           %[[HALF:.*]] = arith.extf
// CHECK-NOT:       arith.subf
// CHECK:           math.exp2
func.func @large(%s: tensor<64x64xf32>, %m: tensor<64xf32>, %l: tensor<64xf32>, %t: memref<64x64xf32>, %h: memref<64x64xf16>, %n: index)
    -> (tensor<64x64xf32>, tensor<64x64xf32>) {
  %c = arith.constant 0.125 : f32
  %p:2 = "tile.map"(%n, %n) ({
  ^bb0(%i: index, %j: index):
    %x = tensor.extract %s[%i, %j] : tensor<64x64xf32>
    %scaled = arith.mulf %x, %c : f32
    %bias = memref.load %t[%i, %j] : memref<64x64xf32>
    %score = arith.addf %scaled, %bias : f32
    %max = tensor.extract %m[%i] : tensor<64xf32>
    %log = tensor.extract %l[%i] : tensor<64xf32>
    %d = arith.subf %score, %max : f32
    %less = arith.subf %d, %log : f32
    %e = math.exp %less : f32
    %half = memref.load %h[%i, %j] : memref<64x64xf16>
    %wide = arith.extf %half : f16 to f32
    %y = arith.mulf %x, %c : f32
    %other = arith.addf %y, %wide : f32
    %g = arith.subf %other, %max : f32
    %f = math.exp %g : f32
    "tile.yield"(%e, %f) {operandSegmentSizes = array<i32: 2, 0>} : (f32, f32) -> ()
  }) {reductions = [], resultSegmentSizes = array<i32: 2, 0>} : (index, index) -> (tensor<64x64xf32>, tensor<64x64xf32>)
  return %p#0, %p#1 : tensor<64x64xf32>, tensor<64x64xf32>
}
