// The whole row as one block: initial values fold, rescaling meets sums that are still 0, the end applies to each weight.
// RUN: attn-opt %S/../Inputs/online-causal-softmax.mlir -p 'attn-recover-rows' | FileCheck %s
// RUN: attn-opt %s --split-input-file -p 'attn-recover-rows' | FileCheck %s --check-prefix=KEPT
// RUN: attn-run %S/../Inputs/online-causal-softmax.mlir -p 'attn-recover-rows,attn-online-rewrite' --split 3 | FileCheck %s --check-prefix=RESULT

// CHECK:       "attn.attention"
// CHECK:       "attn.mask"
// CHECK:       "attn.row"() ({
// CHECK-NEXT:  ^bb0(%[[S:.*]]: f32, %{{.*}}: index, %{{.*}}: index, %{{.*}}: index):
// CHECK-NEXT:    %[[M:.*]] = "attn.reduce"(%[[S]]) {kind = "max"}
// CHECK-NEXT:    %[[SHIFTED:.*]] = arith.subf %[[S]], %[[M]]
// CHECK-NEXT:    %[[E:.*]] = math.exp %[[SHIFTED]]
// CHECK-NEXT:    %[[L:.*]] = "attn.reduce"(%[[E]]) {kind = "sum"}
// CHECK-NEXT:    %[[P:.*]] = arith.divf %[[E]], %[[L]]
// CHECK-NEXT:    %[[LOG:.*]] = math.log %[[L]]
// CHECK-NEXT:    %[[LSE:.*]] = arith.addf %[[M]], %[[LOG]]
// CHECK-NEXT:    "attn.yield"(%[[P]], %[[LSE]])
// CHECK:       outputs = ["lse"], rows_nonempty = true
// CHECK-NOT:   attn.online

// RESULT: PASS

// An initial value that matters stays; so do a detached value and what reads the position.
// KEPT:        "attn.row"() ({
// KEPT-NEXT:   ^bb0(%[[S:.*]]: f32, %{{.*}}: index, %[[H:.*]]: index, %{{.*}}: index):
// KEPT-NEXT:     %[[ONE:.*]] = arith.constant 1.000000e+00 : f32
// KEPT-NEXT:     %[[SUM:.*]] = "attn.reduce"(%[[S]]) {kind = "sum"}
// KEPT-NEXT:     %[[ALL:.*]] = arith.addf %[[ONE]], %[[SUM]]
// KEPT-NEXT:     %[[FIXED:.*]] = "attn.detach"(%[[ALL]])
// KEPT-NEXT:     %[[SLOPE:.*]] = tensor.extract %{{.*}}[%[[H]]]
// KEPT-NEXT:     %[[SCALED:.*]] = arith.mulf %[[S]], %[[SLOPE]]
// KEPT-NEXT:     arith.divf %[[SCALED]], %[[FIXED]]
func.func @attention(%q: tensor<?x?x?x8xf32>, %k: tensor<?x?x?x8xf32>, %v: tensor<?x?x?x8xf32>, %slopes: tensor<?xf32>) -> tensor<?x?x?x8xf32> {
  %o = "attn.online"(%q, %k, %v) ({
    "attn.init"() ({
    ^bb0(%b: index, %h: index, %q_idx: index):
      %one = arith.constant 1.0 : f32
      "attn.yield"(%one) : (f32) -> ()
    }) : () -> ()
    "attn.step"() ({
    ^bb0(%s: f32, %b: index, %h: index, %q_idx: index, %l: f32):
      %one = arith.constant 1.0 : f32
      %sum = "attn.reduce"(%s) {kind = "sum"} : (f32) -> f32
      %l_new = arith.addf %l, %sum : f32
      "attn.yield"(%l_new, %s, %one) : (f32, f32, f32) -> ()
    }) : () -> ()
    "attn.finalize"() ({
    ^bb0(%acc: f32, %b: index, %h: index, %q_idx: index, %l: f32):
      %fixed = "attn.detach"(%l) : (f32) -> f32
      %slope = tensor.extract %slopes[%h] : tensor<?xf32>
      %scaled = arith.mulf %acc, %slope : f32
      %o = arith.divf %scaled, %fixed : f32
      "attn.yield"(%o) : (f32) -> ()
    }) : () -> ()
  }) {outputs = [], accumulators = 1 : i64} : (tensor<?x?x?x8xf32>, tensor<?x?x?x8xf32>, tensor<?x?x?x8xf32>) -> tensor<?x?x?x8xf32>
  return %o : tensor<?x?x?x8xf32>
}
