// Keys in pages: the table is the address map of a load; masks stay loop bounds over positions in the sequence.
// RUN: attn-opt %inputs/paged-causal.mlir -p 'attn-resolve-masks,attn-online-rewrite,attn-guard-empty-rows,attn-tile{block-q=16 block-kv=32},canonicalize,cse' | FileCheck %s
// RUN: attn-opt %inputs/paged-causal.mlir -p 'attn-resolve-masks,attn-online-rewrite,attn-guard-empty-rows,attn-tile{block-q=16 block-kv=32},canonicalize,cse,tile-schedule{target=cpu}' | FileCheck %s --check-prefix=CPU
// RUN: attn-opt %inputs/paged-causal.mlir -p 'attn-resolve-masks,attn-online-rewrite,attn-guard-empty-rows,attn-tile{block-q=16 block-kv=32},canonicalize,cse' --pretty | FileCheck %s --check-prefix=PRETTY
// RUN: attn-run %inputs/paged-causal.mlir -p 'attn-simplify,attn-resolve-masks,attn-online-rewrite,attn-guard-empty-rows,attn-tile{block-q=16 block-kv=32},canonicalize,cse'

// CHECK:         %[[NARROW:.+]] = memref.load %work[%{{.+}}, %c0]
// CHECK-NEXT:    %[[B:.+]] = arith.index_cast %[[NARROW]]
// CHECK:         memref.load %arg5[%[[B]]]
// CHECK-NEXT:    %[[KEY:.+]] = arith.index_cast
// CHECK:         "tile.load"(%q,
// CHECK:         scf.for %[[KV:[a-z0-9]+]] = %c0 to
// CHECK:           %[[AT:.+]] = arith.addi %[[KEY]], %[[KV]]
// CHECK:           "tile.load_pages"(%k, %arg7, %[[B]], %{{.+}}, %[[AT]], %[[COUNT:[a-z0-9]+]])
// CHECK:           "tile.load_pages"(%v, %arg7, %[[B]], %{{.+}}, %[[AT]], %[[COUNT]])
// CHECK-NOT:     "tile.load"(%k

// Rows of several pages have a buffer of their own; those of one page are read where they are.
// CPU:           "tile.load_pages"(%k,{{.*}} {buffer = [-1], layout = ["memory"], rows_buffer = {{[0-9]+}} : i64}

// PRETTY:        k_tile: ?x16xf32 = tile.load_pages k[arg7[{{.+}}], {{.+}} :+ {{.+}}]
