// tanh x = 1 - 2 w with w = 1 / (1 + exp(2 x)); its derivative is 4 (w - w w). What is made of it takes factors: u tanh x = u - 2 u w.
// RUN: attn-opt %s -p 'gpu-tanh,gpu-sink-factors,gpu-exp2,canonicalize,cse' | FileCheck %s
// RUN: attn-opt %s -p 'gpu-tanh{keep-approximate=true}' | FileCheck %s --check-prefix=KEEP

// CHECK-LABEL: func.func @softcap(
// CHECK-DAG:     %[[MINUS:.*]] = arith.constant -1.000000e+00 : f32
// CHECK-DAG:     %[[TWO:.*]] = arith.constant 2.000000e+00 : f32
// CHECK:         "tile.map"
// CHECK:           %[[X:.*]] = tensor.extract %{{.*}}[%{{.*}}, %{{.*}}] : tensor<128x64xf32>
// CHECK:           %[[INVERSE:.*]] = arith.divf %{{.*}}, %[[CAP:.*]] : f32
// CHECK:           %[[T:.*]] = arith.mulf %[[X]], %{{.*}} : f32
// CHECK-NEXT:      %[[E:.*]] = math.exp2 %[[T]]
// CHECK-NEXT:      %[[SUM:.*]] = arith.addf %[[E]], %{{.*}} : f32
// CHECK-NEXT:      %[[W2:.*]] = arith.divf %[[TWO]], %[[SUM]] : f32
// CHECK-NEXT:      %[[SLOPE:.*]] = arith.mulf %[[CAP]], %[[MINUS]] : f32
// CHECK-NEXT:      %[[S:.*]] = math.fma %[[SLOPE]], %[[W2]], %[[CAP]] : f32
// CHECK-NOT:       math.tanh
!t = tensor<128x64xf32>
func.func @softcap(%s: !t, %cap: f32, %rows: index, %columns: index) -> (!t) {
  %c = arith.constant 0.125 : f32
  %y = "tile.map"(%rows, %columns) ({
  ^bb0(%i: index, %j: index):
    %x = tensor.extract %s[%i, %j] : !t
    %scaled = arith.mulf %x, %c : f32
    %divided = arith.divf %scaled, %cap : f32
    %tanh = math.tanh %divided : f32
    %capped = arith.mulf %cap, %tanh : f32
    "tile.yield"(%capped) {operandSegmentSizes = array<i32: 1, 0>} : (f32) -> ()
  }) {reductions = [], resultSegmentSizes = array<i32: 1, 0>} : (index, index) -> !t
  return %y : !t
}

// CHECK-LABEL: func.func @derivative(
// CHECK:           %[[W:.*]] = arith.divf %{{.*}}, %{{.*}} : f32
// CHECK:           %[[SQUARE:.*]] = arith.mulf %[[W]], %[[W]] : f32
// CHECK-NEXT:      %[[REST:.*]] = arith.subf %[[W]], %[[SQUARE]] : f32
// CHECK-NOT:       arith.subf
func.func @derivative(%s: !t, %rows: index, %columns: index) -> (!t) {
  %one = arith.constant 1.0 : f32
  %y = "tile.map"(%rows, %columns) ({
  ^bb0(%i: index, %j: index):
    %x = tensor.extract %s[%i, %j] : !t
    %tanh = math.tanh %x : f32
    %square = arith.mulf %tanh, %tanh : f32
    %rest = arith.subf %one, %square : f32
    "tile.yield"(%rest) {operandSegmentSizes = array<i32: 1, 0>} : (f32) -> ()
  }) {reductions = [], resultSegmentSizes = array<i32: 1, 0>} : (index, index) -> !t
  return %y : !t
}

// In f64 it stays.
// CHECK-LABEL: func.func @wide(
// CHECK:           math.tanh %{{.*}} : f64
func.func @wide(%s: tensor<128x64xf64>, %rows: index, %columns: index) -> (tensor<128x64xf64>) {
  %y = "tile.map"(%rows, %columns) ({
  ^bb0(%i: index, %j: index):
    %x = tensor.extract %s[%i, %j] : tensor<128x64xf64>
    %tanh = math.tanh %x : f64
    "tile.yield"(%tanh) {operandSegmentSizes = array<i32: 1, 0>} : (f64) -> ()
  }) {reductions = [], resultSegmentSizes = array<i32: 1, 0>} : (index, index) -> tensor<128x64xf64>
  return %y : tensor<128x64xf64>
}

// Where hardware has an instruction for it, what may be approximated stays.
// CHECK-LABEL: func.func @approximate(
// CHECK-NOT:       math.tanh
// KEEP-LABEL:  func.func @approximate(
// KEEP:            math.tanh %{{.*}} fastmath<afn> : f32
// KEEP-NOT:        math.tanh
func.func @approximate(%s: !t, %rows: index, %columns: index) -> (!t) {
  %y = "tile.map"(%rows, %columns) ({
  ^bb0(%i: index, %j: index):
    %x = tensor.extract %s[%i, %j] : !t
    %tanh = math.tanh %x fastmath<afn> : f32
    %other = math.tanh %tanh : f32
    "tile.yield"(%other) {operandSegmentSizes = array<i32: 1, 0>} : (f32) -> ()
  }) {reductions = [], resultSegmentSizes = array<i32: 1, 0>} : (index, index) -> !t
  return %y : !t
}
