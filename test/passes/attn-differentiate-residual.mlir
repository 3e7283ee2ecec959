// `residual`: @fwd also returns what rounding took from o, last, where gradients need products with an o of 16 bits.
// RUN: attn-opt %s -p 'attn-differentiate{functions=fwd+bwd+bwd2 wrt=q+k only=true residual=true},attn-outline{keep-hosts=true}' | FileCheck %s
// RUN: attn-opt %s -p 'attn-differentiate{functions=fwd+bwd wrt=v only=true residual=true}' | FileCheck %s --check-prefix=UNUSED
// RUN: attn-opt %s -p 'attn-differentiate{functions=fwd+bwd wrt=q+k only=true}' | FileCheck %s --check-prefix=UNUSED
// UNUSED-NOT: residual

!t = tensor<?x?x?x8xf16>
!s = tensor<?x?x?x8xf32>

// CHECK-LABEL: func.func @softmax_fwd(
// CHECK-SAME:    -> (tensor<?x?x?x8xf16>, tensor<?x?x?xf32>, tensor<?x?x?xf32>, tensor<?x?x?x8xf16>)
// CHECK-SAME:    shapes = @softmax_fwd_shapes
// CHECK:         %[[O:.*]]:3 = "attn.attention"
// CHECK:         %[[REST:.*]] = "attn.residual"(%[[O]]#0)
// CHECK-NEXT:    return %[[O]]#0, %[[O]]#1, %[[O]]#2, %[[REST]]
// CHECK:       func.func private @softmax_bwd_0_row_dot(
// CHECK-NEXT:    "attn.row_dot"(%do, %o, %o_residual)
// CHECK:       @softmax_bwd({{.*}} %saved_max: tensor<?x?x?xf32>, %saved_sum: tensor<?x?x?xf32>, %o_residual: tensor<?x?x?x8xf16>, %do: tensor<?x?x?x8xf16>)
// The second backward takes its products with o in the same way.
// CHECK:         "attn.row_dot"(%do, %o, %o_residual)
// CHECK:       @softmax_bwd2(
func.func @softmax(%q: !t, %k: !t, %v: !t) -> !t {
  %o = "attn.attention"(%q, %k, %v) ({
    "attn.row"() ({
    ^bb0(%s: f32, %b: index, %h: index, %i: index):
      %m = "attn.reduce"(%s) {kind = "max"} : (f32) -> f32
      %d = arith.subf %s, %m : f32
      %e = math.exp %d : f32
      %l = "attn.reduce"(%e) {kind = "sum"} : (f32) -> f32
      %p = arith.divf %e, %l : f32
      "attn.yield"(%p) : (f32) -> ()
    }) : () -> ()
  }) {outputs = []} : (!t, !t, !t) -> !t
  return %o : !t
}

// Without normalisation no gradient reads o, and nothing is rounded in f32.
// CHECK-LABEL: @squared_fwd
// CHECK-NOT:   residual
func.func @squared(%q: !t, %k: !t, %v: !t) -> !t {
  %o = "attn.attention"(%q, %k, %v) ({
    "attn.row"() ({
    ^bb0(%s: f32, %b: index, %h: index, %i: index):
      %p = arith.mulf %s, %s : f32
      "attn.yield"(%p) : (f32) -> ()
    }) : () -> ()
  }) {outputs = []} : (!t, !t, !t) -> !t
  return %o : !t
}
func.func @single(%q: !s, %k: !s, %v: !s) -> !s {
  %o = "attn.attention"(%q, %k, %v) ({
    "attn.row"() ({
    ^bb0(%s: f32, %b: index, %h: index, %i: index):
      %l = "attn.reduce"(%s) {kind = "sum"} : (f32) -> f32
      %p = arith.divf %s, %l : f32
      "attn.yield"(%p) : (f32) -> ()
    }) : () -> ()
  }) {outputs = []} : (!s, !s, !s) -> !s
  return %o : !s
}
