// Sums that several formulas need are kept once: the entropy of softmax adds one state to its two.
// exp(s - (m + log l)) is found to be exp(s - m) / l.
// RUN: attn-opt %s --split-input-file -p 'attn-online-rewrite' | FileCheck %s

// CHECK-LABEL: @attention
// CHECK:       "attn.step"() ({
// CHECK-NEXT:  ^bb0(%[[S:.*]]: f32, %{{.*}}: index, %{{.*}}: index, %{{.*}}: index, %{{.*}}: f32, %{{.*}}: f32, %{{.*}}: f32):
// CHECK:         %[[RESCALE:.*]] = math.exp
// CHECK:         %[[E:.*]] = math.exp
// CHECK-NEXT:    "attn.reduce"(%[[E]]) {kind = "sum"}
// CHECK:         %[[SE:.*]] = arith.mulf %[[S]], %[[E]]
// CHECK-NEXT:    "attn.reduce"(%[[SE]]) {kind = "sum"}
// CHECK-NOT:     "attn.reduce"
// CHECK:         "attn.yield"(%{{.*}}, %{{.*}}, %{{.*}}, %[[E]], %[[RESCALE]])
func.func @attention(%q: tensor<?x?x?x64xf32>, %k: tensor<?x?x?x64xf32>, %v: tensor<?x?x?x64xf32>) -> (tensor<?x?x?x64xf32>, tensor<?x?x?xf32>) {
  %o, %entropy = "attn.attention"(%q, %k, %v) ({
    "attn.row"() ({
    ^bb0(%s: f32, %b: index, %h: index, %q_idx: index):
      %m = "attn.reduce"(%s) {kind = "max"} : (f32) -> f32 loc("m")
      %d = arith.subf %s, %m : f32
      %e = math.exp %d : f32
      %l = "attn.reduce"(%e) {kind = "sum"} : (f32) -> f32 loc("l")
      %p = arith.divf %e, %l : f32
      %log = math.log %p : f32
      %plog = arith.mulf %p, %log : f32
      %t = "attn.reduce"(%plog) {kind = "sum"} : (f32) -> f32 loc("t")
      %entropy = arith.negf %t : f32
      "attn.yield"(%p, %entropy) : (f32, f32) -> ()
    }) : () -> ()
  }) {outputs = ["entropy"]} : (tensor<?x?x?x64xf32>, tensor<?x?x?x64xf32>, tensor<?x?x?x64xf32>) -> (tensor<?x?x?x64xf32>, tensor<?x?x?xf32>)
  return %o, %entropy : tensor<?x?x?x64xf32>, tensor<?x?x?xf32>
}

// -----

// CHECK-LABEL: @attention
// CHECK:       "attn.init"()
// CHECK:         "attn.yield"(%{{.*}}, %{{.*}}) : (f32, f32) -> ()
// CHECK:       "attn.finalize"() ({
// CHECK-NEXT:  ^bb0(%[[ACC:.*]]: f32, %{{.*}}: index, %{{.*}}: index, %{{.*}}: index, %{{.*}}: f32, %[[L:.*]]: f32):
// CHECK-NEXT:    arith.divf %[[ACC]], %[[L]]
func.func @attention(%q: tensor<?x?x?x64xf32>, %k: tensor<?x?x?x64xf32>, %v: tensor<?x?x?x64xf32>) -> (tensor<?x?x?x64xf32>, tensor<?x?x?xf32>) {
  %o, %lse = "attn.attention"(%q, %k, %v) ({
    "attn.row"() ({
    ^bb0(%s: f32, %b: index, %h: index, %q_idx: index):
      %m = "attn.reduce"(%s) {kind = "max"} : (f32) -> f32 loc("m")
      %d = arith.subf %s, %m : f32
      %e = math.exp %d : f32
      %l = "attn.reduce"(%e) {kind = "sum"} : (f32) -> f32 loc("l")
      %log_l = math.log %l : f32
      %lse = arith.addf %m, %log_l : f32
      %dl = arith.subf %s, %lse : f32
      %p = math.exp %dl : f32
      "attn.yield"(%p, %lse) : (f32, f32) -> ()
    }) : () -> ()
  }) {outputs = ["lse"]} : (tensor<?x?x?x64xf32>, tensor<?x?x?x64xf32>, tensor<?x?x?x64xf32>) -> (tensor<?x?x?x64xf32>, tensor<?x?x?xf32>)
  return %o, %lse : tensor<?x?x?x64xf32>, tensor<?x?x?xf32>
}
