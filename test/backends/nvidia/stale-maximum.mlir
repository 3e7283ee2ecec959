// Whole blocks take the maximum that their rows had before; a warp whose weights reach the limit multiplies again and looks for a new one.
// RUN: attn-opt %s --split-input-file -p 'nvidia-warp' | FileCheck %s

!t = tensor<?x?x?x128xf16>

// CHECK: sym_name = "producer"
// CHECK: scf.for %{{.*}} iter_args(%[[MAX:.*]] = %{{.*}}, %[[SUM:.*]] = %{{.*}}, %[[O:.*]] = %{{.*}}, %{{.*}}, %{{.*}}, %[[FACTOR:.*]] = %{{.*}}, %[[WEIGHTS:.*]] = %{{.*}})
// CHECK: %[[WHOLE:.*]] = arith.cmpi slt
// CHECK: "warp.mma_async"(%{{.*}}, %[[Q:.*]], %[[K:.*]], %false)
// CHECK: "warp.mma_async"(%{{.*}}, %[[WEIGHTS]],
// CHECK: %[[S:.*]] = "warp.mma_wait"(%{{.*}}) {pending = 1 : i64}
// CHECK-NEXT: %[[TRIED:.*]]:4 = scf.if %[[WHOLE]]
// No row is searched, and exponentials are computed while values are multiplied.
// CHECK-NOT: "max"
// CHECK: tensor.extract %[[S]]
// CHECK-NEXT: tensor.extract %[[MAX]]
// CHECK: math.exp2
// CHECK: } else {
// CHECK: {reductions = ["max"]
// CHECK: "warp.mma_wait"(%{{.*}}) {pending = 0 : i64}
// CHECK-NEXT: "warp.arrive"
// CHECK-NEXT: %[[ROUNDED:.*]] = "warp.map"
// CHECK: arith.truncf
// CHECK: scf.if %[[WHOLE]]
// CHECK-NEXT: "warp.each_warp"
// CHECK-NEXT: %[[SOME:.*]] = "warp.reaches"(%[[ROUNDED]]) {limit = 1.638400e+04 : f16}
// CHECK-NEXT: scf.if %[[SOME]]
// CHECK: "warp.mma"(%{{.*}}, %[[Q]], %[[K]]) {transpose_a = false, transpose_b = true}
// CHECK: {reductions = ["max"]
// The keys are given back when no warp needs them any more.
// CHECK: "warp.arrive"
// CHECK: scf.yield
func.func @softmax(%q: !t, %k: !t, %v: !t) -> !t {
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
  }) {outputs = []} : (!t, !t, !t) -> !t
  return %o : !t
}

// -----

!t = tensor<?x?x?x128xf16>

// CHECK: "warp-stale-maximum" = "the schedule looks for the maximum of each block"
func.func @relu(%q: !t, %k: !t, %v: !t) -> !t {
  %o = "attn.attention"(%q, %k, %v) ({
    "attn.row"() ({
    ^bb0(%s: f32, %b: index, %h: index, %q_idx: index):
      %zero = arith.constant 0.0 : f32
      %p = arith.maximumf %s, %zero : f32
      "attn.yield"(%p) : (f32) -> ()
    }) : () -> ()
  }) {outputs = []} : (!t, !t, !t) -> !t
  return %o : !t
}
