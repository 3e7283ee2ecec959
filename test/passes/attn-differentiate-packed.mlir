// Derivatives of packed sequences are programs on packed sequences: values of a row are read where its sequence begins.
// RUN: attn-opt %inputs/packed-causal.mlir -p 'attn-differentiate{functions=bwd},canonicalize,cse' | FileCheck %s
// RUN: attn-run %inputs/packed-causal.mlir -p 'attn-simplify,attn-differentiate,attn-outline,attn-resolve-masks,attn-online-rewrite,attn-guard-empty-rows'

// CHECK:       func.func @attention_bwd
// CHECK:       "attn.elements"(%q) ({
// CHECK-NEXT:    "attn.sequences"(%arg3, %arg4) {of = "query"}
// CHECK:         ^bb0(%[[B:[a-z0-9]+]]: index, %[[H:[a-z0-9]+]]: index, %[[I:[a-z0-9]+]]: index, %[[D:[a-z0-9]+]]: index):
// CHECK:           tensor.extract %arg3[%[[B]]]
// CHECK-NEXT:      %[[BEGIN:.+]] = arith.index_cast
// CHECK-NEXT:      %[[ROW:.+]] = arith.addi %[[BEGIN]], %[[I]]
// CHECK-NEXT:      tensor.extract %q[%c0, %[[H]], %[[ROW]], %[[D]]]
// CHECK:       "attn.pairs"() ({
// CHECK:         "attn.sequences"(%arg3, %arg4) {of = "query"}
// CHECK:         "attn.sequences"(%arg5, %arg6) {of = "key"}
// CHECK:         "attn.pair"() ({
// CHECK-NEXT:    ^bb0({{.*}} %[[PB:[a-z0-9_]+]]: index, %[[PH:[a-z0-9_]+]]: index, %[[Q:[a-z0-9_]+]]: index, %{{[a-z0-9_]+}}: index):
// CHECK:           tensor.extract %arg3[%[[PB]]]
// CHECK:           %[[PROW:.+]] = arith.addi %{{.+}}, %[[Q]]
// CHECK:           tensor.extract %{{.+}}[%c0, %[[PH]], %[[PROW]]]
