// A row of two scores: reductions of either, weights that read both, and saved values of the row, which are parameters.
// RUN: attn-opt %s -p 'attn-online-rewrite' | FileCheck %s
// RUN: attn-opt %s --attn-explain | FileCheck %s --check-prefix=EXPLAIN

// CHECK:       "attn.step"() ({
// CHECK-NEXT:  ^bb0(%[[S:[a-z0-9_]+]]: f32, %[[DP:[a-z0-9_]+]]: f32, %[[B:[a-z0-9_]+]]: index, %[[H:[a-z0-9_]+]]: index, %[[Q_IDX:[a-z0-9_]+]]: index, %[[SUM:[a-z0-9_]+]]: f32, %[[TOP:[a-z0-9_]+]]: f32):
// CHECK-NEXT:    %[[M:[a-z0-9_]+]] = tensor.extract %{{.*}}[%[[B]], %[[H]], %[[Q_IDX]]]
// CHECK-NEXT:    arith.subf %[[S]], %[[M]]
// CHECK-NEXT:    %[[E:[a-z0-9_]+]] = math.exp
// CHECK-NEXT:    %[[TERM:[a-z0-9_]+]] = arith.mulf %[[E]], %[[DP]]
// CHECK-NEXT:    %[[BLOCK:[a-z0-9_]+]] = "attn.reduce"(%[[TERM]]) {kind = "sum"}
// CHECK-NEXT:    %[[SUM_NEW:[a-z0-9_]+]] = arith.addf %[[SUM]], %[[BLOCK]]
// CHECK-NEXT:    %[[LARGEST:[a-z0-9_]+]] = "attn.reduce"(%[[DP]]) {kind = "max"}
// CHECK-NEXT:    %[[TOP_NEW:[a-z0-9_]+]] = arith.maximumf %[[TOP]], %[[LARGEST]]
// CHECK-NEXT:    %[[ONE:[a-z0-9_]+]] = arith.constant 1.0
// CHECK-NEXT:    "attn.yield"(%[[SUM_NEW]], %[[TOP_NEW]], %[[E]], %[[ONE]])
// CHECK:       accumulators = 1 : i64, outputs = ["sum", "top"]

// EXPLAIN:     sum = sum (exp(s - m) * dp)
// EXPLAIN:     top = max dp
// EXPLAIN:     p = exp(s - m)
// EXPLAIN:     sum: independent
// EXPLAIN:     o: independent, accumulated as it is
func.func @attention(%q: tensor<?x?x?x8xf32>, %k: tensor<?x?x?x8xf32>, %v: tensor<?x?x?x8xf32>, %do: tensor<?x?x?x8xf32>, %m: tensor<?x?x?xf32>)
    -> (tensor<?x?x?x8xf32>, tensor<?x?x?xf32>, tensor<?x?x?xf32>) {
  %r:3 = "attn.attention"(%q, %k, %v) ({
    "attn.product"(%do, %v) : (tensor<?x?x?x8xf32>, tensor<?x?x?x8xf32>) -> ()
    "attn.row"() ({
    ^bb0(%s: f32, %dp: f32 loc("dp"), %b: index, %h: index, %q_idx: index):
      %row_max = tensor.extract %m[%b, %h, %q_idx] : tensor<?x?x?xf32> loc("m")
      %d = arith.subf %s, %row_max : f32
      %e = math.exp %d : f32
      %t = arith.mulf %e, %dp : f32
      %sum = "attn.reduce"(%t) {kind = "sum"} : (f32) -> f32 loc("sum")
      %top = "attn.reduce"(%dp) {kind = "max"} : (f32) -> f32 loc("top")
      "attn.yield"(%e, %sum, %top) : (f32, f32, f32) -> ()
    }) : () -> ()
  }) {outputs = ["sum", "top"]} : (tensor<?x?x?x8xf32>, tensor<?x?x?x8xf32>, tensor<?x?x?x8xf32>) -> (tensor<?x?x?x8xf32>, tensor<?x?x?xf32>, tensor<?x?x?xf32>)
  return %r#0, %r#1, %r#2 : tensor<?x?x?x8xf32>, tensor<?x?x?xf32>, tensor<?x?x?xf32>
}
