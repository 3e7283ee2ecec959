// RUN: attn-opt %s -p 'nvidia-turn-differences,canonicalize' --split-input-file | FileCheck %s

// Which of two sums is taken away from the other depends on the row: that becomes the sign of a factor.
// CHECK-LABEL: func.func @ordered(
// CHECK-SAME:    %[[LATER:.*]]: i1, %[[OWN:.*]]: f32, %[[BOUNDARY:.*]]: f32
// CHECK-DAG:     %[[PLUS:.*]] = arith.constant 1.44269502 : f32
// CHECK-DAG:     %[[MINUS:.*]] = arith.constant -1.44269502 : f32
// CHECK-DAG:     %[[DIFFERENCE:.*]] = arith.subf %[[OWN]], %[[BOUNDARY]]
// CHECK-DAG:     %[[SIGN:.*]] = arith.select %[[LATER]], %[[PLUS]], %[[MINUS]]
// CHECK:         %[[X:.*]] = arith.mulf %[[DIFFERENCE]], %[[SIGN]]
// CHECK-NEXT:    math.exp2 %[[X]]
func.func @ordered(%later: i1, %own: f32, %boundary: f32) -> f32 {
  %log2e = arith.constant 1.44269502 : f32
  %t = arith.select %later, %own, %boundary : f32
  %s = arith.select %later, %boundary, %own : f32
  %difference = arith.subf %t, %s : f32
  %x = arith.mulf %difference, %log2e : f32
  %y = math.exp2 %x : f32
  return %y : f32
}

// -----

// Another condition, or the same order: nothing is turned.
// CHECK-LABEL: func.func @others(
// CHECK-COUNT-4: arith.select
// CHECK-NOT:     arith.select
// CHECK:         return
func.func @others(%c: i1, %d: i1, %a: f32, %b: f32) -> (f32, f32) {
  %k = arith.constant 3.000000e+00 : f32
  %t = arith.select %c, %a, %b : f32
  %s = arith.select %d, %b, %a : f32
  %x = arith.subf %t, %s : f32
  %u = arith.mulf %x, %k : f32
  %v = arith.addf %a, %b : f32
  %p = arith.select %c, %a, %v : f32
  %q = arith.select %c, %b, %a : f32
  %y = arith.subf %p, %q : f32
  %w = arith.mulf %y, %k : f32
  return %u, %w : f32, f32
}
