// Weights of 8 bits are computed in f32 before the wait for the product that reads those of the block before, and rounded after it.
// RUN: attn-opt %s -p 'nvidia-warp' | FileCheck %s
// RUN: attn-opt %inputs/plain-softmax.mlir -p 'warp-round-late' | FileCheck %s --check-prefix=NONE
// NONE-NOT: warp.refused

!t = tensor<?x?x?x64xf8E4M3FN>
!o = tensor<?x?x?x64xbf16>

// CHECK:       sym_name = "producer"
// CHECK:       scf.for %{{.*}} = %c1 to
// CHECK:         %[[SUMS:.*]] = "warp.mma_async"({{.*}}f8E4M3FN
// CHECK-NOT:     arith.truncf
// CHECK:         math.exp2
// CHECK-NOT:     arith.truncf
// CHECK:         "warp.mma_wait"({{.*}}) {pending = 0 : i64}
// CHECK-NEXT:    "warp.arrive"
// CHECK-NEXT:    %[[WEIGHTS:.*]] = "warp.map"() ({
// CHECK-NEXT:    ^bb0
// CHECK-NEXT:      %[[X:.*]] = tensor.extract
// CHECK-NEXT:      %[[Y:.*]] = arith.truncf %[[X]] : f32 to f8E4M3FN
// CHECK-NEXT:      "warp.yield"(%[[Y]])
// CHECK:         scf.yield {{.*}}%[[WEIGHTS]]
func.func @sigmoid(%q: !t, %k: !t, %v: !t) -> !o {
  %o = "attn.attention"(%q, %k, %v) ({
    "attn.row"() ({
    ^bb0(%s: f32, %b: index, %h: index, %q_idx: index):
      %one = arith.constant 1.0 : f32
      %n = arith.negf %s : f32
      %e = math.exp %n : f32
      %d = arith.addf %one, %e : f32
      %p = arith.divf %one, %d : f32
      "attn.yield"(%p) : (f32) -> ()
    }) : () -> ()
  }) {outputs = []} : (!t, !t, !t) -> !o
  return %o : !o
}
