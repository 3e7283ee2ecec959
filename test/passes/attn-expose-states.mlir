// A partial result: the accumulator in f32 and the row states, as they are before the end. The rule to merge them stays.
// RUN: attn-opt %s -p 'attn-online-rewrite,attn-expose-states' | FileCheck %s
// RUN: attn-opt %s -p 'attn-online-rewrite,attn-expose-states,attn-recover-rows' | FileCheck %s --check-prefix=DENSE
// RUN: attn-opt %s -p 'attn-online-rewrite,attn-expose-states{rounded=true}' | FileCheck %s --check-prefix=ROUNDED

// CHECK:       func.func @attention({{.*}}) -> (tensor<?x?x?x8xf32>, tensor<?x?x?xf32>, tensor<?x?x?xf32>)
// CHECK:       "attn.online"
// CHECK:       "attn.merge"() ({
// CHECK:       "attn.finalize"() ({
// CHECK-NEXT:  ^bb0(%[[ACC:.*]]: f32, %{{.*}}: index, %{{.*}}: index, %{{.*}}: index, %[[M:.*]]: f32, %[[L:.*]]: f32):
// CHECK-NEXT:    "attn.yield"(%[[ACC]], %[[M]], %[[L]])
// CHECK:       outputs = ["state0_{{.*}}", "state1_{{.*}}"]

// ROUNDED:     func.func @attention({{.*}}) -> (tensor<?x?x?x8xbf16>, tensor<?x?x?xf32>, tensor<?x?x?xf32>)

// As a row it has all derivatives.
// DENSE:       "attn.row"() ({
// DENSE-NEXT:  ^bb0(%[[S:.*]]: f32, %{{.*}}: index, %{{.*}}: index, %{{.*}}: index):
// DENSE-NEXT:    %[[M:.*]] = "attn.reduce"(%[[S]]) {kind = "max"}
// DENSE-NEXT:    %[[SHIFTED:.*]] = arith.subf %[[S]], %[[M]]
// DENSE-NEXT:    %[[E:.*]] = math.exp %[[SHIFTED]]
// DENSE-NEXT:    %[[L:.*]] = "attn.reduce"(%[[E]]) {kind = "sum"}
// DENSE-NEXT:    "attn.yield"(%[[E]], %[[M]], %[[L]])
func.func @attention(%q: tensor<?x?x?x8xbf16>, %k: tensor<?x?x?x8xbf16>, %v: tensor<?x?x?x8xbf16>) -> tensor<?x?x?x8xbf16> {
  %o = "attn.attention"(%q, %k, %v) ({
    "attn.row"() ({
    ^bb0(%s: f32, %b: index, %h: index, %q_idx: index):
      %m = "attn.reduce"(%s) {kind = "max"} : (f32) -> f32
      %shifted = arith.subf %s, %m : f32
      %e = math.exp %shifted : f32
      %l = "attn.reduce"(%e) {kind = "sum"} : (f32) -> f32
      %p = arith.divf %e, %l : f32
      "attn.yield"(%p) : (f32) -> ()
    }) : () -> ()
  }) {outputs = []} : (tensor<?x?x?x8xbf16>, tensor<?x?x?x8xbf16>, tensor<?x?x?x8xbf16>) -> tensor<?x?x?x8xbf16>
  return %o : tensor<?x?x?x8xbf16>
}
