// Derivatives that read the residual of o agree with differences of the primal, before and after they are tiled.
// RUN: attn-run %s -p 'attn-differentiate{functions=fwd+bwd+bwd2 residual=true}' | FileCheck %s
// RUN: attn-run %s -p 'attn-differentiate{functions=fwd+bwd residual=true},attn-outline,attn-online-rewrite' | FileCheck %s

// CHECK: PASS
// CHECK-NOT: FAIL
!t = tensor<?x?x?x8xf16>
func.func @attention(%q: !t, %k: !t, %v: !t) -> !t {
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
