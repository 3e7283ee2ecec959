// RUN: attn-opt %s -p 'attn-choose-kept,canonicalize' | FileCheck %s

// A product with 1 or 0 is a choice; one with other numbers stays.
// CHECK-LABEL: func.func @chosen(
// CHECK-SAME:    %[[X:[^:]*]]: f32, %[[N:[^:]*]]: index)
// CHECK-DAG:     %[[ZERO:.*]] = arith.constant 0.000000e+00 : f32
// CHECK-DAG:     %[[TWO:.*]] = arith.constant 2.000000e+00 : f32
// CHECK:         %[[KEPT:.*]] = "attn.kept"
// CHECK:         %[[CHOSEN:.*]] = arith.select %[[KEPT]], %[[X]], %[[ZERO]] : f32
// CHECK:         %[[OTHER:.*]] = arith.select %[[KEPT]], %[[TWO]], %[[ZERO]] : f32
// CHECK:         %[[PRODUCT:.*]] = arith.mulf %[[X]], %[[OTHER]] : f32
// CHECK:         return %[[CHOSEN]], %[[PRODUCT]] : f32, f32
func.func @chosen(%x: f32, %n: index) -> (f32, f32) {
  %zero = arith.constant 0.0 : f32
  %one = arith.constant 1.0 : f32
  %two = arith.constant 2.0 : f32
  %kept = "attn.kept"(%n, %n, %n, %n, %n, %n, %n, %n) : (index, index, index, index, index, index, index, index) -> i1
  %factor = arith.select %kept, %one, %zero : f32
  %chosen = arith.mulf %x, %factor : f32
  %other = arith.select %kept, %two, %zero : f32
  %product = arith.mulf %x, %other : f32
  return %chosen, %product : f32, f32
}
