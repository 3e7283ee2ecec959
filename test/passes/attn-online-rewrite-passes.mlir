// What does not separate the score from a reduction waits for it: one more pass, and no merge.
// RUN: attn-opt %s --split-input-file -p 'attn-online-rewrite' | FileCheck %s

// Softmax with temperature std(s).
// CHECK-LABEL: @attention
// CHECK-NOT:   "attn.merge"
// CHECK:       "attn.step"() ({
// CHECK-NEXT:  ^bb0(%{{.*}}: f32, %{{.*}}: index, %{{.*}}: index, %{{.*}}: index, %[[N:.*]]: f32, %[[B:.*]]: f32, %[[L:.*]]: f32):
// CHECK:         %[[N_NEW:.*]] = arith.addf %[[N]],
// CHECK:         %[[B_NEW:.*]] = arith.addf %[[B]],
// CHECK-NEXT:    "attn.yield"(%[[N_NEW]], %[[B_NEW]], %[[L]]) : (f32, f32, f32) -> ()
// CHECK:       "attn.step"() ({
// CHECK-NEXT:  ^bb0(%[[S:.*]]: f32, %{{.*}}: index, %{{.*}}: index, %{{.*}}: index, %[[N:.*]]: f32, %[[B:.*]]: f32, %[[L:.*]]: f32):
// CHECK-NEXT:    %[[VAR:.*]] = arith.divf %[[B]], %[[N]]
// CHECK-NEXT:    %[[STD:.*]] = math.sqrt %[[VAR]]
// CHECK-NEXT:    %[[Z:.*]] = arith.divf %[[S]], %[[STD]]
// CHECK-NEXT:    %[[E:.*]] = math.exp %[[Z]]
// CHECK-NEXT:    %[[SUM:.*]] = "attn.reduce"(%[[E]]) {kind = "sum"}
// CHECK-NEXT:    %[[L_NEW:.*]] = arith.addf %[[L]], %[[SUM]]
// CHECK:         "attn.yield"(%[[N]], %[[B]], %[[L_NEW]], %[[E]], %{{.*}})
// CHECK-NOT:   "attn.merge"
// CHECK:       "attn.finalize"
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

// -----

// relu(s - max s + 1)
// CHECK-LABEL: @attention
// CHECK:       "attn.step"() ({
// CHECK:         %[[M_NEW:.*]] = arith.maximumf
// CHECK-NEXT:    "attn.yield"(%[[M_NEW]]) : (f32) -> ()
// CHECK:       "attn.step"() ({
// CHECK-NEXT:  ^bb0(%[[S:.*]]: f32, %{{.*}}: index, %{{.*}}: index, %{{.*}}: index, %[[M:.*]]: f32):
// CHECK-NEXT:    arith.subf %[[S]], %[[M]]
// CHECK:         %[[P:.*]] = arith.maximumf
// CHECK:         "attn.yield"(%[[M]], %[[P]], %{{.*}}) : (f32, f32, f32) -> ()
// CHECK-NOT:   "attn.merge"
func.func @attention(%q: tensor<?x?x?x64xf32>, %k: tensor<?x?x?x64xf32>, %v: tensor<?x?x?x64xf32>) -> tensor<?x?x?x64xf32> {
  %o = "attn.attention"(%q, %k, %v) ({
    "attn.row"() ({
    ^bb0(%s: f32, %b: index, %h: index, %q_idx: index):
      %m = "attn.reduce"(%s) {kind = "max"} : (f32) -> f32 loc("m")
      %d = arith.subf %s, %m : f32
      %one = arith.constant 1.0 : f32
      %x = arith.addf %d, %one : f32
      %zero = arith.constant 0.0 : f32
      %p = arith.maximumf %x, %zero : f32
      "attn.yield"(%p) : (f32) -> ()
    }) : () -> ()
  }) {outputs = []} : (tensor<?x?x?x64xf32>, tensor<?x?x?x64xf32>, tensor<?x?x?x64xf32>) -> tensor<?x?x?x64xf32>
  return %o : tensor<?x?x?x64xf32>
}
