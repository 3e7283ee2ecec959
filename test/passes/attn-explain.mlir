// RUN: attn-opt %s --attn-explain | FileCheck %s
// RUN: attn-opt %s -p 'attn-online-rewrite' --attn-explain | FileCheck %s --check-prefix=ONLINE

// CHECK:      @attention: attn.attention
// CHECK:      row
// CHECK-NEXT:   m = max s
// CHECK-NEXT:   l = sum exp(s - m)
// CHECK-NEXT:   p = exp(s - m) / l
// CHECK-NEXT:   lse = m + log(l)
// CHECK:      derivation
// CHECK-NEXT:   m: independent
// CHECK-NEXT:   l: rescaled, by exp(change of -m)
// CHECK-NEXT:   o: rescaled, by exp(change of -m); applied at the end: 1 / l
// CHECK-NEXT:   passes over keys: 1; state per row: m, l; accumulators: 1
// CHECK:      step
// CHECK-NEXT:   m' = max(m, max over block(s))
// CHECK-NEXT:   l' = l * exp(m - m') + sum over block(exp(s - m'))
// CHECK-NEXT:   acc' = acc * exp(m - m') + sum exp(s - m') v
// CHECK:      merge
// CHECK:        acc = acc_a * exp(m_a - m) + acc_b * exp(m_b - m)
// CHECK:      finalize
// CHECK-NEXT:   o = acc / l
// CHECK:      confirmed in float64, block by block and merged: {{[0-9]+}} values, largest relative error {{[0-9].[0-9]e-1[0-9]}}
// ONLINE:     @attention: attn.online
// ONLINE-NEXT:  passes over keys: 1; state per row: m, l; accumulators: 1
// ONLINE:     step
// ONLINE-NEXT:  m' = max(m, max over block(s))
// ONLINE:       lse = m + log(l)
func.func @attention(%q: tensor<?x?x?x64xf32>, %k: tensor<?x?x?x64xf32>, %v: tensor<?x?x?x64xf32>) -> (tensor<?x?x?x64xf32>, tensor<?x?x?xf32>) {
  %o, %lse = "attn.attention"(%q, %k, %v) ({
    "attn.row"() ({
    ^bb0(%s: f32, %b: index, %h: index, %q_idx: index):
      %m = "attn.reduce"(%s) {kind = "max"} : (f32) -> f32 loc("m")
      %d = arith.subf %s, %m : f32
      %e = math.exp %d : f32
      %l = "attn.reduce"(%e) {kind = "sum"} : (f32) -> f32 loc("l")
      %p = arith.divf %e, %l : f32
      %log_l = math.log %l : f32
      %lse = arith.addf %m, %log_l : f32
      "attn.yield"(%p, %lse) : (f32, f32) -> ()
    }) : () -> ()
  }) {outputs = ["lse"]} : (tensor<?x?x?x64xf32>, tensor<?x?x?x64xf32>, tensor<?x?x?x64xf32>) -> (tensor<?x?x?x64xf32>, tensor<?x?x?xf32>)
  return %o, %lse : tensor<?x?x?x64xf32>, tensor<?x?x?xf32>
}
