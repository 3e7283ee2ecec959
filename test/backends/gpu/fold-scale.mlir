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

// The sign of a factor that is known at run time only is unknown, and this maximum is asked for.
// CHECK-LABEL: func.func @captured(
// CHECK:           %[[Y:.*]] = arith.mulf
// CHECK-NEXT:      "tile.yield"(%[[Y]], %[[Y]])

// Where any number near it may stand for the maximum, that stays one of products, and the tile is what they are made of. The factor is
// computed where all is there that it is made of. A tile that a mask cuts stays as it is, but for that.
// CHECK-LABEL: func.func @uniform(
// CHECK:         %[[HEAD:.*]] = "tile.program_id"
// CHECK-NEXT:    %[[LOADED:.*]] = memref.load %{{.*}}[%[[HEAD]]]
// CHECK-NEXT:    %[[U:.*]] = arith.mulf %[[LOADED]]
// CHECK:         scf.for
// CHECK-NOT:       memref.load
// CHECK:           %[[X:.*]] = tensor.extract %[[SCORES:.*]][
// CHECK-NEXT:      %[[XU:.*]] = arith.mulf %[[X]], %[[U]]
// CHECK-NEXT:      "tile.yield"(%[[XU]]) {operandSegmentSizes = array<i32: 0, 1>}
// CHECK:           gpu.free
// CHECK:           %[[AGAIN:.*]] = tensor.extract %[[SCORES]][
// CHECK-NEXT:      arith.mulf %[[AGAIN]], %[[U]]
// CHECK:           %[[MASKED:.*]] = arith.mulf %{{.*}}, %[[U]]
// CHECK:           %[[CUT:.*]] = arith.select %{{.*}}, %[[MASKED]]
// CHECK-NEXT:      "tile.yield"(%[[CUT]], %[[CUT]])
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

func.func @uniform(%s: !t, %factors: memref<4xf32>, %first: !r) -> (!r, !r) attributes {tile.kernel = {}} {
  %c = arith.constant 0.125 : f32
  %infinite = arith.constant 0xFF800000 : f32
  %rows = arith.constant 128 : index
  %columns = arith.constant 64 : index
  %zero = arith.constant 0 : index
  %head = "tile.program_id"() {axis = 1 : i64} : () -> index
  %last:2 = scf.for %at = %zero to %rows step %columns iter_args(%old = %first, %sum = %first) -> (!r, !r) {
    %y:2 = "tile.map"(%rows, %columns) ({
    ^bb0(%i: index, %j: index):
      %x = tensor.extract %s[%i, %j] : !t
      %f = memref.load %factors[%head] : memref<4xf32>
      %u = arith.mulf %f, %c : f32
      %scaled = arith.mulf %x, %u : f32
      "tile.yield"(%scaled, %scaled) {operandSegmentSizes = array<i32: 1, 1>} : (f32, f32) -> ()
    }) {reductions = ["max"], resultSegmentSizes = array<i32: 1, 1>} : (index, index) -> (!t, !r)
    %new = "tile.map"(%rows) ({
    ^bb0(%i: index):
      %a = tensor.extract %old[%i] : !r
      %b = tensor.extract %y#1[%i] : !r
      %above = arith.subf %b, %c : f32
      %m = arith.maximumf %a, %above {gpu.free} : f32
      "tile.yield"(%m) {operandSegmentSizes = array<i32: 1, 0>} : (f32) -> ()
    }) {reductions = [], resultSegmentSizes = array<i32: 1, 0>} : (index) -> !r
    %z = "tile.map"(%rows, %columns) ({
    ^bb0(%i: index, %j: index):
      %x = tensor.extract %y#0[%i, %j] : !t
      "tile.yield"(%x) {operandSegmentSizes = array<i32: 0, 1>} : (f32) -> ()
    }) {reductions = ["sum"], resultSegmentSizes = array<i32: 0, 1>} : (index, index) -> !r
    %cut:2 = "tile.map"(%rows, %columns) ({
    ^bb0(%i: index, %j: index):
      %x = tensor.extract %s[%i, %j] : !t
      %f = memref.load %factors[%head] : memref<4xf32>
      %u = arith.mulf %f, %c : f32
      %scaled = arith.mulf %x, %u : f32
      %keep = arith.cmpi sge, %i, %j : index
      %shown = arith.select %keep, %scaled, %infinite : f32
      "tile.yield"(%shown, %shown) {operandSegmentSizes = array<i32: 1, 1>} : (f32, f32) -> ()
    }) {reductions = ["max"], resultSegmentSizes = array<i32: 1, 1>} : (index, index) -> (!t, !r)
    %both = "tile.map"(%rows, %columns) ({
    ^bb0(%i: index, %j: index):
      %shown = tensor.extract %cut#0[%i, %j] : !t
      %before = tensor.extract %z[%i] : !r
      %x = arith.addf %shown, %before : f32
      "tile.yield"(%x) {operandSegmentSizes = array<i32: 0, 1>} : (f32) -> ()
    }) {reductions = ["sum"], resultSegmentSizes = array<i32: 0, 1>} : (index, index) -> !r
    %next = "tile.map"(%rows) ({
    ^bb0(%i: index):
      %a = tensor.extract %new[%i] : !r
      %b = tensor.extract %cut#1[%i] : !r
      %m = arith.maximumf %a, %b {gpu.free} : f32
      "tile.yield"(%m) {operandSegmentSizes = array<i32: 1, 0>} : (f32) -> ()
    }) {reductions = [], resultSegmentSizes = array<i32: 1, 0>} : (index) -> !r
    scf.yield %next, %both : !r, !r
  }
  return %last#0, %last#1 : !r, !r
}

// A captured number may be large: its multiples are rounded once, in the tile.
// CHECK-LABEL: func.func @large(
// CHECK:           %[[SUM:.*]] = arith.addf
// CHECK-NEXT:      %[[SCORE:.*]] = arith.mulf %[[SUM]], %{{.*}}
// CHECK-NEXT:      "tile.yield"(%[[SCORE]], %[[SCORE]])
func.func @large(%s: !t, %t: memref<4xf32>, %rows: index, %columns: index, %head: index) -> (!t, !r) {
  %c = arith.constant 1.3 : f32
  %y:2 = "tile.map"(%rows, %columns) ({
  ^bb0(%i: index, %j: index):
    %x = tensor.extract %s[%i, %j] : !t
    %low = memref.load %t[%head] : memref<4xf32>
    %sum = arith.addf %x, %low : f32
    %score = arith.mulf %sum, %c : f32
    "tile.yield"(%score, %score) {operandSegmentSizes = array<i32: 1, 1>} : (f32, f32) -> ()
  }) {reductions = ["max"], resultSegmentSizes = array<i32: 1, 1>} : (index, index) -> (!t, !r)
  %z:2 = "tile.map"(%rows, %columns) ({
  ^bb0(%i: index, %j: index):
    %x = tensor.extract %y#0[%i, %j] : !t
    %m = tensor.extract %y#1[%i] : !r
    %d = arith.subf %x, %m : f32
    "tile.yield"(%d, %d) {operandSegmentSizes = array<i32: 1, 1>} : (f32, f32) -> ()
  }) {reductions = ["max"], resultSegmentSizes = array<i32: 1, 1>} : (index, index) -> (!t, !r)
  return %z#0, %z#1 : !t, !r
}
