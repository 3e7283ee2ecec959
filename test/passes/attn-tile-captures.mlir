// Captured tensors become memrefs that maps read; sizes are asked of memrefs too.
// RUN: attn-opt %inputs/alibi-causal-softmax.mlir -p 'attn-online-rewrite,attn-tile,canonicalize,cse' | FileCheck %s
// RUN: attn-opt %inputs/causal-bottom-right.mlir -p 'attn-online-rewrite,attn-tile,canonicalize,cse' | FileCheck %s --check-prefix=SIZES

// CHECK-LABEL: func.func @attention(
// CHECK-SAME:    %[[SLOPES:[a-z0-9_]+]]: memref<?xf32, strided<[?]>>
// CHECK:       %[[HEAD:[0-9]+]] = "tile.program_id"() {axis = 1 : i64}
// CHECK:         ^bb0(%i: index, %j: index):
// CHECK:           memref.load %[[SLOPES]][%[[HEAD]]]
// CHECK-NOT:   tensor.dim
// CHECK-NOT:   tensor.extract %[[SLOPES]]

// SIZES-DAG:   %[[Q_LEN:.*]] = memref.dim %q, %c2
// SIZES-DAG:   %[[KV_LEN:.*]] = memref.dim %k, %c2
// SIZES-NOT:   tensor.dim
