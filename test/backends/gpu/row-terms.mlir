// A bias's part that is the same along a row leaves a running maximum in whose place any number near it does: max(s + t) = t + max(s).
// RUN: attn-opt %s -p 'gpu-row-terms,canonicalize,cse' | FileCheck %s

// CHECK-LABEL: func.func @free(
// CHECK:         %[[S:.*]]:2 = "tile.map"
// CHECK:           %[[COLUMN:.*]] = arith.mulf %[[SLOPE:.*]], %{{.*}} : f32
// CHECK-NEXT:      %[[SUM:.*]] = math.fma %{{.*}}, %{{.*}}, %[[COLUMN]] : f32
// CHECK-NEXT:      "tile.yield"(%[[SUM]], %[[SUM]])
// CHECK:         "tile.map"
// CHECK:           %[[M:.*]] = tensor.extract %[[S]]#1[%[[I:.*]]]
// CHECK:           %[[T:.*]] = arith.mulf %{{.*}}, %{{.*}} : f32
// CHECK-NEXT:      %[[WHOLE:.*]] = arith.addf %[[M]], %[[T]] : f32
// A maximum over nothing stays the lowest number.
// CHECK:           %[[KEPT:.*]] = arith.select %{{.*}}, %{{.*}}, %[[WHOLE]] : f32
// CHECK-NEXT:      arith.maximumf %{{.*}}, %[[KEPT]] {gpu.free} : f32
// CHECK:         "tile.map"
// CHECK:           %[[X:.*]] = tensor.extract %[[S]]#0[%{{.*}}, %{{.*}}]
// CHECK:           arith.addf %[[X]], %{{.*}} : f32
!t = tensor<128x64xf32>
!r = tensor<128xf32>
func.func @free(%s: !t, %old: !r, %slope: f32, %rows: index, %columns: index) -> (!r, !t) {
  %c = arith.constant 0.125 : f32
  %b:2 = "tile.map"(%rows, %columns) ({
  ^bb0(%i: index, %j: index):
    %x = tensor.extract %s[%i, %j] : !t
    %i_int = arith.index_cast %i : index to i64
    %j_int = arith.index_cast %j : index to i64
    %i_float = arith.sitofp %i_int : i64 to f32
    %j_float = arith.sitofp %j_int : i64 to f32
    %of_row = arith.mulf %slope, %i_float : f32
    %bias = math.fma %slope, %j_float, %of_row : f32
    %y = math.fma %x, %c, %bias : f32
    "tile.yield"(%y, %y) {operandSegmentSizes = array<i32: 1, 1>} : (f32, f32) -> ()
  }) {reductions = ["max"], resultSegmentSizes = array<i32: 1, 1>} : (index, index) -> (!t, !r)
  %m = "tile.map"(%rows) ({
  ^bb0(%i: index):
    %before = tensor.extract %old[%i] : !r
    %max = tensor.extract %b#1[%i] : !r
    %new = arith.maximumf %before, %max {gpu.free} : f32
    "tile.yield"(%new) {operandSegmentSizes = array<i32: 1, 0>} : (f32) -> ()
  }) {reductions = [], resultSegmentSizes = array<i32: 1, 0>} : (index) -> !r
  %p = "tile.map"(%rows, %columns) ({
  ^bb0(%i: index, %j: index):
    %x = tensor.extract %b#0[%i, %j] : !t
    %max = tensor.extract %m[%i] : !r
    %d = arith.subf %x, %max : f32
    "tile.yield"(%d) {operandSegmentSizes = array<i32: 1, 0>} : (f32) -> ()
  }) {reductions = [], resultSegmentSizes = array<i32: 1, 0>} : (index, index) -> !t
  return %m, %p : !r, !t
}

// This maximum may be compared with scores.
// CHECK-LABEL: func.func @exact(
// CHECK:           %[[SUM:.*]] = arith.addf %{{.*}}, %{{.*}} : f32
// CHECK-NEXT:      "tile.yield"(%[[SUM]])
func.func @exact(%s: !t, %old: !r, %rows: index, %columns: index) -> (!r) {
  %b = "tile.map"(%rows, %columns) ({
  ^bb0(%i: index, %j: index):
    %x = tensor.extract %s[%i, %j] : !t
    %i_int = arith.index_cast %i : index to i64
    %i_float = arith.sitofp %i_int : i64 to f32
    %y = arith.addf %x, %i_float : f32
    "tile.yield"(%y) {operandSegmentSizes = array<i32: 0, 1>} : (f32) -> ()
  }) {reductions = ["max"], resultSegmentSizes = array<i32: 0, 1>} : (index, index) -> !r
  %m = "tile.map"(%rows) ({
  ^bb0(%i: index):
    %before = tensor.extract %old[%i] : !r
    %max = tensor.extract %b[%i] : !r
    %new = arith.maximumf %before, %max : f32
    "tile.yield"(%new) {operandSegmentSizes = array<i32: 1, 0>} : (f32) -> ()
  }) {reductions = [], resultSegmentSizes = array<i32: 1, 0>} : (index) -> !r
  return %m : !r
}
