// A detached normaliser has no adjoint: dp divided by it is all there is.
// RUN: attn-opt %s -p 'attn-differentiate{functions=bwd only=true},canonicalize,cse' | FileCheck %s

// CHECK-LABEL: @attention_bwd(
// CHECK-NOT:     "attn.row_dot"
// CHECK-NOT:     "attn.attention"
// CHECK-NOT:     attn.detach
// CHECK:         "attn.pair"() ({
// CHECK-NEXT:    ^bb0(%[[X:[a-z0-9_]+]]: f32, %[[DP:[a-z0-9_]+]]: f32,
// CHECK-NEXT:      %[[INVERSE:[a-z0-9_]+]] = tensor.extract
// CHECK-NEXT:      %[[P:[a-z0-9_]+]] = arith.mulf %[[X]], %[[INVERSE]] : f32
// CHECK-NEXT:      %[[DX:[a-z0-9_]+]] = arith.mulf %[[DP]], %[[INVERSE]] : f32
// CHECK-NEXT:      "attn.yield"(%[[P]], %[[DX]])
func.func @attention(%q: tensor<?x?x?x8xf32>, %k: tensor<?x?x?x8xf32>, %v: tensor<?x?x?x8xf32>) -> tensor<?x?x?x8xf32> {
  %o = "attn.attention"(%q, %k, %v) ({
    "attn.row"() ({
    ^bb0(%s: f32, %b: index, %h: index, %q_idx: index):
      %a = math.absf %s : f32
      %l = "attn.reduce"(%a) {kind = "sum"} : (f32) -> f32
      %d = "attn.detach"(%l) : (f32) -> f32
      %p = arith.divf %s, %d : f32
      "attn.yield"(%p) : (f32) -> ()
    }) : () -> ()
  }) {outputs = []} : (tensor<?x?x?x8xf32>, tensor<?x?x?x8xf32>, tensor<?x?x?x8xf32>) -> tensor<?x?x?x8xf32>
  return %o : tensor<?x?x?x8xf32>
}
