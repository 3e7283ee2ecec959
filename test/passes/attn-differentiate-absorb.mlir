// Where weights are rounded to 16 bits, a factor of the row joins the argument of the exponential: exp(s - m) / l is exp(s - (m + log l)).
// RUN: attn-opt %s --split-input-file -p 'attn-differentiate{functions=bwd only=true},canonicalize,cse' | FileCheck %s

// CHECK-LABEL: @attention_bwd(
// CHECK-SAME:    %saved_max: tensor<?x?x?xf32>, %saved_sum: tensor<?x?x?xf32>, %do: tensor<?x?x?x8xf16>)
// CHECK-NOT:     "attn.attention"
// CHECK:         %[[DELTA:[a-z0-9_]+]] = "attn.row_dot"(%do, %o)
// CHECK:         "attn.elements"
// CHECK:           %[[L:[a-z0-9_]+]] = tensor.extract %saved_sum
// CHECK-NEXT:      %[[LOG:[a-z0-9_]+]] = math.log %[[L]] : f32
// CHECK-NEXT:      %[[LSE:[a-z0-9_]+]] = arith.addf %{{.*}}, %[[LOG]] : f32
// CHECK-NEXT:      "attn.yield"(%[[LSE]])
// CHECK:         "attn.product"(%q, %k)
// CHECK-NEXT:    "attn.product"(%do, %v)
// CHECK:         "attn.pair"() ({
// CHECK-NOT:       cmpf
// CHECK:           %[[P:[a-z0-9_]+]] = math.exp
// CHECK:           %[[D:[a-z0-9_]+]] = tensor.extract %[[DELTA]]
// CHECK-NEXT:      %[[CENTRED:[a-z0-9_]+]] = arith.subf %do_v, %[[D]]
// CHECK-NEXT:      arith.mulf %[[P]], %[[CENTRED]]
// CHECK-NOT:       math.exp
// CHECK-NOT:       arith.divf
// CHECK:         }) : () -> none
func.func @attention(%q: tensor<?x?x?x8xf16>, %k: tensor<?x?x?x8xf16>, %v: tensor<?x?x?x8xf16>) -> tensor<?x?x?x8xf16> {
  %o = "attn.attention"(%q, %k, %v) ({
    "attn.row"() ({
    ^bb0(%s: f32, %b: index, %h: index, %q_idx: index):
      %m = "attn.reduce"(%s) {kind = "max"} : (f32) -> f32
      %d = arith.subf %s, %m : f32
      %e = math.exp %d : f32
      %l = "attn.reduce"(%e) {kind = "sum"} : (f32) -> f32
      %p = arith.divf %e, %l : f32
      "attn.yield"(%p) : (f32) -> ()
    }) : () -> ()
  }) {outputs = []} : (tensor<?x?x?x8xf16>, tensor<?x?x?x8xf16>, tensor<?x?x?x8xf16>) -> tensor<?x?x?x8xf16>
  return %o : tensor<?x?x?x8xf16>
}

// -----

// Where a captured number may be large, m + log l has lost log l: s - m comes first.
// CHECK-LABEL: @attention_bwd(
// CHECK:         "attn.elements"
// CHECK:           %[[LOG:[a-z0-9_]+]] = math.log
// CHECK-NEXT:      "attn.yield"(%[[LOG]])
// CHECK:         "attn.pair"() ({
// CHECK:           %[[MAX:[a-z0-9_]+]] = tensor.extract %saved_max
// CHECK-NEXT:      %[[D:[a-z0-9_]+]] = arith.subf %{{.*}}, %[[MAX]]
// CHECK:           %[[LESS:[a-z0-9_]+]] = arith.subf %[[D]], %{{.*}}
// CHECK-NEXT:      math.exp %[[LESS]]
func.func @attention(%q: tensor<?x?x?x8xf16>, %k: tensor<?x?x?x8xf16>, %v: tensor<?x?x?x8xf16>, %mask: tensor<?x?xbf16>) -> tensor<?x?x?x8xf16> {
  %o = "attn.attention"(%q, %k, %v) ({
    "attn.score"() ({
    ^bb0(%score: f32, %b: index, %h: index, %q_idx: index, %kv_idx: index):
      %low = tensor.extract %mask[%q_idx, %kv_idx] : tensor<?x?xbf16>
      %wide = arith.extf %low : bf16 to f32
      %biased = arith.addf %score, %wide : f32
      "attn.yield"(%biased) : (f32) -> ()
    }) : () -> ()
    "attn.row"() ({
    ^bb0(%s: f32, %b: index, %h: index, %q_idx: index):
      %m = "attn.reduce"(%s) {kind = "max"} : (f32) -> f32
      %d = arith.subf %s, %m : f32
      %e = math.exp %d : f32
      %l = "attn.reduce"(%e) {kind = "sum"} : (f32) -> f32
      %p = arith.divf %e, %l : f32
      "attn.yield"(%p) : (f32) -> ()
    }) : () -> ()
  }) {outputs = []} : (tensor<?x?x?x8xf16>, tensor<?x?x?x8xf16>, tensor<?x?x?x8xf16>) -> tensor<?x?x?x8xf16>
  return %o : tensor<?x?x?x8xf16>
}
