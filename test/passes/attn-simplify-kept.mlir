// What could change a NaN, an infinity or lose precision stays.
// RUN: attn-opt %s --split-input-file -p 'attn-simplify' | FileCheck %s

// x * 0 and x - x are not 0 for NaN and infinities; x / 0 is no product; exp(x) exp(y) overflows where exp(x + y) does not.
// CHECK-LABEL: @attention
// CHECK:         %[[ZERO:.*]] = arith.constant 0.000000e+00
// CHECK-DAG:     arith.mulf %[[S:.*]], %[[ZERO]]
// CHECK-DAG:     arith.subf %[[S]], %[[S]]
// CHECK-DAG:     arith.divf %[[S]], %[[ZERO]]
// CHECK-DAG:     %[[E:.*]] = math.exp %[[S]]
// CHECK-DAG:     arith.mulf %[[E]], %[[E]]
func.func @attention(%q: tensor<?x?x?x64xf32>, %k: tensor<?x?x?x64xf32>, %v: tensor<?x?x?x64xf32>) -> tensor<?x?x?x64xf32> {
  %o = "attn.attention"(%q, %k, %v) ({
    "attn.row"() ({
    ^bb0(%s: f32, %b: index, %h: index, %q_idx: index):
      %zero = arith.constant 0.0 : f32
      %a = arith.mulf %s, %zero : f32
      %c = arith.subf %s, %s : f32
      %d = arith.divf %s, %zero : f32
      %e = math.exp %s : f32
      %ee = arith.mulf %e, %e : f32
      %0 = arith.addf %a, %c : f32
      %1 = arith.addf %d, %ee : f32
      %p = arith.addf %0, %1 : f32
      "attn.yield"(%p) : (f32) -> ()
    }) : () -> ()
  }) {outputs = []} : (tensor<?x?x?x64xf32>, tensor<?x?x?x64xf32>, tensor<?x?x?x64xf32>) -> tensor<?x?x?x64xf32>
  return %o : tensor<?x?x?x64xf32>
}

// -----

// Constants are not gathered over a product: (x * 1e30) * 1e30 may overflow where x * 1e60 is not even a number of f32.
// The reciprocal of a denormal or of the largest numbers is not a normal number, that of 3 is not exact.
// CHECK-LABEL: @attention
// CHECK-COUNT-2: arith.mulf
// CHECK-COUNT-3: arith.divf
func.func @attention(%q: tensor<?x?x?x64xf32>, %k: tensor<?x?x?x64xf32>, %v: tensor<?x?x?x64xf32>) -> tensor<?x?x?x64xf32> {
  %o = "attn.attention"(%q, %k, %v) ({
    "attn.row"() ({
    ^bb0(%s: f32, %b: index, %h: index, %q_idx: index):
      %big = arith.constant 1.0e+30 : f32
      %a = arith.mulf %s, %big : f32
      %c = arith.mulf %a, %big : f32
      %small = arith.constant 1.0e-40 : f32
      %d = arith.divf %c, %small : f32
      %huge = arith.constant 3.0e+38 : f32
      %e = arith.divf %d, %huge : f32
      %three = arith.constant 3.0 : f32
      %p = arith.divf %e, %three : f32
      "attn.yield"(%p) : (f32) -> ()
    }) : () -> ()
  }) {outputs = []} : (tensor<?x?x?x64xf32>, tensor<?x?x?x64xf32>, tensor<?x?x?x64xf32>) -> tensor<?x?x?x64xf32>
  return %o : tensor<?x?x?x64xf32>
}
