// A derivative that is wrong fails, though all its stages agree; so does one whose arguments cannot be known.
// RUN: not attn-run %s | FileCheck %s
// RUN: not attn-run %s --function attention_bwd --wrt q 2>&1 | FileCheck %s --check-prefix=WRT
// RUN: not attn-run %s --wrt nobody 2>&1 | FileCheck %s --check-prefix=NAME
// RUN: not attn-run %inputs/derivatives/softmax-tangent.mlir 2>&1 | FileCheck %s --check-prefix=PRIMAL
// RUN: not attn-run %inputs/derivatives/alibi-causal-softmax-backward.mlir --primal %inputs/plain-softmax.mlir 2>&1 | FileCheck %s --check-prefix=COUNT

// CHECK:     @attention_bwd {{.*}} by differences: dq: abs {{.*}}e-{{[01][0-9]}}  dk: abs {{[0-9.]+}}e+
// CHECK:     @attention_bwd {{.*}}Sq=17 Skv=23  dq: abs 0.0e+00 rel 0.0e+00  dk: abs 0.0e+00
// CHECK:     FAIL: a derivative is more than 1e-06 from differences of what it is the derivative of
// CHECK-NOT: PASS
// WRT:       error: @attention_bwd is for 3 arguments; name them, as --wrt=q+k
// NAME:      error: @attention has no argument nobody; its arguments are q, k, v
// PRIMAL:    error: @attention_jvp is a derivative of @attention, which is not in the file: give its program with --primal
// COUNT:     error: @attention_bwd is for 4 arguments; name them, as --wrt=q+k
!t = tensor<?x?x?x8xf32>
func.func @attention(%q: !t, %k: !t, %v: !t) -> !t {
  %o = "attn.attention"(%q, %k, %v) ({
    "attn.row"() ({
    ^bb0(%s: f32, %b: index, %h: index, %i: index):
      "attn.yield"(%s) : (f32) -> ()
    }) : () -> ()
  }) {outputs = []} : (!t, !t, !t) -> !t
  return %o : !t
}
func.func @attention_bwd(%q: !t, %k: !t, %v: !t, %o: !t, %do: !t) -> (!t, !t, !t) {
  %w = "attn.pairs"() ({
    "attn.product"(%q, %k) : (!t, !t) -> ()
    "attn.product"(%do, %v) : (!t, !t) -> ()
    "attn.pair"() ({
    ^bb0(%s: f32, %dp: f32, %b: index, %h: index, %i: index, %j: index):
      %wrong = arith.negf %dp : f32
      "attn.yield"(%dp, %wrong, %s) : (f32, f32, f32) -> ()
    }) : () -> ()
  }) : () -> none
  %dq = "attn.query_sum"(%w, %k) {weights = array<i64: 0>} : (none, !t) -> !t
  %dk = "attn.key_sum"(%w, %q) {weights = array<i64: 1>} : (none, !t) -> !t
  %dv = "attn.key_sum"(%w, %do) {weights = array<i64: 2>} : (none, !t) -> !t
  return %dq, %dk, %dv : !t, !t, !t
}
