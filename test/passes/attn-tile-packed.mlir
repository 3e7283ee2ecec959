// Packed sequences: a program takes its sequence and rows from a list of work, positions count in the sequence, and loads and stores
// add where it begins; kernels of pairs run over groups of items.
// RUN: attn-opt %inputs/packed-causal.mlir -p 'attn-resolve-masks,attn-online-rewrite,attn-guard-empty-rows,attn-tile{block-q=16 block-kv=32},canonicalize,cse' | FileCheck %s
// RUN: attn-opt %inputs/packed-causal.mlir -p 'attn-differentiate,attn-outline{keep-hosts=false},attn-simplify,attn-resolve-masks,attn-online-rewrite,attn-guard-empty-rows,attn-tile{block-q=16 block-kv=32},canonicalize,cse' | FileCheck %s --check-prefix=BACK
// RUN: attn-run %inputs/packed-causal.mlir -p 'attn-simplify,attn-resolve-masks,attn-online-rewrite,attn-guard-empty-rows,attn-tile{block-q=16 block-kv=32},canonicalize,cse'

// CHECK:       func.func @attention({{.*}}%work: memref<?x4xi32
// CHECK-SAME:  lengths = array<i64: 4, 6>
// CHECK:         %[[PROGRAM:.+]] = "tile.program_id"() {axis = 0 : i64}
// CHECK:         %[[NARROW:.+]] = memref.load %work[%[[PROGRAM]], %c0]
// CHECK-NEXT:    %[[B:.+]] = arith.index_cast %[[NARROW]]
// CHECK:         memref.load %work[%[[PROGRAM]], %c1]
// CHECK-NEXT:    %[[BEGIN:.+]] = arith.index_cast
// CHECK:         memref.load %arg3[%[[B]]]
// CHECK-NEXT:    %[[FIRST:.+]] = arith.index_cast
// CHECK:         memref.load %arg5[%[[B]]]
// CHECK-NEXT:    %[[KEY:.+]] = arith.index_cast
// CHECK:         %[[ROW:.+]] = arith.addi %[[FIRST]], %[[BEGIN]]
// CHECK:         "tile.load"(%q, %c0, %{{.+}}, %[[ROW]], %{{.+}})
// CHECK:         scf.for %[[KV:[a-z0-9]+]] = %c0 to
// CHECK:           %[[AT:.+]] = arith.addi %[[KEY]], %[[KV]]
// CHECK:           "tile.load"(%k, %c0, %{{.+}}, %[[AT]], %{{.+}})
// CHECK:         "tile.store"(%{{.+}}, %{{.+}}, %c0, %{{.+}}, %[[ROW]], %{{.+}})

// A change of queries by head, and row values: blocks of the same list.
// BACK:        func.func @attention_bwd_{{[0-9]+}}_elements({{.*}}%work: memref<?x4xi32
// BACK-SAME:   lengths = array<i64

// BACK:        func.func @attention_bwd_{{[0-9]+}}_pairs({{.*}}%work: memref<?x4xi32, {{[^>]*}}>>, %groups: memref<?xi32
// BACK-SAME:   grid = "pairs", lengths = array<i64
// BACK:          %[[GROUP:.+]] = "tile.program_id"() {axis = 0 : i64}
// BACK:          memref.load %groups[%[[GROUP]]]
// BACK:          scf.for %[[ITEM:[a-z0-9]+]] =
// BACK:            memref.load %work[%[[ITEM]], %c0]
// BACK:            memref.load %work[%[[ITEM]], %c3]
// BACK-NEXT:       %[[SLOT:.+]] = arith.index_cast
// BACK:            "tile.accumulate"(%{{.+}}, %{{.+}}, %{{.+}}, %[[SLOT]], %c0, %{{.+}}, %{{.+}}, %{{.+}})
