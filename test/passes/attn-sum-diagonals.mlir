// The gradient of a table that is read by a clamped distance: weights are summed along diagonals, then these sums where it is read.
// RUN: attn-opt %s -p 'attn-simplify,attn-differentiate{functions=bwd wrt=arg3 only=true},attn-sum-diagonals,func.func(cse)' | FileCheck %s

// CHECK-LABEL: func.func @relative_bwd(
// CHECK-SAME:    %{{[^:]*}}: tensor<?x?x?x64xf16>, %[[K:[^:]*]]: tensor<?x?x?x64xf16>, %{{[^:]*}}: tensor<?x?x?x64xf16>, %[[TABLE:[^:]*]]: tensor<?x?xf32>
// CHECK:         %[[PAIRS:.*]] = "attn.pairs"()
// CHECK:         %[[SUMS:.*]] = "attn.scatter"(%[[PAIRS]], %[[K]]) ({
// CHECK-NEXT:      ^bb0(%[[B:.*]]: index, %[[H:.*]]: index, %[[Q_IDX:.*]]: index, %[[KV_IDX:.*]]: index):
// CHECK:             %[[DISTANCE:.*]] = arith.subi %[[Q_IDX]], %[[KV_IDX]] : index
// CHECK:             %[[KEYS:.*]] = tensor.dim %[[K]], %{{.*}}
// CHECK:             %[[DIAGONAL:.*]] = arith.addi %[[DISTANCE]], %[[KEYS]] : index
// CHECK:             "attn.yield"(%[[B]], %[[H]], %[[DIAGONAL]])
// CHECK:         {diagonals, weight = 0 : i64} : (none, tensor<?x?x?x64xf16>) -> tensor<?x?x?xf32>
// CHECK:         %[[ELEMENTS:.*]] = "attn.elements"(%[[SUMS]])
// CHECK:         "attn.scatter"(%[[ELEMENTS]], %[[TABLE]]) ({
// CHECK-NEXT:      ^bb0(%{{.*}}: index, %{{.*}}: index, %[[D:.*]]: index):
// CHECK:             %[[OF_DIAGONAL:.*]] = arith.subi %[[D]], %{{.*}} : index
// CHECK:             arith.minsi
// CHECK:         {weight = 0 : i64} : (none, tensor<?x?xf32>) -> tensor<?x?xf32>
!q = tensor<?x?x?x64xf16>
func.func @relative(%q: !q, %k: !q, %v: !q, %table: tensor<?x?xf32>) -> !q {
  %o = "attn.attention"(%q, %k, %v) ({
    "attn.score"() ({
    ^bb0(%s: f32, %b: index, %h: index, %i: index, %j: index):
      %zero = arith.constant 0 : index
      %last = arith.constant 15 : index
      %difference = arith.subi %i, %j : index
      %positive = arith.maxsi %difference, %zero : index
      %bucket = arith.minsi %positive, %last : index
      %bias = tensor.extract %table[%h, %bucket] : tensor<?x?xf32>
      %sum = arith.addf %s, %bias : f32
      "attn.yield"(%sum) : (f32) -> ()
    }) : () -> ()
    "attn.row"() ({
    ^bb0(%s: f32, %b: index, %h: index, %i: index):
      %m = "attn.reduce"(%s) {kind = "max"} : (f32) -> f32
      %d = arith.subf %s, %m : f32
      %e = math.exp %d : f32
      %l = "attn.reduce"(%e) {kind = "sum"} : (f32) -> f32
      %p = arith.divf %e, %l : f32
      "attn.yield"(%p) : (f32) -> ()
    }) : () -> ()
  }) {outputs = []} : (!q, !q, !q) -> !q
  return %o : !q
}
