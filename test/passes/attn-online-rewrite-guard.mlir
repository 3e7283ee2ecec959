// exp((s - mean) / 1024): before the first key the mean is 0 / 0, so the factor is selected, once for the state and the output.
// Softmax needs no such select (attn-online-rewrite.mlir): its lowest maximum is finite.
// RUN: attn-opt %s -p 'attn-online-rewrite' | FileCheck %s

// CHECK:       "attn.step"() ({
// CHECK-NEXT:  ^bb0(%{{.*}}: f32, %{{.*}}: index, %{{.*}}: index, %{{.*}}: index, %[[N:.*]]: f32, %[[A:.*]]: f32, %[[L:.*]]: f32):
// CHECK:         %[[UNTOUCHED:.*]] = arith.cmpf oeq, %[[N]], %[[ZERO:.*]] : f32
// CHECK:         %[[FACTOR:.*]] = math.exp
// CHECK-NEXT:    %[[RESCALE:.*]] = arith.select %[[UNTOUCHED]], %[[ZERO]], %[[FACTOR]]
// CHECK-NEXT:    arith.mulf %[[L]], %[[RESCALE]]
// CHECK:         "attn.yield"(%{{.*}}, %{{.*}}, %{{.*}}, %{{.*}}, %[[RESCALE]])
// CHECK:       "attn.merge"() ({
// CHECK-NEXT:  ^bb0(%[[NA:[a-z_]+]]: f32, %{{[a-z_]+}}: f32, %{{[a-z_]+}}: f32, %[[NB:[a-z_]+]]: f32,
// CHECK:         arith.cmpf oeq, %[[NA]],
// CHECK:         %[[SA:.*]] = arith.select
// CHECK:         arith.cmpf oeq, %[[NB]],
// CHECK:         %[[SB:.*]] = arith.select
// CHECK:         "attn.yield"(%{{.*}}, %{{.*}}, %{{.*}}, %[[SA]], %[[SB]])
func.func @attention(%q: tensor<?x?x?x64xf32>, %k: tensor<?x?x?x64xf32>, %v: tensor<?x?x?x64xf32>) -> tensor<?x?x?x64xf32> {
  %o = "attn.attention"(%q, %k, %v) ({
    "attn.row"() ({
    ^bb0(%s: f32, %b: index, %h: index, %q_idx: index):
      %one = arith.constant 1.0 : f32
      %n = "attn.reduce"(%one) {kind = "sum"} : (f32) -> f32 loc("n")
      %a = "attn.reduce"(%s) {kind = "sum"} : (f32) -> f32 loc("a")
      %mean = arith.divf %a, %n : f32
      %d = arith.subf %s, %mean : f32
      %c = arith.constant 0.0009765625 : f32
      %x = arith.mulf %d, %c : f32
      %e = math.exp %x : f32
      %l = "attn.reduce"(%e) {kind = "sum"} : (f32) -> f32 loc("l")
      %p = arith.divf %e, %l : f32
      "attn.yield"(%p) : (f32) -> ()
    }) : () -> ()
  }) {outputs = []} : (tensor<?x?x?x64xf32>, tensor<?x?x?x64xf32>, tensor<?x?x?x64xf32>) -> tensor<?x?x?x64xf32>
  return %o : tensor<?x?x?x64xf32>
}
