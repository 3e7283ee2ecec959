// Captured tensors are read again where they are needed. Merging knows no head: there the value travels as a state.
// RUN: attn-opt %s --split-input-file -p 'attn-online-rewrite' | FileCheck %s

// A sink per head: only the end needs it, so there is no third state.
// CHECK-LABEL: func.func @attention(
// CHECK-SAME:    %[[SINKS:[a-z0-9]*]]: tensor<?xf32>)
// CHECK:       "attn.merge"() ({
// CHECK-NEXT:  ^bb0(%{{.*}}: f32, %{{.*}}: f32, %{{.*}}: f32, %{{.*}}: f32):
// CHECK:       "attn.finalize"() ({
// CHECK-NEXT:  ^bb0(%[[ACC:.*]]: f32, %{{.*}}: index, %[[H:.*]]: index, %{{.*}}: index, %[[M:.*]]: f32, %[[L:.*]]: f32):
// CHECK-NEXT:    %[[SINK:.*]] = tensor.extract %[[SINKS]][%[[H]]]
// CHECK-NEXT:    %[[D:.*]] = arith.subf %[[SINK]], %[[M]]
// CHECK-NEXT:    %[[E:.*]] = math.exp %[[D]]
// CHECK-NEXT:    %[[ALL:.*]] = arith.addf %[[L]], %[[E]]
// CHECK-NEXT:    arith.divf %[[ACC]], %[[ALL]]
func.func @attention(%q: tensor<?x?x?x64xf32>, %k: tensor<?x?x?x64xf32>, %v: tensor<?x?x?x64xf32>, %sinks: tensor<?xf32>) -> tensor<?x?x?x64xf32> {
  %o = "attn.attention"(%q, %k, %v) ({
    "attn.row"() ({
    ^bb0(%s: f32, %b: index, %h: index, %q_idx: index):
      %m = "attn.reduce"(%s) {kind = "max"} : (f32) -> f32 loc("m")
      %d = arith.subf %s, %m : f32
      %e = math.exp %d : f32
      %l = "attn.reduce"(%e) {kind = "sum"} : (f32) -> f32 loc("l")
      %sink = tensor.extract %sinks[%h] : tensor<?xf32>
      %ds = arith.subf %sink, %m : f32
      %es = math.exp %ds : f32
      %all = arith.addf %l, %es : f32
      %p = arith.divf %e, %all : f32
      "attn.yield"(%p) : (f32) -> ()
    }) : () -> ()
  }) {outputs = []} : (tensor<?x?x?x64xf32>, tensor<?x?x?x64xf32>, tensor<?x?x?x64xf32>) -> tensor<?x?x?x64xf32>
  return %o : tensor<?x?x?x64xf32>
}

// -----

// exp((s - m) t): t may be negative, then the first rescaling would be infinite, hence the select.
// CHECK-LABEL: @attention
// CHECK:       "attn.init"() ({
// CHECK-NEXT:  ^bb0(%{{.*}}: index, %[[H:.*]]: index, %{{.*}}: index):
// CHECK:         %[[T:.*]] = tensor.extract %{{.*}}[%[[H]]]
// CHECK-NEXT:    "attn.yield"(%{{.*}}, %{{.*}}, %[[T]]) : (f32, f32, f32) -> ()
// CHECK:       "attn.step"() ({
// CHECK:         %[[LOWEST:.*]] = arith.constant -3.40282347E+38
// CHECK:         %[[UNTOUCHED:.*]] = arith.cmpf oeq, %{{.*}}, %[[LOWEST]]
// CHECK:         arith.select %[[UNTOUCHED]]
// CHECK:       "attn.merge"() ({
// CHECK-NEXT:  ^bb0(%[[MA:.*]]: f32, %{{.*}}: f32, %[[TA:.*]]: f32, %{{.*}}: f32, %{{.*}}: f32, %{{.*}}: f32):
// CHECK:         %[[MOVED:.*]] = arith.subf %[[MA]], %{{.*}}
// CHECK-NEXT:    arith.mulf %[[TA]], %[[MOVED]]
// CHECK:         "attn.yield"(%{{.*}}, %{{.*}}, %[[TA]], %{{.*}}, %{{.*}})
func.func @attention(%q: tensor<?x?x?x64xf32>, %k: tensor<?x?x?x64xf32>, %v: tensor<?x?x?x64xf32>, %taus: tensor<?xf32>) -> tensor<?x?x?x64xf32> {
  %o = "attn.attention"(%q, %k, %v) ({
    "attn.row"() ({
    ^bb0(%s: f32, %b: index, %h: index, %q_idx: index):
      %t = tensor.extract %taus[%h] : tensor<?xf32> loc("t")
      %m = "attn.reduce"(%s) {kind = "max"} : (f32) -> f32 loc("m")
      %d = arith.subf %s, %m : f32
      %td = arith.mulf %d, %t : f32
      %e = math.exp %td : f32
      %l = "attn.reduce"(%e) {kind = "sum"} : (f32) -> f32 loc("l")
      %p = arith.divf %e, %l : f32
      "attn.yield"(%p) : (f32) -> ()
    }) : () -> ()
  }) {outputs = []} : (tensor<?x?x?x64xf32>, tensor<?x?x?x64xf32>, tensor<?x?x?x64xf32>) -> tensor<?x?x?x64xf32>
  return %o : tensor<?x?x?x64xf32>
}
