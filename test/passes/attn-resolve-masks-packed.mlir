// Bounds of packed sequences are within the length of the sequence, which may be 0: no row is sure to have a key.
// RUN: attn-opt %inputs/packed-causal.mlir -p 'attn-resolve-masks,canonicalize,cse' | FileCheck %s

// CHECK:       "attn.bounds"() ({
// CHECK-NEXT:  ^bb0(%[[B:[a-z]+]]: index, %[[H:[a-z]+]]: index, %[[BEGIN:[a-z_]+]]: index, %[[END:[a-z_]+]]: index):
// CHECK-DAG:     tensor.extract %arg4[%[[B]]]
// CHECK-DAG:     %[[NARROW:.+]] = tensor.extract %arg6[%[[B]]]
// CHECK-DAG:     %[[KEYS:.+]] = arith.index_cast %[[NARROW]]
// CHECK:         %[[LEAST:.+]] = arith.minsi %{{.+}}, %[[KEYS]]
// CHECK-NEXT:    %[[LAST:.+]] = arith.maxsi %[[LEAST]], %c0
// CHECK:         "attn.yield"(%c0, %c0, %{{.+}}, %[[LAST]])
// CHECK-NOT:   attn.block_mask
// CHECK:       rows_nonempty = false
