// A table of differences: each thread makes the number of a diagonal, in shared memory, and every element of a tile is read there.
// RUN: attn-translate --to hip %s | FileCheck %s

!t = tensor<?x?x?x64xf16>

// CHECK:      for (int diagonal = attn::thread(); diagonal < 255; diagonal += 256) {
// CHECK-NEXT:   const int [[KEY:.*]] = at + min(max(127 - diagonal, 0), max({{.*}} - 1, 0));
// CHECK-NEXT:   const int [[APART:.*]] = [[KEY]] - min(({{.*}} + max(diagonal - 127, 0)), {{.*}});
// CHECK-NEXT:   const float [[X:.*]] = table[
// CHECK-NEXT:   ((float *)(memory + [[AT:.*]]))[diagonal] = [[X]];
// CHECK-NEXT: }
// CHECK-NEXT: attn::barrier();
// CHECK-NOT:  table[
// CHECK:      ((const float *)(memory + [[AT]]))[row - ([[COLUMN:.*]] + 32 * n + r) + 127]
func.func @attention(%q: !t, %k: !t, %v: !t, %table: tensor<?xf32> loc("table")) -> !t {
  %o = "attn.attention"(%q, %k, %v) ({
    "attn.score"() ({
    ^bb0(%score: f32, %b: index, %h: index, %q_idx: index, %kv_idx: index):
      %rel = arith.subi %kv_idx, %q_idx : index
      %far = arith.constant 8 : index
      %near = arith.constant -8 : index
      %above = arith.maxsi %rel, %near : index
      %clamped = arith.minsi %above, %far : index
      %bucket = arith.addi %clamped, %far : index
      %added = tensor.extract %table[%bucket] : tensor<?xf32>
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
