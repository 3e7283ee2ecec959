// Softmax: the sum and the output are rescaled when the maximum moves; the division happens once, at the end.
// RUN: attn-opt %s -p 'attn-online-rewrite' | FileCheck %s

// CHECK:       "attn.init"() ({
// CHECK-NEXT:  ^bb0(%b: index, %h: index, %q_idx: index):
// CHECK-NEXT:    %[[M0:.*]] = arith.constant -3.40282347E+38 : f32
// CHECK-NEXT:    %[[L0:.*]] = arith.constant 0.000000e+00 : f32
// CHECK-NEXT:    "attn.yield"(%[[M0]], %[[L0]])
// CHECK:       "attn.step"() ({
// CHECK-NEXT:  ^bb0(%[[S:.*]]: f32, %{{.*}}: index, %{{.*}}: index, %{{.*}}: index, %[[M:.*]]: f32, %[[L:.*]]: f32):
// CHECK-NEXT:    %[[MAX:.*]] = "attn.reduce"(%[[S]]) {kind = "max"}
// CHECK-NEXT:    %[[M_NEW:.*]] = arith.maximumf %[[M]], %[[MAX]]
// CHECK-NEXT:    %[[MOVED:.*]] = arith.subf %[[M]], %[[M_NEW]]
// CHECK-NEXT:    %[[RESCALE:.*]] = math.exp %[[MOVED]]
// CHECK-NEXT:    %[[KEPT:.*]] = arith.mulf %[[L]], %[[RESCALE]]
// CHECK-NEXT:    %[[D:.*]] = arith.subf %[[S]], %[[M_NEW]]
// CHECK-NEXT:    %[[WEIGHT:.*]] = math.exp %[[D]]
// CHECK-NEXT:    %[[SUM:.*]] = "attn.reduce"(%[[WEIGHT]]) {kind = "sum"}
// CHECK-NEXT:    %[[L_NEW:.*]] = arith.addf %[[KEPT]], %[[SUM]]
// CHECK-NEXT:    "attn.yield"(%[[M_NEW]], %[[L_NEW]], %[[WEIGHT]], %[[RESCALE]])
// CHECK-NOT:   "attn.step"
// CHECK:       "attn.merge"() ({
// CHECK-NEXT:  ^bb0(%[[MA:.*]]: f32, %[[LA:.*]]: f32, %[[MB:.*]]: f32, %[[LB:.*]]: f32):
// CHECK-NEXT:    %[[MM:.*]] = arith.maximumf %[[MA]], %[[MB]]
// CHECK:         %[[A:.*]] = math.exp
// CHECK-NEXT:    arith.mulf %[[LA]], %[[A]]
// CHECK:         %[[B:.*]] = math.exp
// CHECK-NEXT:    arith.mulf %[[LB]], %[[B]]
// CHECK-NEXT:    %[[LM:.*]] = arith.addf
// CHECK-NEXT:    "attn.yield"(%[[MM]], %[[LM]], %[[A]], %[[B]])
// CHECK:       "attn.finalize"() ({
// CHECK-NEXT:  ^bb0(%[[ACC:.*]]: f32, %{{.*}}: index, %{{.*}}: index, %{{.*}}: index, %[[M:.*]]: f32, %[[L:.*]]: f32):
// CHECK-NEXT:    %[[O:.*]] = arith.divf %[[ACC]], %[[L]]
// CHECK-NEXT:    %[[LOG:.*]] = math.log %[[L]]
// CHECK-NEXT:    %[[LSE:.*]] = arith.addf %[[M]], %[[LOG]]
// CHECK-NEXT:    "attn.yield"(%[[O]], %[[LSE]])
// CHECK:       accumulators = 1 : i64, outputs = ["lse"]
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
