// A slope is 0 with a derivative of the user's own: the score's own derivative, 2 s, takes no part.
// RUN: attn-opt %s -p 'attn-differentiate{functions=bwd only=true},attn-simplify,canonicalize,cse' | FileCheck %s
// RUN: attn-opt %s -p 'attn-simplify' | FileCheck %s --check-prefix=SIMPLE
// RUN: attn-run %s -p 'attn-differentiate{functions=bwd+jvp}' | FileCheck %s --check-prefix=NUMBERS
// RUN: not attn-run %s -p 'attn-differentiate{functions=bwd+bwd2}' 2>&1 | FileCheck %s --check-prefix=SECOND

// CHECK-LABEL: @attention_bwd(
// CHECK:         "attn.pair"() ({
// CHECK-NEXT:    ^bb0(%[[X:[a-z0-9_]+]]: f32, %[[DP:[a-z0-9_]+]]: f32,
// CHECK:           %[[P:[a-z0-9_]+]] = arith.mulf %[[X]], %[[X]] : f32
// CHECK:           %[[SLOPE:[a-z0-9_]+]] = math.sin %[[X]] : f32
// CHECK:           %[[DX:[a-z0-9_]+]] = arith.mulf %[[DP]], %[[SLOPE]] : f32
// CHECK-NEXT:      "attn.yield"(%[[P]], %[[DX]])
// SIMPLE-LABEL: @attention(
// SIMPLE:         "attn.slope"
// SIMPLE-NOT:     "attn.slope"
// NUMBERS: @attention_bwd B=2 {{.*}} by differences: dq: abs {{.*}}e-{{.*}} dk: abs {{.*}}e-{{.*}} dv: abs {{.*}}e-
// NUMBERS: @attention_jvp B=2 {{.*}} by differences: {{.*}} o_dot: abs {{.*}}e-
// NUMBERS: PASS
// SECOND: error: differences of a program with attn.slope do not tell its second derivatives
func.func @attention(%q: tensor<?x?x?x8xf32>, %k: tensor<?x?x?x8xf32>, %v: tensor<?x?x?x8xf32>) -> tensor<?x?x?x8xf32> {
  %o = "attn.attention"(%q, %k, %v) ({
    "attn.row"() ({
    ^bb0(%s: f32, %b: index, %h: index, %q_idx: index):
      %square = arith.mulf %s, %s : f32
      %value = "attn.detach"(%square) : (f32) -> f32
      %factor = math.sin %s : f32
      %slope = "attn.slope"(%s, %factor) : (f32, f32) -> f32
      %p = arith.addf %value, %slope : f32
      %zero = arith.constant 0.0 : f32
      %none = "attn.slope"(%s, %zero) : (f32, f32) -> f32
      %w = arith.addf %p, %none : f32
      "attn.yield"(%w) : (f32) -> ()
    }) : () -> ()
  }) {outputs = []} : (tensor<?x?x?x8xf32>, tensor<?x?x?x8xf32>, tensor<?x?x?x8xf32>) -> tensor<?x?x?x8xf32>
  return %o : tensor<?x?x?x8xf32>
}
