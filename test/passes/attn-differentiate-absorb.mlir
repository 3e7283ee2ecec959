// Where weights are rounded to 16 bits, a factor of the row joins the argument of the exponential: exp(s - m) / l is exp(s - (m + log l)).
// RUN: attn-opt %s -p 'attn-differentiate{functions=bwd only=true},canonicalize,cse' | FileCheck %s

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
