// The forward pass of a function that needs gradients: o, then what rounding took from it, 2^11 times as large, from the same sums.
// RUN: attn-opt %s -p 'attn-differentiate{functions=fwd+bwd only=true residual=true},attn-outline{keep-hosts=false}' | attn-translate --to hip - | FileCheck %s

!t = tensor<?x?x?x64xf16>

// CHECK-LABEL: attention_fwd(
// CHECK:         attn::store_row<8, 64>((unsigned short *)&o[
// CHECK:         const float [[X:.*]] = sum[n][r] * [[INVERSE:.*]];
// CHECK-NEXT:    ([[X]] - __half2float(__float2half_rn([[X]]))) * 2048.0f;
// CHECK:         attn::store_row<8, 64>((unsigned short *)&residual{{.*}}[
// Products with o add it, in f32 and without matrix instructions.
// CHECK-LABEL: attention_bwd_0_row_dot_rows(
// CHECK-SAME:    __half *__restrict__ arg0, __half *__restrict__ arg1, __half *__restrict__ arg2
// CHECK:         __half2float({{.*}}) + (__half2float({{.*}}) * 0.00048828125f)
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
