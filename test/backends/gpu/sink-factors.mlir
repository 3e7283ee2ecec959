// Constant factors go to values of a row or column; u (x + t) is taken apart where u t belongs to a row.
// RUN: attn-opt %s -p 'gpu-sink-factors,canonicalize,cse' | FileCheck %s

// c e (r x + t) = e fma(x, c r, c t), for r and t of the column.
// CHECK-LABEL: func.func @gradient(
// CHECK:           %[[E:.*]] = math.exp
// CHECK:           %[[X:.*]] = tensor.extract %{{.*}}[%{{.*}}, %{{.*}}]
// CHECK:           %[[R:.*]] = memref.load
// CHECK:           %[[T:.*]] = memref.load
// CHECK-NEXT:      %[[CR:.*]] = arith.mulf %[[R]], %[[C:.*]] : f32
// CHECK-NEXT:      %[[CT:.*]] = arith.mulf %[[T]], %[[C]] : f32
// CHECK:           %[[SUM:.*]] = math.fma %[[CR]], %[[X]], %[[CT]] : f32
// CHECK-NEXT:      %[[DS:.*]] = arith.mulf %[[E]], %[[SUM]] : f32

// (c x) / 30 = x (c / 30).
// CHECK:           %[[Y:.*]] = arith.mulf %{{.*}}, %{{.*}} : f32
// CHECK-NEXT:      math.tanh %[[Y]]

// x c + u (j - i) = fma(x, c, fma(u, j, -(u i))).
// CHECK-LABEL: func.func @bias(
// CHECK:           %[[MINUS_U:.*]] = arith.mulf %[[U:[^,]*]], %{{.*}} : f32
// CHECK-NEXT:      %[[OF_ROW:.*]] = arith.mulf %[[MINUS_U]], %{{.*}} : f32
// CHECK-NEXT:      %[[BIAS:.*]] = math.fma %[[U]], %{{.*}}, %[[OF_ROW]] : f32
// CHECK-NEXT:      %[[S:.*]] = math.fma %{{.*}}, %{{.*}}, %[[BIAS]] : f32
// CHECK-NEXT:      "tile.yield"(%[[S]]
!t = tensor<128x64xf32>
func.func @gradient(%s: !t, %dp: !t, %r: memref<?xf32>, %t: memref<?xf32>, %rows: index, %columns: index) -> (!t, !t) {
  %c = arith.constant 0.25 : f32
  %cap = arith.constant 30.0 : f32
  %y:2 = "tile.map"(%rows, %columns) ({
  ^bb0(%i: index, %j: index):
    %x = tensor.extract %s[%i, %j] : !t
    %e = math.exp %x : f32
    %d = tensor.extract %dp[%i, %j] : !t
    %r_j = memref.load %r[%j] : memref<?xf32>
    %t_j = memref.load %t[%j] : memref<?xf32>
    %rd = arith.mulf %r_j, %d : f32
    %sum = arith.addf %rd, %t_j : f32
    %ds = arith.mulf %e, %sum : f32
    %scaled = arith.mulf %ds, %c : f32
    %sc = arith.mulf %d, %c : f32
    %capped = arith.divf %sc, %cap : f32
    %tanh = math.tanh %capped : f32
    "tile.yield"(%scaled, %tanh) {operandSegmentSizes = array<i32: 2, 0>} : (f32, f32) -> ()
  }) {reductions = [], resultSegmentSizes = array<i32: 2, 0>} : (index, index) -> (!t, !t)
  return %y#0, %y#1 : !t, !t
}

func.func @bias(%s: !t, %slopes: memref<?xf32>, %h: index, %rows: index, %columns: index) -> (!t) {
  %c = arith.constant 0.25 : f32
  %y = "tile.map"(%rows, %columns) ({
  ^bb0(%i: index, %j: index):
    %x = tensor.extract %s[%i, %j] : !t
    %scaled = arith.mulf %x, %c : f32
    %u = memref.load %slopes[%h] : memref<?xf32>
    %i_int = arith.index_cast %i : index to i64
    %j_int = arith.index_cast %j : index to i64
    %i_float = arith.sitofp %i_int : i64 to f32
    %j_float = arith.sitofp %j_int : i64 to f32
    %distance = arith.subf %j_float, %i_float : f32
    %bias = arith.mulf %u, %distance : f32
    %sum = arith.addf %scaled, %bias : f32
    "tile.yield"(%sum) {operandSegmentSizes = array<i32: 1, 0>} : (f32) -> ()
  }) {reductions = [], resultSegmentSizes = array<i32: 1, 0>} : (index, index) -> !t
  return %y : !t
}
