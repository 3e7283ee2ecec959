// A positive constant factor leaves a maximum; the maps that read the tile multiply, those that read the maximum, too.
// RUN: attn-opt %s -p 'gpu-fold-scale,canonicalize,cse' | FileCheck %s

// The tile would be a copy of the product: it is read where it is. A full tile has a maximum.
// CHECK-LABEL: func.func @full(
// CHECK:         %[[MAX:.*]] = "tile.map"
// CHECK-NEXT:    ^bb0(%[[I:.*]]: index, %[[J:.*]]: index):
// CHECK-NEXT:      %[[S:.*]] = tensor.extract %[[PRODUCT:.*]][%[[I]], %[[J]]]
// CHECK-NEXT:      "tile.yield"(%[[S]]) {operandSegmentSizes = array<i32: 0, 1>}
// CHECK-NEXT:    }) {reductions = ["max"]
// CHECK:           tensor.extract %[[PRODUCT]]
// CHECK-NEXT:      arith.mulf %{{.*}}, %cst
// CHECK:           tensor.extract %[[MAX]]
// CHECK-NEXT:      arith.mulf %{{.*}}, %cst
// CHECK-NEXT:      "tile.yield"

// A masked one may have none: then its value, which later ops may ask for, stays the lowest finite number.
// CHECK-LABEL: func.func @masked(
// CHECK:           %[[CHOSEN:.*]] = arith.select %{{.*}}, %{{.*}}, %[[INFINITE:.*]] : f32
// CHECK-NEXT:      "tile.yield"(%[[CHOSEN]], %[[CHOSEN]])
// CHECK:           %[[X:.*]] = tensor.extract %{{.*}}#1
// CHECK-NEXT:      %[[SCALED:.*]] = arith.mulf %[[X]]
// CHECK-NEXT:      %[[NONE:.*]] = arith.cmpf oeq, %[[X]], %[[LOWEST:.*]] : f32
// CHECK-NEXT:      arith.select %[[NONE]], %[[LOWEST]], %[[SCALED]]

// The sign of a factor that is known at run time only is unknown.
// CHECK-LABEL: func.func @captured(
// CHECK:           %[[Y:.*]] = arith.mulf
// CHECK-NEXT:      "tile.yield"(%[[Y]], %[[Y]])
!t = tensor<128x64xf32>
!r = tensor<128xf32>
func.func @full(%s: !t) -> (!r, !r) {
  %c = arith.constant 0.125 : f32
  %rows = arith.constant 128 : index
  %columns = arith.constant 64 : index
  %y:2 = "tile.map"(%rows, %columns) ({
  ^bb0(%i: index, %j: index):
    %x = tensor.extract %s[%i, %j] : !t
    %scaled = arith.mulf %x, %c : f32
    "tile.yield"(%scaled, %scaled) {operandSegmentSizes = array<i32: 1, 1>} : (f32, f32) -> ()
  }) {reductions = ["max"], resultSegmentSizes = array<i32: 1, 1>} : (index, index) -> (!t, !r)
  %z = "tile.map"(%rows, %columns) ({
  ^bb0(%i: index, %j: index):
    %x = tensor.extract %y#0[%i, %j] : !t
    "tile.yield"(%x) {operandSegmentSizes = array<i32: 0, 1>} : (f32) -> ()
  }) {reductions = ["sum"], resultSegmentSizes = array<i32: 0, 1>} : (index, index) -> !r
  %w = "tile.map"(%rows) ({
  ^bb0(%i: index):
    %x = tensor.extract %y#1[%i] : !r
    "tile.yield"(%x) {operandSegmentSizes = array<i32: 1, 0>} : (f32) -> ()
  }) {reductions = [], resultSegmentSizes = array<i32: 1, 0>} : (index) -> !r
  return %z, %w : !r, !r
}

func.func @masked(%s: !t) -> (!r, !r) {
  %c = arith.constant 0.125 : f32
  %infinite = arith.constant 0xFF800000 : f32
  %rows = arith.constant 128 : index
  %columns = arith.constant 64 : index
  %y:2 = "tile.map"(%rows, %columns) ({
  ^bb0(%i: index, %j: index):
    %x = tensor.extract %s[%i, %j] : !t
    %scaled = arith.mulf %x, %c : f32
    %keep = arith.cmpi sge, %i, %j : index
    %shown = arith.select %keep, %scaled, %infinite : f32
    "tile.yield"(%shown, %shown) {operandSegmentSizes = array<i32: 1, 1>} : (f32, f32) -> ()
  }) {reductions = ["max"], resultSegmentSizes = array<i32: 1, 1>} : (index, index) -> (!t, !r)
  %z:2 = "tile.map"(%rows, %columns) ({
  ^bb0(%i: index, %j: index):
    %x = tensor.extract %y#0[%i, %j] : !t
    %m = tensor.extract %y#1[%i] : !r
    "tile.yield"(%x, %m) {operandSegmentSizes = array<i32: 0, 2>} : (f32, f32) -> ()
  }) {reductions = ["sum", "max"], resultSegmentSizes = array<i32: 0, 2>} : (index, index) -> (!r, !r)
  return %z#0, %z#1 : !r, !r
}

func.func @captured(%s: !t, %c: f32) -> (!r, !r) {
  %rows = arith.constant 128 : index
  %columns = arith.constant 64 : index
  %y:2 = "tile.map"(%rows, %columns) ({
  ^bb0(%i: index, %j: index):
    %x = tensor.extract %s[%i, %j] : !t
    %scaled = arith.mulf %x, %c : f32
    "tile.yield"(%scaled, %scaled) {operandSegmentSizes = array<i32: 1, 1>} : (f32, f32) -> ()
  }) {reductions = ["max"], resultSegmentSizes = array<i32: 1, 1>} : (index, index) -> (!t, !r)
  %z:2 = "tile.map"(%rows, %columns) ({
  ^bb0(%i: index, %j: index):
    %x = tensor.extract %y#0[%i, %j] : !t
    %m = tensor.extract %y#1[%i] : !r
    "tile.yield"(%x, %m) {operandSegmentSizes = array<i32: 0, 2>} : (f32, f32) -> ()
  }) {reductions = ["sum", "max"], resultSegmentSizes = array<i32: 0, 2>} : (index, index) -> (!r, !r)
  return %z#0, %z#1 : !r, !r
}
