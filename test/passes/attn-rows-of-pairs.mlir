// The gradient of q, where keys lie in pages: an attention whose score is the weight of a pair, of both products, and which sums k.
// RUN: attn-opt %s -p 'attn-differentiate{functions=bwd wrt=q only=true},attn-rows-of-pairs,func.func(cse)' | FileCheck %s

// CHECK-LABEL: func.func @paged_bwd(
// CHECK-SAME:    %[[Q:[^:]*]]: tensor<?x?x?x32xf16>, %[[K:[^:]*]]: tensor<?x?x?x32xf16>, %[[V:[^:]*]]: tensor<?x?x?x16xf16>
// CHECK-SAME:    %[[TABLE:[^:]*]]: tensor<?x?xi32>
// CHECK-SAME:    %[[DO:do]]: tensor<?x?x?x16xf16>) -> tensor<?x?x?x32xf16>
// CHECK-NOT:     attn.pairs
// CHECK:         %[[DQ:.*]] = "attn.attention"(%[[Q]], %[[K]], %[[K]]) ({
// CHECK-NEXT:      "attn.product"(%[[DO]], %[[V]])
// CHECK:           "attn.pages"(%[[TABLE]])
// CHECK:           "attn.score"() ({
// CHECK-NEXT:      ^bb0(%{{.*}}: f32, %[[DP:.*]]: f32, %{{.*}}: index, %{{.*}}: index, %{{.*}}: index, %{{.*}}: index):
// CHECK:             arith.subf %[[DP]], %{{.*}} : f32
// CHECK:             "attn.yield"(%[[WEIGHT:.*]]) : (f32) -> ()
// CHECK:           "attn.row"() ({
// CHECK-NEXT:      ^bb0(%[[S:.*]]: f32, %{{.*}}: index, %{{.*}}: index, %{{.*}}: index):
// CHECK-NEXT:        "attn.yield"(%[[S]]) : (f32) -> ()
// CHECK:         return %[[DQ]] : tensor<?x?x?x32xf16>
!q = tensor<?x?x?x32xf16>
!v = tensor<?x?x?x16xf16>
!n = tensor<?xi32>
func.func @paged(%q: !q, %k: !q, %v: !v, %begins: !n, %lengths: !n, %first: !n, %keys: !n, %table: tensor<?x?xi32>) -> !v {
  %o = "attn.attention"(%q, %k, %v) ({
    "attn.sequences"(%begins, %lengths) {of = "query"} : (!n, !n) -> ()
    "attn.sequences"(%first, %keys) {of = "key"} : (!n, !n) -> ()
    "attn.pages"(%table) : (tensor<?x?xi32>) -> ()
    "attn.row"() ({
    ^bb0(%s: f32, %b: index, %h: index, %i: index):
      %m = "attn.reduce"(%s) {kind = "max"} : (f32) -> f32
      %d = arith.subf %s, %m : f32
      %e = math.exp %d : f32
      %l = "attn.reduce"(%e) {kind = "sum"} : (f32) -> f32
      %p = arith.divf %e, %l : f32
      "attn.yield"(%p) : (f32) -> ()
    }) : () -> ()
  }) {outputs = []} : (!q, !q, !v) -> !v
  return %o : !v
}
