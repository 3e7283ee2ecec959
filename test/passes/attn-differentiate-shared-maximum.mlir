// A maximum that matters: its adjoint is shared evenly among the keys that attain it, which are counted in a pass.
// RUN: attn-opt %s -p 'attn-differentiate{functions=bwd only=true},canonicalize,cse' | FileCheck %s

// CHECK-LABEL: @attention_bwd(
// CHECK:         %[[COUNT:[0-9]+]]:2 = "attn.attention"(%q, %k, %k) ({
// CHECK:             %[[IS:[a-z0-9_]+]] = arith.cmpf oeq, %[[S:[a-z0-9_]+]], %[[MAX:[a-z0-9_]+]] : f32
// CHECK-NEXT:        %[[ONE:[a-z0-9_]+]] = arith.select %[[IS]], %{{.*}}, %{{.*}} : f32
// CHECK-NEXT:        %{{.*}} = "attn.reduce"(%[[ONE]]) {kind = "sum"}
// CHECK:         "attn.elements"
// CHECK:           %[[N:[a-z0-9_]+]] = tensor.extract %[[COUNT]]#1
// CHECK-NEXT:      arith.divf %[[DM:[a-z0-9_]+]], %[[N]] : f32
// CHECK:         "attn.pair"() ({
// CHECK:           %[[HERE:[a-z0-9_]+]] = arith.cmpf oeq
// CHECK:           arith.select %[[HERE]]
func.func @attention(%q: tensor<?x?x?x8xf32>, %k: tensor<?x?x?x8xf32>, %v: tensor<?x?x?x8xf32>) -> tensor<?x?x?x8xf32> {
  %o = "attn.attention"(%q, %k, %v) ({
    "attn.row"() ({
    ^bb0(%s: f32, %b: index, %h: index, %q_idx: index):
      %m = "attn.reduce"(%s) {kind = "max"} : (f32) -> f32
      %p = arith.divf %s, %m : f32
      "attn.yield"(%p) : (f32) -> ()
    }) : () -> ()
  }) {outputs = []} : (tensor<?x?x?x8xf32>, tensor<?x?x?x8xf32>, tensor<?x?x?x8xf32>) -> tensor<?x?x?x8xf32>
  return %o : tensor<?x?x?x8xf32>
}
