// The forward pass returns the reductions that the backward needs.
// RUN: attn-opt %s -p 'attn-differentiate{functions=fwd only=true},canonicalize,cse' | FileCheck %s

// CHECK-LABEL: @attention_fwd(
// CHECK:           %[[M:[a-z0-9_]+]] = "attn.reduce"(%{{.*}}) {kind = "max"}
// CHECK:           %[[L:[a-z0-9_]+]] = "attn.reduce"(%{{.*}}) {kind = "sum"}
// CHECK:           "attn.yield"(%{{[a-z0-9_]+}}, %[[M]], %[[L]])
// CHECK:         outputs = ["saved_max", "saved_sum"]
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
