// A layer-norm row has rank 2: sum s v and sum v are kept. The squares are summed around the running mean, and moved
// with it; a side that has seen no key is replaced, as its mean is 0 / 0.
// RUN: attn-opt %s -p 'attn-online-rewrite' | FileCheck %s

// CHECK:       "attn.step"() ({
// CHECK-NEXT:  ^bb0(%[[S:.*]]: f32, %{{.*}}: index, %{{.*}}: index, %{{.*}}: index, %[[N:.*]]: f32, %[[A:.*]]: f32, %[[B:.*]]: f32):
// CHECK:         %[[N_NEW:.*]] = arith.addf %[[N]]
// CHECK:         %[[A_NEW:.*]] = arith.addf %[[A]]
// CHECK:         %[[UNTOUCHED:.*]] = arith.cmpf oeq, %[[N]], %[[ZERO:.*]] : f32
// CHECK-NEXT:    %[[MEAN:.*]] = arith.divf %[[A]], %[[N]]
// CHECK-NEXT:    %[[MEAN_NEW:.*]] = arith.divf %[[A_NEW]], %[[N_NEW]]
// CHECK-NEXT:    %[[MOVED:.*]] = arith.subf %[[MEAN]], %[[MEAN_NEW]]
// CHECK-NEXT:    %[[SQUARE:.*]] = arith.mulf %[[MOVED]], %[[MOVED]]
// CHECK-NEXT:    %[[SHIFT:.*]] = arith.mulf %[[SQUARE]], %[[N]]
// CHECK-NEXT:    %[[SHIFTED:.*]] = arith.addf %[[B]], %[[SHIFT]]
// CHECK-NEXT:    %[[KEPT:.*]] = arith.select %[[UNTOUCHED]], %[[ZERO]], %[[SHIFTED]]
// CHECK-NEXT:    %[[D:.*]] = arith.subf %[[S]], %[[MEAN_NEW]]
// CHECK-NEXT:    %[[DD:.*]] = arith.mulf %[[D]], %[[D]]
// CHECK-NEXT:    %[[SUM:.*]] = "attn.reduce"(%[[DD]]) {kind = "sum"}
// CHECK-NEXT:    %[[B_NEW:.*]] = arith.addf %[[KEPT]], %[[SUM]]
// CHECK-NEXT:    "attn.yield"(%[[N_NEW]], %[[A_NEW]], %[[B_NEW]], %[[S]], %[[ONE:.*]], %[[ONE]], %[[ONE]])
// CHECK:       "attn.finalize"() ({
// CHECK-NEXT:  ^bb0(%[[SV:.*]]: f32, %[[V:.*]]: f32, %{{.*}}: index, %{{.*}}: index, %{{.*}}: index, %[[N:.*]]: f32, %[[A:.*]]: f32, %[[B:.*]]: f32):
// CHECK-NEXT:    %[[MEAN:.*]] = arith.divf %[[A]], %[[N]]
// CHECK-NEXT:    %[[OFF:.*]] = arith.mulf %[[V]], %[[MEAN]]
// CHECK-NEXT:    %[[CENTRED:.*]] = arith.subf %[[SV]], %[[OFF]]
// CHECK-NEXT:    %[[VAR:.*]] = arith.divf %[[B]], %[[N]]
// CHECK-NEXT:    %[[STD:.*]] = math.sqrt %[[VAR]]
// CHECK-NEXT:    arith.divf %[[CENTRED]], %[[STD]]
// CHECK:       accumulators = 2 : i64
func.func @attention(%q: tensor<?x?x?x64xf32>, %k: tensor<?x?x?x64xf32>, %v: tensor<?x?x?x64xf32>) -> tensor<?x?x?x64xf32> {
  %o = "attn.attention"(%q, %k, %v) ({
    "attn.row"() ({
    ^bb0(%s: f32, %b: index, %h: index, %q_idx: index):
      %one = arith.constant 1.0 : f32
      %n = "attn.reduce"(%one) {kind = "sum"} : (f32) -> f32 loc("n")
      %a = "attn.reduce"(%s) {kind = "sum"} : (f32) -> f32 loc("a")
      %mean = arith.divf %a, %n : f32
      %d = arith.subf %s, %mean : f32
      %dd = arith.mulf %d, %d : f32
      %sq = "attn.reduce"(%dd) {kind = "sum"} : (f32) -> f32 loc("sq")
      %var = arith.divf %sq, %n : f32
      %std = math.sqrt %var : f32
      %p = arith.divf %d, %std : f32
      "attn.yield"(%p) : (f32) -> ()
    }) : () -> ()
  }) {outputs = []} : (tensor<?x?x?x64xf32>, tensor<?x?x?x64xf32>, tensor<?x?x?x64xf32>) -> tensor<?x?x?x64xf32>
  return %o : tensor<?x?x?x64xf32>
}
