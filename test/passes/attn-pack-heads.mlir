// A group of query heads becomes the query rows: h is h * group + q_idx then, and the only query position is 0.
// RUN: attn-opt %inputs/alibi-causal-softmax.mlir -p 'attn-pack-heads,canonicalize,cse' | FileCheck %s
// RUN: attn-opt %inputs/causal-bottom-right.mlir -p 'attn-pack-heads,canonicalize,cse' | FileCheck %s --check-prefix=SIZES
// RUN: attn-opt %inputs/causal-bottom-right.mlir -p 'attn-pack-heads,attn-resolve-masks,canonicalize,cse' | FileCheck %s --check-prefix=BOUNDS

// CHECK:       %[[GROUP:[a-z0-9_]+]] = tensor.dim %{{[a-z0-9]+}}, %c2
// CHECK:       "attn.score"
// CHECK-NEXT:  ^bb0(%[[S:[a-z0-9]+]]: f32, %{{[a-z0-9]+}}: index, %[[H:[a-z0-9]+]]: index, %[[Q:[a-z0-9]+]]: index, %[[KV:[a-z0-9]+]]: index):
// CHECK-NEXT:    %[[FIRST:[0-9]+]] = arith.muli %[[H]], %[[GROUP]]
// CHECK-NEXT:    %[[HEAD:[0-9]+]] = arith.addi %[[FIRST]], %[[Q]]
// The distance kv_idx - q_idx is kv_idx.
// CHECK:         arith.index_cast %[[KV]]
// CHECK:         tensor.extract %{{[a-z0-9]+}}[%[[HEAD]]]
// CHECK:       "attn.mask"
// CHECK:         arith.cmpi {{sge, %c0, %[a-z0-9]+|sle, %[a-z0-9]+, %c0}}

// Sq is 1 wherever the program asks for it.
// SIZES-NOT:   tensor.dim %arg0, %c2
// SIZES:       "attn.mask"

// One query at the end sees every key: all are full.
// BOUNDS:      "attn.bounds"
// BOUNDS:        "attn.yield"(%c0, %c0, %[[SKV:[a-z0-9_]+]], %[[SKV]])
