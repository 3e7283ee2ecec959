// sum s^2 = 0 does not mean that there are no keys: they are counted.
// RUN: attn-opt %s -p 'attn-online-rewrite,attn-guard-empty-rows' | FileCheck %s

// CHECK:       "attn.init"() ({
// CHECK:         "attn.yield"(%{{.*}}, %[[NONE:.*]]) : (f32, f32) -> ()
// CHECK:       "attn.step"() ({
// CHECK-NEXT:  ^bb0(%{{.*}}: f32, %{{.*}}: index, %{{.*}}: index, %{{.*}}: index, %{{.*}}: f32, %[[COUNT:.*]]: f32):
// CHECK:         %[[ONE:count_[0-9]+]] = arith.constant 1.000000e+00
// CHECK-NEXT:    %[[KEYS:.*]] = "attn.reduce"(%[[ONE]]) {kind = "sum"}
// CHECK-NEXT:    %[[COUNTED:.*]] = arith.addf %[[COUNT]], %[[KEYS]]
// CHECK-NEXT:    "attn.yield"(%{{.*}}, %[[COUNTED]], %{{.*}}, %{{.*}})
// CHECK:       "attn.merge"() ({
// CHECK-NEXT:  ^bb0(%{{.*}}: f32, %[[CA:.*]]: f32, %{{.*}}: f32, %[[CB:.*]]: f32):
// CHECK:         %[[C:.*]] = arith.addf %[[CA]], %[[CB]]
// CHECK-NEXT:    "attn.yield"(%{{.*}}, %[[C]], %{{.*}}, %{{.*}})
// CHECK:       "attn.finalize"() ({
// CHECK-NEXT:  ^bb0(%{{.*}}: f32, %{{.*}}: index, %{{.*}}: index, %{{.*}}: index, %{{.*}}: f32, %[[COUNT:.*]]: f32):
// CHECK:         %[[EMPTY:.*]] = arith.cmpf oeq, %[[COUNT]],
// CHECK:         arith.select %[[EMPTY]]
func.func @attention(%q: tensor<?x?x?x64xf32>, %k: tensor<?x?x?x64xf32>, %v: tensor<?x?x?x64xf32>) -> tensor<?x?x?x64xf32> {
  %o = "attn.attention"(%q, %k, %v) ({
    "attn.row"() ({
    ^bb0(%s: f32, %b: index, %h: index, %q_idx: index):
      %ss = arith.mulf %s, %s : f32
      %a = "attn.reduce"(%ss) {kind = "sum"} : (f32) -> f32 loc("a")
      %n = math.sqrt %a : f32
      %p = arith.divf %s, %n : f32
      "attn.yield"(%p) : (f32) -> ()
    }) : () -> ()
  }) {outputs = []} : (tensor<?x?x?x64xf32>, tensor<?x?x?x64xf32>, tensor<?x?x?x64xf32>) -> tensor<?x?x?x64xf32>
  return %o : tensor<?x?x?x64xf32>
}
