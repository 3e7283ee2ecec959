// Packed tensors as ragged views, for GPUs: a sequence is the last rows of the entry where it ends, so that nothing is behind it; its
// lengths are read once; a program of pairs has one item of the list. Other tensors, such as sums of rows, are not views.
// RUN: attn-opt %inputs/packed-causal.mlir -p 'attn-resolve-masks,attn-online-rewrite,attn-guard-empty-rows,attn-tile{block-q=16 block-kv=32 whole=true},canonicalize,cse' | FileCheck %s
// RUN: attn-opt %inputs/packed-causal.mlir -p 'attn-differentiate,attn-outline{keep-hosts=false},attn-simplify,attn-resolve-masks,attn-online-rewrite,attn-guard-empty-rows,attn-tile{block-q=16 block-kv=32 whole=true},canonicalize,cse' | FileCheck %s --check-prefix=BACK

// CHECK:       func.func @attention({{.*}}%work: memref<?x4xi32
// CHECK-SAME:  begins = array<i64: 3, 5>
// CHECK-SAME:  ragged = array<i64: 0, 1, 2,
// CHECK:         %[[BEGIN32:.+]] = memref.load %work[%{{.+}}, %c1]
// CHECK:         %[[BEGIN:.+]] = arith.index_cast %[[BEGIN32]]
// CHECK:         %[[FIRST32:.+]] = memref.load %arg3[%[[B:.+]]]
// CHECK:         %[[FIRST:.+]] = arith.index_cast %[[FIRST32]]
// CHECK:         memref.load %arg4[%[[B]]]
// CHECK:         %[[LENGTH:.+]] = arith.index_cast
// CHECK:         %[[ENTRY:.+]] = arith.addi %[[FIRST]], %[[LENGTH]]
// CHECK:         %[[BEFORE:.+]] = arith.subi %{{.+}}, %[[LENGTH]]
// CHECK:         %[[ROW:.+]] = arith.addi %[[BEFORE]], %[[BEGIN]]
// CHECK:         "tile.load"(%q, %[[ENTRY]], %{{.+}}, %[[ROW]], %{{.+}})
// CHECK-NOT:     memref.load %arg4
// CHECK:         "tile.store"(%{{.+}}, %{{.+}}, %[[ENTRY]], %{{.+}}, %[[ROW]], %{{.+}})

// BACK:        func.func @attention_bwd_{{[0-9]+}}_elements(
// BACK-NOT:    ragged
// BACK:        func.func @attention_bwd_{{[0-9]+}}_pairs({{.*}}%work: memref<?x4xi32, {{[^>]*}}>>) attributes
// BACK-SAME:   ragged = array<i64
// BACK:          %[[ITEM:.+]] = "tile.program_id"() {axis = 0 : i64}
// BACK:          memref.load %work[%[[ITEM]], %c0]
// BACK:          "tile.accumulate"(%{{.+}}, %{{.+}}, %{{.+}}, %{{.+}}, %{{.+}}, %{{.+}}, %{{.+}}, %{{.+}})
