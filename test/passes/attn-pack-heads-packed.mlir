// Of packed sequences of one query each, the heads of a group are the rows of the query's entry.
// RUN: attn-opt %inputs/packed-causal.mlir -p 'attn-pack-heads,canonicalize,cse' | FileCheck %s
// RUN: attn-opt %inputs/packed-causal.mlir -p 'attn-pack-heads,attn-resolve-masks,attn-online-rewrite,attn-guard-empty-rows,attn-tile{block-q=16 block-kv=32},canonicalize,cse' | FileCheck %s --check-prefix=TILES

// CHECK:       "attn.sequences"(%arg3, %arg4) {by_heads, of = "query"}
// CHECK:       "attn.sequences"(%arg5, %arg6) {of = "key"}

// TILES:         memref.load %work[%{{.+}}, %c1]
// TILES-NEXT:    %[[BEGIN:.+]] = arith.index_cast
// TILES:         memref.load %arg3[%[[B:.+]]]
// TILES-NEXT:    %[[ENTRY:.+]] = arith.index_cast
// TILES:         "tile.load"(%q, %[[ENTRY]], %{{.+}}, %[[BEGIN]], %{{.+}})
