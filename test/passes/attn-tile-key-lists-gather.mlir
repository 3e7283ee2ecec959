// Keys that are listed one by one are gathered, and their positions read from the list.
// RUN: sed -e 's/16, 64, 32/16, 1, 32/' %S/../dialects/attn/key-lists.mlir | attn-opt -p 'attn-online-rewrite,attn-tile{block-q=32 block-kv=32}' | FileCheck %s

// CHECK:       func.func @attention(%{{.*}}, %[[K:[^:]*]]: memref<?x?x?x8xf32{{[^>]*>>}}, %{{[^:]*}}: memref<?x?x?x8xf32{{[^>]*>>}}, %[[LIST:[^:]*]]: memref<?xi32
// CHECK:       scf.for %[[PLACE:.*]] = %{{.*}} to %{{.*}} step %{{.*}} iter_args
// CHECK:         %[[KEYS:.*]] = "tile.gather"(%[[K]], %{{.*}}, %{{.*}}, %[[LIST]], %{{.*}}, %[[PLACE]])
// CHECK:         "tile.dot"(%{{.*}}, %[[KEYS]])
