// A masked score of -inf does not vanish from a sum of squares: each reduction's input and each weight is selected.
// RUN: attn-opt %inputs/l2-normalised.mlir -p 'attn-online-rewrite,attn-tile,canonicalize,cse' | FileCheck %s

// CHECK-DAG:   %[[ZERO:.*]] = arith.constant 0.000000e+00 : f32
// CHECK:       scf.for
// CHECK:         "tile.dot"
// CHECK:         "tile.map"
// CHECK:           %[[S:[0-9]+]] = arith.mulf
// CHECK:           %[[PRESENT:[0-9]+]] = arith.cmpi sge
// CHECK-NEXT:      %[[WEIGHT:.*]] = arith.select %[[PRESENT]], %[[S]], %[[ZERO]]
// CHECK-NEXT:      %[[SQUARE:.*]] = arith.mulf %[[S]], %[[S]]
// CHECK-NEXT:      %[[TERM:.*]] = arith.select %[[PRESENT]], %[[SQUARE]], %[[ZERO]]
// CHECK-NEXT:      "tile.yield"(%[[WEIGHT]], %[[TERM]])
// CHECK:         {reductions = ["sum"]
// Nothing rescales the accumulator.
// CHECK:         "tile.dot_add"
// CHECK-NOT:     "tile.dot_rescale"
