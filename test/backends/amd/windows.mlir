// A dense bias: each lane reads sixteen neighbouring columns of its row at a time.
// RUN: attn-translate --to hip %s | FileCheck %s

!t = tensor<?x?x?x64xf16>

// CHECK:      #include "attn_amd_windows.h"
// CHECK:      const int [[ROW:.*]] = min(row, {{.*}} - 1), [[LEFT:.*]] = {{.*}} - column;
// CHECK-NEXT: const __half *const [[AT:.*]] = bias + {{.*}} + [[ROW]] * (bias_s1) + column * (bias_s2);
// CHECK:      for (int n = 0; n < 4; ++n) {
// CHECK-NEXT:   const attn::Float16x [[READ:.*]] = attn::window([[AT]], bias_s2, 32 * n, [[LEFT]]);
// CHECK-NOT:  bias[
func.func @attention(%q: !t, %k: !t, %v: !t, %bias: tensor<?x?x?xf16> loc("bias")) -> !t {
  %o = "attn.attention"(%q, %k, %v) ({
    "attn.score"() ({
    ^bb0(%score: f32, %b: index, %h: index, %q_idx: index, %kv_idx: index):
      %read = tensor.extract %bias[%h, %q_idx, %kv_idx] : tensor<?x?x?xf16>
      %added = arith.extf %read : f16 to f32
      %biased = arith.addf %score, %added : f32
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
  }) {outputs = []} : (!t, !t, !t) -> !t
  return %o : !t
}
