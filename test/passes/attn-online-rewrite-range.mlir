// |exp(s - m) - exp(-m)| is summed as it is written, for |exp(s) - 1| overflows; while m < 0 the factor exp(-m) is left to the end.
// RUN: attn-opt %s -p 'attn-online-rewrite' | FileCheck %s
// RUN: attn-opt %s --attn-explain | FileCheck %s --check-prefix=EXPLAIN

// CHECK:       "attn.step"() ({
// CHECK-NEXT:  ^bb0(%[[S:.*]]: f32, %{{.*}}: index, %{{.*}}: index, %{{.*}}: index, %[[M:.*]]: f32, %[[L:.*]]: f32):
// CHECK:         %[[M_NEW:.*]] = arith.maximumf %[[M]],
// CHECK:         %[[DOWN:.*]] = arith.negf %[[M_NEW]]
// CHECK:         %[[SHIFT:.*]] = arith.minimumf %[[DOWN]], %{{.*}} : f32
// CHECK:         %[[SHIFTED:.*]] = arith.addf %[[S]], %[[SHIFT]]
// CHECK:         %[[TERM:.*]] = math.exp %[[SHIFTED]]
// CHECK:         %[[FLOOR:.*]] = math.exp %[[SHIFT]]
// CHECK:         %[[X:.*]] = arith.subf %[[TERM]], %[[FLOOR]]
// CHECK:         math.absf %[[X]]
// CHECK:       "attn.merge"
// CHECK:       accumulators = 1 : i64

// EXPLAIN:      l: rescaled, by exp(change of min(-m, 0)); applied at the end: exp(max(-m, 0))
// EXPLAIN:      o: rescaled, by exp(change of -m)
// EXPLAIN:      range: factors exp(r) stay with their terms as far as they are below 1, {{.*}} because the usual form overflows in f32 where the row as written does not
func.func @attention(%q: tensor<?x?x?x64xf32>, %k: tensor<?x?x?x64xf32>, %v: tensor<?x?x?x64xf32>) -> tensor<?x?x?x64xf32> {
  %o = "attn.attention"(%q, %k, %v) ({
    "attn.row"() ({
    ^bb0(%s: f32, %b: index, %h: index, %q_idx: index):
      %zero = arith.constant 0.0 : f32
      %eps = arith.constant 1.0e-6 : f32
      %m = "attn.reduce"(%s) {kind = "max"} : (f32) -> f32 loc("m")
      %d = arith.subf %s, %m : f32
      %e = math.exp %d : f32
      %n = arith.negf %m : f32
      %one = math.exp %n : f32
      %x = arith.subf %e, %one : f32
      %r = arith.maximumf %x, %zero : f32
      %a = math.absf %x : f32
      %l = "attn.reduce"(%a) {kind = "sum"} : (f32) -> f32 loc("l")
      %below = arith.addf %l, %eps : f32
      %p = arith.divf %r, %below : f32
      "attn.yield"(%p) : (f32) -> ()
    }) : () -> ()
  }) {outputs = []} : (tensor<?x?x?x64xf32>, tensor<?x?x?x64xf32>, tensor<?x?x?x64xf32>) -> tensor<?x?x?x64xf32>
  return %o : tensor<?x?x?x64xf32>
}
