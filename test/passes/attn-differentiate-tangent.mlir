// The tangent is a row with a second score: both outputs in one attention, and no tangent of the maximum.
// RUN: attn-opt %s -p 'attn-differentiate{functions=jvp only=true},canonicalize,cse' | FileCheck %s

// CHECK-LABEL: @attention_jvp(
// CHECK-SAME:    %dot_q: tensor<?x?x?x8xf32>, %dot_k: tensor<?x?x?x8xf32>, %dot_v: tensor<?x?x?x8xf32>)
// CHECK:         %[[O:[a-z0-9_]+]] = "attn.attention"(%q, %k, %v) ({
// CHECK-NEXT:      "attn.product"(%dot_q, %k)
// CHECK-NEXT:      "attn.product"(%q, %dot_k)
// CHECK-NEXT:      "attn.term"(%v) {output = 1 : i64}
// CHECK-NEXT:      "attn.term"(%dot_v) {output = 1 : i64}
// CHECK:           "attn.row"() ({
// CHECK-NEXT:      ^bb0(%[[S:[a-z0-9_]+]]: f32, %[[DS:[a-z0-9_]+]]: f32,
// CHECK:             %{{.*}} = "attn.reduce"(%[[S]]) {kind = "max"}
// CHECK-COUNT-2:     {kind = "sum"}
// CHECK-NOT:         attn.reduce
// CHECK:         "attn.output"(%[[O]]) {index = 1 : i64}
func.func @attention(%q: tensor<?x?x?x8xf32>, %k: tensor<?x?x?x8xf32>, %v: tensor<?x?x?x8xf32>) -> tensor<?x?x?x8xf32> {
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
  }) {outputs = []} : (tensor<?x?x?x8xf32>, tensor<?x?x?x8xf32>, tensor<?x?x?x8xf32>) -> tensor<?x?x?x8xf32>
  return %o : tensor<?x?x?x8xf32>
}
