// A program has rows of one list, and goes from listed block to listed block; sums over queries go along the inverse.
// RUN: attn-opt %S/../dialects/attn/key-lists.mlir -p 'attn-resolve-masks,attn-online-rewrite,attn-tile{block-q=32 block-kv=32},canonicalize' | FileCheck %s

// CHECK:       func.func @attention({{.*}}, %[[LIST:.*]]: memref<?xi32{{.*}}>, %[[RANGES:.*]]: memref<?x?x?x?xi64{{.*}}>, %{{.*}}: memref<?xi32{{.*}}>, %{{.*}}: memref<?xi32{{.*}}>,
// CHECK-SAME:  tile.kernel = {block_kv = 32 : i64, block_q = 16 : i64, list = 16 : i64}
// CHECK:       %[[BLOCK:.*]] = "tile.program_id"() {axis = 0 : i64}
// CHECK:       memref.load %[[RANGES]][%{{.*}}, %{{.*}}, %[[BLOCK]], %c0]
// CHECK:       memref.load %[[RANGES]][%{{.*}}, %{{.*}}, %[[BLOCK]], %c1]
// CHECK:       scf.for %[[PLACE:.*]] = %{{.*}} to %{{.*}} step %c1
// CHECK:         %[[ENTRY:.*]] = memref.load %[[LIST]][%[[PLACE]]]
// CHECK:         %[[NUMBER:.*]] = arith.index_cast %[[ENTRY]]
// CHECK:         %[[FIRST:.*]] = arith.muli %[[NUMBER]], %c64
// CHECK:         scf.for %[[PART:.*]] = %c0 to %c64 step %c32
// CHECK:           arith.addi %[[FIRST]], %[[PART]]
// CHECK:           "tile.load"

// CHECK:       func.func @pairs({{.*}}, %[[BACK:.*]]: memref<?xi32{{.*}}>, %[[KEPT:.*]]: memref<?xi32{{.*}}>, %[[BACK_RANGES:.*]]: memref<?x?x?x?xi64{{.*}}>, %{{.*}}: memref<?x?x?x8xf32{{.*}}>,
// CHECK:       memref.load %[[BACK_RANGES]]
// CHECK:       scf.for %[[PLACE:.*]] = %{{.*}} to %{{.*}} step %c1
// CHECK:         memref.load %[[BACK]][%[[PLACE]]]
// CHECK:         memref.load %[[KEPT]][%[[PLACE]]]
// CHECK:         "tile.map"
// CHECK:           arith.shrsi
