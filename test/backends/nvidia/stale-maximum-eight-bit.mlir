// Weights of 8 bits are no larger than their sums, so that a warp takes a step again where a thread's part of one reaches the largest number.
// RUN: attn-opt %s -p 'nvidia-warp' | FileCheck %s

!t = tensor<?x?x?x128xf8E4M3FN>
!o = tensor<?x?x?x128xbf16>

// CHECK:       %[[LIMIT:.*]] = arith.constant 4.480000e+02 : f32
// CHECK:       sym_name = "producer"
// CHECK:       scf.for %{{.*}} = %c1 to
// CHECK:         %[[WHOLE:.*]] = arith.cmpi slt
// CHECK:         "warp.mma_async"(%{{.*}}, %[[Q:.*]], %[[K:.*]], %false)
// CHECK:         "warp.mma_wait"({{.*}}) {pending = 1 : i64}
// CHECK:         %[[TRIED:.*]]:5 = scf.if %[[WHOLE]]
// CHECK:         scf.if %[[WHOLE]]
// CHECK-NEXT:      "warp.each_warp"
// CHECK:             %[[PART:.*]] = tensor.extract %[[TRIED]]#4[
// CHECK-NEXT:        %[[REACHES:.*]] = arith.cmpf uge, %[[PART]], %[[LIMIT]]
// CHECK:             %[[SOME:.*]] = "warp.vote"
// CHECK-NEXT:        scf.if %[[SOME]]
// CHECK:               "warp.mma"(%{{.*}}, %[[Q]], %[[K]])
// CHECK:               {reductions = ["max"]
func.func @softmax(%q: !t, %k: !t, %v: !t) -> !o {
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
  }) {outputs = []} : (!t, !t, !t) -> !o
  return %o : !o
}
