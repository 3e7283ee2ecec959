// acc / (1 + sum) is 0 without keys by itself, its derivative could be no number with other ends: `every` selects 0 there, too.
// RUN: attn-opt %s -p 'attn-online-rewrite,attn-guard-empty-rows' | FileCheck %s --check-prefix=PLAIN
// RUN: attn-opt %s -p 'attn-online-rewrite,attn-guard-empty-rows{every=true}' | FileCheck %s

// PLAIN-LABEL: @attention
// PLAIN-NOT:   arith.select

// CHECK-LABEL: @attention
// CHECK:       "attn.finalize"() ({
// CHECK:         %[[DIVIDED:.*]] = arith.divf
// CHECK:         %[[EMPTY:.*]] = arith.cmpf oeq
// CHECK:         %[[O:.*]] = arith.select %[[EMPTY]], %{{.*}}, %[[DIVIDED]]
// CHECK-NEXT:    "attn.yield"(%[[O]])
func.func @attention(%q: tensor<?x?x?x64xf32>, %k: tensor<?x?x?x64xf32>, %v: tensor<?x?x?x64xf32>) -> tensor<?x?x?x64xf32> {
  %o = "attn.attention"(%q, %k, %v) ({
    "attn.row"() ({
    ^bb0(%s: f32, %b: index, %h: index, %q_idx: index):
      %e = math.exp %s : f32
      %a = "attn.reduce"(%e) {kind = "sum"} : (f32) -> f32
      %one = arith.constant 1.0 : f32
      %n = arith.addf %a, %one : f32
      %p = arith.divf %e, %n : f32
      "attn.yield"(%p) : (f32) -> ()
    }) : () -> ()
  }) {outputs = []} : (tensor<?x?x?x64xf32>, tensor<?x?x?x64xf32>, tensor<?x?x?x64xf32>) -> tensor<?x?x?x64xf32>
  return %o : tensor<?x?x?x64xf32>
}

// A sum of weights without an end has nothing to select.
// CHECK-LABEL: @sums
// CHECK-NOT:   arith.select
func.func @sums(%q: tensor<?x?x?x64xf32>, %k: tensor<?x?x?x64xf32>, %v: tensor<?x?x?x64xf32>) -> tensor<?x?x?x64xf32> {
  %o = "attn.attention"(%q, %k, %v) ({
    "attn.row"() ({
    ^bb0(%s: f32, %b: index, %h: index, %q_idx: index):
      "attn.yield"(%s) : (f32) -> ()
    }) : () -> ()
  }) {outputs = []} : (tensor<?x?x?x64xf32>, tensor<?x?x?x64xf32>, tensor<?x?x?x64xf32>) -> tensor<?x?x?x64xf32>
  return %o : tensor<?x?x?x64xf32>
}
