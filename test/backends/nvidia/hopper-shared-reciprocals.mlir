// Four elements of a row share a reciprocal in blocks without a mask; elsewhere each has its own, so that NaN stays where it is.
// RUN: attn-translate %s --to cuda | FileCheck %s

// CHECK:         add.sat.ftz.f32
// CHECK:         rcp.approx.ftz.f32
// CHECK-LABEL: void quotients_4(float a, float least, const float (&x)[4], float (&quotient)[4])
// CHECK:         quotient[0] = first * x1
// CHECK:       min_nan(exp2f({{.*}}) + 4.656613e-10f, 1.0f);

// The weights are made while the sums of the block before, which read the packed ones, are in flight.
// CHECK:       else {
// CHECK-NOT:     wgmma_wait
// CHECK:         for (int g = 0; g < 8; ++g) {
// CHECK:             float divisors[4], [[QUOTIENT:[a-z_0-9]+]][4];
// CHECK:               const int c = 2 * g + k / 2, e = k % 2;
// CHECK-NEXT:          const float [[E:[a-z_0-9]+]] = exp2f(fmaf(s[4 * c + 2 * h + e], -0.18033688f, -31.0f));
// CHECK-NEXT:          divisors[k] = [[E]];
// CHECK:             quotients_4(4.656613e-10f, 4.656613e-10f, divisors, [[QUOTIENT]]);
// CHECK:               const float [[WEIGHT:[a-z_0-9]+]] = [[QUOTIENT]][k];
// CHECK-NEXT:          s[4 * c + 2 * h + e] = [[WEIGHT]];
// CHECK:         wgmma_wait<0>
// CHECK:         packed[c] =
!t = tensor<?x?x?x64xf16>
func.func @attention(%q: !t, %k: !t, %v: !t) -> (!t) attributes {tile.choices = {emitter = "hopper"}} {
  %o = "attn.attention"(%q, %k, %v) ({
    "attn.score"() ({
    ^bb0(%score: f32, %b: index, %h: index, %q_idx: index, %kv_idx: index):
      %scale = arith.constant 0.125 : f32
      %scaled = arith.mulf %score, %scale : f32
      "attn.yield"(%scaled) : (f32) -> ()
    }) : () -> ()
    "attn.mask"() ({
    ^bb0(%b: index, %h: index, %q_idx: index, %kv_idx: index):
      %present = arith.cmpi sge, %q_idx, %kv_idx : index
      "attn.yield"(%present) : (i1) -> ()
    }) : () -> ()
    "attn.row"() ({
    ^bb0(%s: f32, %b: index, %h: index, %q_idx: index):
      %neg = arith.negf %s : f32
      %e = math.exp %neg : f32
      %one = arith.constant 1.0 : f32
      %sum = arith.addf %one, %e : f32
      %p = arith.divf %one, %sum : f32
      "attn.yield"(%p) : (f32) -> ()
    }) : () -> ()
  }) {outputs = []} : (!t, !t, !t) -> !t
  return %o : !t
}
