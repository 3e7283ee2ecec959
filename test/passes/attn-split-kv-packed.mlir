// Parts of the keys of packed sequences come from a list of work, whose items have the entry and the keys of a part, or how many there are.
// RUN: attn-opt %inputs/paged-causal.mlir -p 'attn-resolve-masks,attn-online-rewrite,attn-split-kv' | FileCheck %s --check-prefix=ONLINE
// RUN: attn-opt %inputs/paged-causal.mlir -p 'attn-resolve-masks,attn-online-rewrite,attn-guard-empty-rows,attn-split-kv,attn-tile{block-q=1 block-kv=32},canonicalize,cse' | FileCheck %s

// ONLINE:      func.func @attention_parts({{.*}}) -> (tensor<?x?x?x8xf32>, tensor<?x?x?xf32>, tensor<?x?x?xf32>)
// ONLINE:      "attn.pages"
// ONLINE:      "attn.part_list"() : () -> ()
// ONLINE:      func.func @attention_combine
// ONLINE:      "attn.combine"
// ONLINE:      "attn.part_list"() : () -> ()

// CHECK:       func.func @attention_parts({{.*}}%work: memref<?x6xi32
// CHECK:       %[[PROGRAM:.+]] = "tile.program_id"() {axis = 0 : i64}
// CHECK:       memref.load %work[%[[PROGRAM]], %c3]
// CHECK-NEXT:  %[[ENTRY:.+]] = arith.index_cast
// CHECK:       memref.load %work[%[[PROGRAM]], %c4]
// CHECK-NEXT:  %[[FIRST:.+]] = arith.index_cast
// CHECK:       memref.load %work[%[[PROGRAM]], %c5]
// CHECK-NEXT:  %[[LAST:.+]] = arith.index_cast
// CHECK:       %[[BEGIN:.+]] = arith.maxsi %{{.+}}, %[[FIRST]]
// CHECK:       scf.for %{{.+}} = %[[BEGIN]] to
// CHECK:       "tile.store"(%{{.+}}, %{{.+}}, %[[ENTRY]],

// CHECK:       func.func @attention_combine({{.*}}%work: memref<?x6xi32
// CHECK:       memref.load %work[%{{.+}}, %c3]
// CHECK:       memref.load %work[%{{.+}}, %c4]
// CHECK-NEXT:  %[[COUNT:.+]] = arith.index_cast
// CHECK:       scf.for %{{.+}} = %c0 to %[[COUNT]]
