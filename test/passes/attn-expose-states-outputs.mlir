// Of an attention with several outputs of the same v, a partial result has one of the accumulators.
// RUN: attn-opt %s -p 'attn-online-rewrite,attn-expose-states{accumulator=1}' | FileCheck %s

// CHECK:       func.func @two({{.*}}) -> tensor<?x?x?x8xf32>
// CHECK:       "attn.online"
// CHECK-NOT:   "attn.term"
// CHECK:       "attn.merge"() ({
// CHECK:       "attn.finalize"() ({
// CHECK-NEXT:  ^bb0(%{{.*}}: f32, %[[SECOND:.*]]: f32, %{{.*}}: index, %{{.*}}: index, %{{.*}}: index, %{{.*}}: f32):
// CHECK-NEXT:    "attn.yield"(%[[SECOND]])
// CHECK:       accumulators = 2
// CHECK-NOT:   "attn.output"
// CHECK:       return %{{.*}} : tensor<?x?x?x8xf32>
func.func @two(%q: tensor<?x?x?x8xf32>, %k: tensor<?x?x?x8xf32>, %v: tensor<?x?x?x8xf32>) -> (tensor<?x?x?x8xf32>, tensor<?x?x?x8xf32>) {
  %o = "attn.attention"(%q, %k, %v) ({
    "attn.term"(%v) {output = 1 : i64} : (tensor<?x?x?x8xf32>) -> ()
    "attn.row"() ({
    ^bb0(%s: f32, %b: index, %h: index, %q_idx: index):
      %l = "attn.reduce"(%s) {kind = "sum"} : (f32) -> f32
      %p = arith.divf %s, %l : f32
      %square = arith.mulf %s, %p : f32
      "attn.yield"(%p, %square) : (f32, f32) -> ()
    }) : () -> ()
  }) {outputs = []} : (tensor<?x?x?x8xf32>, tensor<?x?x?x8xf32>, tensor<?x?x?x8xf32>) -> tensor<?x?x?x8xf32>
  %o1 = "attn.output"(%o) {index = 1 : i64} : (tensor<?x?x?x8xf32>) -> tensor<?x?x?x8xf32>
  return %o, %o1 : tensor<?x?x?x8xf32>, tensor<?x?x?x8xf32>
}
