// Reductions that need no other one are accumulated; normalisers are applied at the end; scales are 1.
// RUN: attn-opt %s --split-input-file -p 'attn-online-rewrite' | FileCheck %s

// relu(s) / sum relu(s)
// CHECK-LABEL: @attention
// CHECK:       "attn.step"() ({
// CHECK-NEXT:  ^bb0(%[[S:.*]]: f32, %{{.*}}: index, %{{.*}}: index, %{{.*}}: index, %[[A:.*]]: f32):
// CHECK:         %[[RELU:.*]] = arith.maximumf %[[S]]
// CHECK-NEXT:    %[[SUM:.*]] = "attn.reduce"(%[[RELU]]) {kind = "sum"}
// CHECK-NEXT:    %[[A_NEW:.*]] = arith.addf %[[A]], %[[SUM]]
// CHECK-NEXT:    %[[ONE:.*]] = arith.constant 1.000000e+00
// CHECK-NEXT:    "attn.yield"(%[[A_NEW]], %[[RELU]], %[[ONE]])
// CHECK:       "attn.finalize"() ({
// CHECK-NEXT:  ^bb0(%[[ACC:.*]]: f32, %{{.*}}: index, %{{.*}}: index, %{{.*}}: index, %[[A:.*]]: f32):
// CHECK-NEXT:    %[[O:.*]] = arith.divf %[[ACC]], %[[A]]
// CHECK-NEXT:    "attn.yield"(%[[O]])
func.func @attention(%q: tensor<?x?x?x64xf32>, %k: tensor<?x?x?x64xf32>, %v: tensor<?x?x?x64xf32>) -> tensor<?x?x?x64xf32> {
  %o = "attn.attention"(%q, %k, %v) ({
    "attn.row"() ({
    ^bb0(%s: f32, %b: index, %h: index, %q_idx: index):
      %zero = arith.constant 0.0 : f32
      %x = arith.maximumf %s, %zero : f32
      %a = "attn.reduce"(%x) {kind = "sum"} : (f32) -> f32 loc("a")
      %p = arith.divf %x, %a : f32
      "attn.yield"(%p) : (f32) -> ()
    }) : () -> ()
  }) {outputs = []} : (tensor<?x?x?x64xf32>, tensor<?x?x?x64xf32>, tensor<?x?x?x64xf32>) -> tensor<?x?x?x64xf32>
  return %o : tensor<?x?x?x64xf32>
}

// -----

// Retention, s / max(|sum s|, 1): the weight is the score itself.
// CHECK-LABEL: @attention
// CHECK:       "attn.step"() ({
// CHECK-NEXT:  ^bb0(%[[S:.*]]: f32, %{{.*}}: index, %{{.*}}: index, %{{.*}}: index, %[[A:.*]]: f32):
// CHECK-NEXT:    %[[SUM:.*]] = "attn.reduce"(%[[S]]) {kind = "sum"}
// CHECK-NEXT:    %[[A_NEW:.*]] = arith.addf %[[A]], %[[SUM]]
// CHECK-NEXT:    %[[ONE:.*]] = arith.constant 1.000000e+00
// CHECK-NEXT:    "attn.yield"(%[[A_NEW]], %[[S]], %[[ONE]])
// CHECK:       "attn.finalize"() ({
// CHECK:         %[[SIZE:.*]] = math.absf
// CHECK:         %[[C:.*]] = arith.maximumf %[[SIZE]]
// CHECK-NEXT:    arith.divf %{{.*}}, %[[C]]
func.func @attention(%q: tensor<?x?x?x64xf32>, %k: tensor<?x?x?x64xf32>, %v: tensor<?x?x?x64xf32>) -> tensor<?x?x?x64xf32> {
  %o = "attn.attention"(%q, %k, %v) ({
    "attn.row"() ({
    ^bb0(%s: f32, %b: index, %h: index, %q_idx: index):
      %a = "attn.reduce"(%s) {kind = "sum"} : (f32) -> f32 loc("a")
      %size = math.absf %a : f32
      %n = "attn.detach"(%size) : (f32) -> f32
      %one = arith.constant 1.0 : f32
      %c = arith.maximumf %n, %one : f32
      %p = arith.divf %s, %c : f32
      "attn.yield"(%p) : (f32) -> ()
    }) : () -> ()
  }) {outputs = []} : (tensor<?x?x?x64xf32>, tensor<?x?x?x64xf32>, tensor<?x?x?x64xf32>) -> tensor<?x?x?x64xf32>
  return %o : tensor<?x?x?x64xf32>
}

// -----

// sigmoid(s): no row state at all.
// CHECK-LABEL: @attention
// CHECK:       "attn.init"() ({
// CHECK-NEXT:  ^bb0(%{{.*}}: index, %{{.*}}: index, %{{.*}}: index):
// CHECK-NEXT:    "attn.yield"() : () -> ()
// CHECK:       "attn.step"() ({
// CHECK-NEXT:  ^bb0(%[[S:.*]]: f32, %{{.*}}: index, %{{.*}}: index, %{{.*}}: index):
// CHECK:         %[[P:.*]] = arith.divf
// CHECK:         "attn.yield"(%[[P]], %{{.*}}) : (f32, f32) -> ()
// CHECK:       "attn.finalize"() ({
// CHECK-NEXT:  ^bb0(%[[ACC:.*]]: f32, %{{.*}}: index, %{{.*}}: index, %{{.*}}: index):
// CHECK-NEXT:    "attn.yield"(%[[ACC]])
func.func @attention(%q: tensor<?x?x?x64xf32>, %k: tensor<?x?x?x64xf32>, %v: tensor<?x?x?x64xf32>) -> tensor<?x?x?x64xf32> {
  %o = "attn.attention"(%q, %k, %v) ({
    "attn.row"() ({
    ^bb0(%s: f32, %b: index, %h: index, %q_idx: index):
      %one = arith.constant 1.0 : f32
      %n = arith.negf %s : f32
      %e = math.exp %n : f32
      %d = arith.addf %one, %e : f32
      %p = arith.divf %one, %d : f32
      "attn.yield"(%p) : (f32) -> ()
    }) : () -> ()
  }) {outputs = []} : (tensor<?x?x?x64xf32>, tensor<?x?x?x64xf32>, tensor<?x?x?x64xf32>) -> tensor<?x?x?x64xf32>
  return %o : tensor<?x?x?x64xf32>
}
