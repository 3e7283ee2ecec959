// w = 1 / (1 + exp(min(-s, 80))) and its derivative d w w e, which is 0 past 80: no guard is left, and no exponential but one.
// RUN: attn-opt %s -p 'gpu-logistic' | FileCheck %s

// CHECK-LABEL: func.func @backward(
// CHECK:           %[[S:.*]] = tensor.extract
// CHECK:           %[[D:.*]] = tensor.extract
// CHECK:           %[[MINUS:.*]] = arith.negf %[[S]]
// CHECK-NEXT:      %[[E:.*]] = math.exp %[[MINUS]]
// CHECK-NEXT:      %[[SUM:.*]] = arith.addf %[[E]], %{{.*}}
// CHECK-NEXT:      %[[W:.*]] = arith.divf %{{.*}}, %[[SUM]]
// CHECK-NEXT:      %[[X:.*]] = arith.mulf %[[D]], %[[W]]
// CHECK-NEXT:      %[[XW:.*]] = arith.mulf %[[X]], %[[W]]
// CHECK-NEXT:      %[[DS:.*]] = arith.subf %[[X]], %[[XW]]
// CHECK-NEXT:      "tile.yield"(%[[W]], %[[DS]])
!t = tensor<128x64xf32>
func.func @backward(%s: !t, %dp: !t, %rows: index, %columns: index) -> (!t, !t) {
  %zero = arith.constant 0.0 : f32
  %one = arith.constant 1.0 : f32
  %far = arith.constant 80.0 : f32
  %y:2 = "tile.map"(%rows, %columns) ({
  ^bb0(%i: index, %j: index):
    %x = tensor.extract %s[%i, %j] : !t
    %d = tensor.extract %dp[%i, %j] : !t
    %minus = arith.negf %x : f32
    %past = arith.cmpf ogt, %minus, %far : f32
    %near = arith.minimumf %minus, %far : f32
    %e = math.exp %near : f32
    %sum = arith.addf %e, %one : f32
    %w = arith.divf %one, %sum : f32
    %dw = arith.mulf %d, %w : f32
    %dww = arith.divf %dw, %sum : f32
    %dwwe = arith.mulf %dww, %e : f32
    %ds = arith.select %past, %zero, %dwwe : f32
    "tile.yield"(%w, %ds) {operandSegmentSizes = array<i32: 2, 0>} : (f32, f32) -> ()
  }) {reductions = [], resultSegmentSizes = array<i32: 2, 0>} : (index, index) -> (!t, !t)
  return %y#0, %y#1 : !t, !t
}

// Something else reads the exponential: it must stay finite.
// CHECK-LABEL: func.func @exponential(
// CHECK:           arith.minimumf
func.func @exponential(%s: !t, %rows: index, %columns: index) -> (!t, !t) {
  %one = arith.constant 1.0 : f32
  %far = arith.constant 80.0 : f32
  %y:2 = "tile.map"(%rows, %columns) ({
  ^bb0(%i: index, %j: index):
    %x = tensor.extract %s[%i, %j] : !t
    %near = arith.minimumf %x, %far : f32
    %e = math.exp %near : f32
    %sum = arith.addf %e, %one : f32
    %w = arith.divf %one, %sum : f32
    "tile.yield"(%w, %e) {operandSegmentSizes = array<i32: 2, 0>} : (f32, f32) -> ()
  }) {reductions = [], resultSegmentSizes = array<i32: 2, 0>} : (index, index) -> (!t, !t)
  return %y#0, %y#1 : !t, !t
}
