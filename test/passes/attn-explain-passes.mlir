// A reduction that must wait says why.
// RUN: attn-opt %s --attn-explain | FileCheck %s

// CHECK:      l: one more pass, in pass 2; exp(s / sqrt(sq / n)) does not separate s from the reductions
// CHECK-NEXT: o: independent
// CHECK-SAME: applied at the end: 1 / l
// CHECK-NEXT: passes over keys: 2; state per row: n, sq, l; accumulators: 1
// CHECK:      step 1
// CHECK:      step 2
// CHECK-NOT:  merge
// CHECK:      confirmed in float64
func.func @attention(%q: tensor<?x?x?x64xf32>, %k: tensor<?x?x?x64xf32>, %v: tensor<?x?x?x64xf32>) -> tensor<?x?x?x64xf32> {
  %o = "attn.attention"(%q, %k, %v) ({
    "attn.row"() ({
    ^bb0(%s: f32, %b: index, %h: index, %q_idx: index):
      %one = arith.constant 1.0 : f32
      %n = "attn.reduce"(%one) {kind = "sum"} : (f32) -> f32 loc("n")
      %ss = arith.mulf %s, %s : f32
      %sq = "attn.reduce"(%ss) {kind = "sum"} : (f32) -> f32 loc("sq")
      %var = arith.divf %sq, %n : f32
      %std = math.sqrt %var : f32
      %z = arith.divf %s, %std : f32
      %e = math.exp %z : f32
      %l = "attn.reduce"(%e) {kind = "sum"} : (f32) -> f32 loc("l")
      %p = arith.divf %e, %l : f32
      "attn.yield"(%p) : (f32) -> ()
    }) : () -> ()
  }) {outputs = []} : (tensor<?x?x?x64xf32>, tensor<?x?x?x64xf32>, tensor<?x?x?x64xf32>) -> tensor<?x?x?x64xf32>
  return %o : tensor<?x?x?x64xf32>
}
