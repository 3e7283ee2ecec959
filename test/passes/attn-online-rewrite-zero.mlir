// Weights that cancel leave one accumulator of zeros.
// RUN: attn-opt %s -p attn-online-rewrite | FileCheck %s
// RUN: attn-run %s -p attn-online-rewrite --after-each

// CHECK-LABEL: "attn.step"
// CHECK:         %[[ZERO:.*]] = arith.constant 0.000000e+00 : f32
// CHECK-NEXT:    %[[ONE:.*]] = arith.constant 1.000000e+00 : f32
// CHECK-NEXT:    "attn.yield"(%{{.*}}, %{{.*}}, %[[ZERO]], %[[ONE]])
// CHECK-LABEL: "attn.finalize"
// CHECK-NEXT:  ^bb0(%acc: f32,
// CHECK-NEXT:    "attn.yield"(%acc) : (f32) -> ()
// CHECK:       accumulators = 1 : i64
func.func @attention(%q: tensor<?x?x?x8xf32>, %k: tensor<?x?x?x8xf32>, %v: tensor<?x?x?x8xf32>) -> tensor<?x?x?x8xf32> {
  %o = "attn.attention"(%q, %k, %v) ({
    "attn.row"() ({
    ^bb0(%s: f32, %b: index, %h: index, %q_idx: index):
      %m = "attn.reduce"(%s) {kind = "max"} : (f32) -> f32
      %d = arith.subf %s, %m : f32
      %e = math.exp %d : f32
      %l = "attn.reduce"(%e) {kind = "sum"} : (f32) -> f32
      %x = arith.divf %e, %l : f32
      %p = arith.subf %x, %x : f32
      "attn.yield"(%p) : (f32) -> ()
    }) : () -> ()
  }) {outputs = []} : (tensor<?x?x?x8xf32>, tensor<?x?x?x8xf32>, tensor<?x?x?x8xf32>) -> tensor<?x?x?x8xf32>
  return %o : tensor<?x?x?x8xf32>
}
