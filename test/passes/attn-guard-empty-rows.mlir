// A fully masked row keeps the maximum at its initial value; o is selected, lse is -inf by itself.
// RUN: attn-opt %s --split-input-file -p 'attn-online-rewrite,attn-guard-empty-rows' | FileCheck %s

// CHECK-LABEL: @attention
// CHECK:       "attn.finalize"() ({
// CHECK-NEXT:  ^bb0(%[[ACC:.*]]: f32, %{{.*}}: index, %{{.*}}: index, %{{.*}}: index, %[[M:.*]]: f32, %[[L:.*]]: f32):
// CHECK-NEXT:    %[[O:.*]] = arith.divf %[[ACC]], %[[L]]
// CHECK:         %[[LSE:.*]] = arith.addf %[[M]],
// CHECK-NEXT:    %[[LOWEST:.*]] = arith.constant -3.40282347E+38
// CHECK-NEXT:    %[[EMPTY:.*]] = arith.cmpf oeq, %[[M]], %[[LOWEST]]
// CHECK-NEXT:    %[[ZERO:.*]] = arith.constant 0.000000e+00
// CHECK-NEXT:    %[[SAFE:.*]] = arith.select %[[EMPTY]], %[[ZERO]], %[[O]]
// CHECK-NEXT:    "attn.yield"(%[[SAFE]], %[[LSE]])
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

// -----

// Proven: nothing to do.
// CHECK-LABEL: @attention
// CHECK:       "attn.finalize"
// CHECK-NOT:   arith.select
// CHECK:       rows_nonempty = true
func.func @attention(%q: tensor<?x?x?x64xf32>, %k: tensor<?x?x?x64xf32>, %v: tensor<?x?x?x64xf32>) -> tensor<?x?x?x64xf32> {
  %o = "attn.attention"(%q, %k, %v) ({
    "attn.row"() ({
    ^bb0(%s: f32, %b: index, %h: index, %q_idx: index):
      %m = "attn.reduce"(%s) {kind = "max"} : (f32) -> f32 loc("m")
      %d = arith.subf %s, %m : f32
      %e = math.exp %d : f32
      %l = "attn.reduce"(%e) {kind = "sum"} : (f32) -> f32 loc("l")
      %p = arith.divf %e, %l : f32
      "attn.yield"(%p) : (f32) -> ()
    }) : () -> ()
  }) {outputs = [], rows_nonempty = true} : (tensor<?x?x?x64xf32>, tensor<?x?x?x64xf32>, tensor<?x?x?x64xf32>) -> tensor<?x?x?x64xf32>
  return %o : tensor<?x?x?x64xf32>
}

// -----

// A sink keeps the divisor away from zero: nothing to do, also with rows_nonempty = false.
// CHECK-LABEL: @attention
// CHECK:       "attn.finalize"
// CHECK-NOT:   arith.select
// CHECK:       rows_nonempty = false
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
  }) {outputs = [], rows_nonempty = false} : (tensor<?x?x?x64xf32>, tensor<?x?x?x64xf32>, tensor<?x?x?x64xf32>) -> tensor<?x?x?x64xf32>
  return %o : tensor<?x?x?x64xf32>
}

// -----

// Scores may be the lowest number themselves: then the sum tells that there are keys.
// CHECK-LABEL: @lowest
// CHECK:       "attn.finalize"() ({
// CHECK-NEXT:  ^bb0(%{{.*}}: f32, %{{.*}}: index, %{{.*}}: index, %{{.*}}: index, %[[M:.*]]: f32, %[[L:.*]]: f32):
// CHECK:         %[[LOW:.*]] = arith.cmpf oeq, %[[M]], %{{.*}}
// CHECK:         %[[NONE:.*]] = arith.cmpf oeq, %[[L]], %{{.*}}
// CHECK-NEXT:    %[[EMPTY:.*]] = arith.andi %[[LOW]], %[[NONE]]
// CHECK:         arith.select %[[EMPTY]]
func.func @lowest(%q: tensor<?x?x?x64xf32>, %k: tensor<?x?x?x64xf32>, %v: tensor<?x?x?x64xf32>, %mask: tensor<?x?xf32>) -> tensor<?x?x?x64xf32> {
  %o = "attn.attention"(%q, %k, %v) ({
    "attn.score"() ({
    ^bb0(%score: f32, %b: index, %h: index, %q_idx: index, %kv_idx: index):
      %low = tensor.extract %mask[%q_idx, %kv_idx] : tensor<?x?xf32>
      %biased = arith.addf %score, %low : f32
      "attn.yield"(%biased) : (f32) -> ()
    }) : () -> ()
    "attn.row"() ({
    ^bb0(%s: f32, %b: index, %h: index, %q_idx: index):
      %m = "attn.reduce"(%s) {kind = "max"} : (f32) -> f32 loc("m")
      %d = arith.subf %s, %m : f32
      %e = math.exp %d : f32
      %l = "attn.reduce"(%e) {kind = "sum"} : (f32) -> f32 loc("l")
      %p = arith.divf %e, %l : f32
      "attn.yield"(%p) : (f32) -> ()
    }) : () -> ()
  }) {outputs = []} : (tensor<?x?x?x64xf32>, tensor<?x?x?x64xf32>, tensor<?x?x?x64xf32>) -> tensor<?x?x?x64xf32>
  return %o : tensor<?x?x?x64xf32>
}
