// A program of a part has the keys of its part; one that combines goes from part to part, with the rule of `attn.merge`.
// RUN: attn-opt %S/../dialects/attn/parts.mlir -p 'attn-tile{block-q=1 block-kv=16},canonicalize' | FileCheck %s

// CHECK:       func.func @attention_parts({{.*}}, %[[PARTS:.*]]: index, %[[KEYS:.*]]: index, %[[ACC:.*]]: memref<?x?x?x8xf32{{.*}}>)
// CHECK:       %[[ENTRY:.*]] = "tile.program_id"() {axis = 2 : i64}
// CHECK:       %[[PART:.*]] = arith.remsi %[[ENTRY]], %[[PARTS]]
// CHECK:       %[[FIRST:.*]] = arith.muli %[[PART]], %[[KEYS]]
// CHECK:       %[[LAST:.*]] = arith.addi %[[FIRST]], %[[KEYS]]
// CHECK:       %[[B:.*]] = arith.divsi %[[ENTRY]], %[[PARTS]]
// CHECK:       "tile.load"(%{{.*}}, %[[B]],
// CHECK:       %[[BEGIN:.*]] = arith.maxsi %[[FIRST]], %{{.*}}
// CHECK:       %[[END:.*]] = arith.minsi %{{.*}}, %[[LAST]]
// CHECK:       scf.for %{{.*}} = %[[BEGIN]] to %[[END]]
// CHECK:       "tile.store"(%{{.*}}, %[[ACC]], %[[ENTRY]],

// CHECK:       func.func @attention_combine(%[[ACCS:.*]]: memref<?x?x?x8xf32{{.*}}>, %[[SUMS:.*]]: memref<?x?x?xf32{{.*}}>, %[[PARTS:.*]]: index,
// CHECK:       scf.for %[[PART:.*]] = %{{.*}} to %[[PARTS]]
// CHECK:         %[[ENTRY:.*]] = arith.addi %{{.*}}, %[[PART]]
// CHECK:         memref.load %[[SUMS]][%[[ENTRY]],
// CHECK:         "tile.load"(%[[ACCS]], %[[ENTRY]],
// CHECK:         "tile.dot_rescale"
