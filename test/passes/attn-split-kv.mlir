// Keys in parts: a function for their partial results, and one that merges these by the derived rule and ends them.
// RUN: attn-opt %s -p 'attn-online-rewrite,attn-split-kv' | FileCheck %s

// CHECK:       func.func @attention_parts({{.*}}, %[[PARTS:.*]]: index, %[[KEYS:.*]]: index) -> (tensor<?x?x?x8xf32>, tensor<?x?x?xf32>)
// CHECK:       "attn.online"
// CHECK:       "attn.parts"(%[[PARTS]], %[[KEYS]])
// CHECK:       "attn.finalize"() ({
// CHECK-NEXT:  ^bb0(%[[ACC:.*]]: f32, %{{.*}}: index, %{{.*}}: index, %{{.*}}: index, %[[L:.*]]: f32):
// CHECK-NEXT:    "attn.yield"(%[[ACC]], %[[L]])

// CHECK:       func.func @attention_combine({{.*}}, %[[ACC:.*]]: tensor<?x?x?x8xf32>, %[[STATE:.*]]: tensor<?x?x?xf32>, %[[PARTS:.*]]: index) -> tensor<?x?x?x8xf16>
// CHECK:       "attn.combine"(%[[ACC]], %[[PARTS]]) ({
// CHECK-NEXT:    "attn.carried"(%[[STATE]])
// CHECK:         "attn.merge"() ({
// CHECK-NEXT:    ^bb0(%[[A:.*]]: f32, %[[B:.*]]: f32):
// CHECK:           %[[L:.*]] = arith.addf %[[A]], %[[B]]
// CHECK:           "attn.yield"(%[[L]], %{{.*}}, %{{.*}})
// CHECK:         "attn.finalize"() ({
// CHECK:           arith.divf
func.func @attention(%q: tensor<?x?x?x8xf16>, %k: tensor<?x?x?x8xf16>, %v: tensor<?x?x?x8xf16>) -> tensor<?x?x?x8xf16> {
  %o = "attn.attention"(%q, %k, %v) ({
    "attn.row"() ({
    ^bb0(%s: f32, %b: index, %h: index, %q_idx: index):
      %zero = arith.constant 0.0 : f32
      %w = arith.maximumf %s, %zero : f32
      %one = arith.constant 1.0 : f32
      %l = "attn.reduce"(%w) {kind = "sum"} : (f32) -> f32
      %n = arith.addf %l, %one : f32
      %p = arith.divf %w, %n : f32
      "attn.yield"(%p) : (f32) -> ()
    }) : () -> ()
  }) {outputs = []} : (tensor<?x?x?x8xf16>, tensor<?x?x?x8xf16>, tensor<?x?x?x8xf16>) -> tensor<?x?x?x8xf16>
  return %o : tensor<?x?x?x8xf16>
}
