// Scores with a function of the position: one kernel computes it as a number, another one in a vector, and rounds it differently.
// Who attains the maximum is who is that near; without such a function, who is equal.
// RUN: attn-opt %s -p 'attn-differentiate{functions=bwd only=true},canonicalize,cse' | FileCheck %s

// CHECK-LABEL: @attention_bwd(
// CHECK:           %[[BIAS:.*]] = math.tanh %{{.*}} : f32
// CHECK:           %[[SIZE:.*]] = math.absf %[[BIAS]]
// CHECK:           %[[MARGIN:.*]] = arith.mulf %[[SIZE]]
// CHECK:           %[[LEAST:.*]] = arith.subf %{{.*}}, %{{.*}}
// CHECK:           arith.cmpf oge, %{{.*}}, %[[LEAST]]
func.func @attention(%q: tensor<?x?x?x8xf32>, %k: tensor<?x?x?x8xf32>, %v: tensor<?x?x?x8xf32>, %t: tensor<?xf32>) -> (tensor<?x?x?x8xf32>, tensor<?x?x?xf32>) {
  %o, %most = "attn.attention"(%q, %k, %v) ({
    "attn.score"() ({
    ^bb0(%x: f32, %b: index, %h: index, %q_idx: index, %kv_idx: index):
      %e = tensor.extract %t[%kv_idx] : tensor<?xf32>
      %bias = math.tanh %e : f32
      %y = arith.addf %x, %bias : f32
      "attn.yield"(%y) : (f32) -> ()
    }) : () -> ()
    "attn.row"() ({
    ^bb0(%s: f32, %b: index, %h: index, %q_idx: index):
      %most = "attn.reduce"(%s) {kind = "max"} : (f32) -> f32
      "attn.yield"(%s, %most) : (f32, f32) -> ()
    }) : () -> ()
  }) {outputs = ["most"]} : (tensor<?x?x?x8xf32>, tensor<?x?x?x8xf32>, tensor<?x?x?x8xf32>) -> (tensor<?x?x?x8xf32>, tensor<?x?x?xf32>)
  return %o, %most : tensor<?x?x?x8xf32>, tensor<?x?x?xf32>
}
