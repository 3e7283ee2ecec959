// Mods that read other channels become tensors of changed elements; other mods stay where they are, and the meaning stays the same.
// RUN: attn-opt %inputs/rotary.mlir -p 'attn-simplify,attn-apply-mods' | FileCheck %s
// RUN: attn-opt %inputs/key-mod.mlir -p 'attn-apply-mods' | FileCheck %s --check-prefix=OTHER
// RUN: attn-run %inputs/rotary.mlir -p 'attn-apply-mods,attn-outline' --after-each | FileCheck %s --check-prefix=SAME

// CHECK-LABEL: func.func @attention(
// CHECK-SAME:    %[[Q:[a-z0-9]+]]: tensor<?x?x?x8xf32>, %[[K:[a-z0-9]+]]: tensor<?x?x?x8xf32>, %[[V:[a-z0-9]+]]:
// CHECK:         %[[OF_Q:.*]] = "attn.elements"(%[[Q]])
// CHECK:         ^bb0(%[[B:[a-z0-9]+]]: index, %[[H:[a-z0-9]+]]: index, %[[I:[a-z0-9]+]]: index, %[[D:[a-z0-9]+]]: index):
// CHECK:           %[[FIRST:.*]] = arith.cmpi slt, %[[D]], %[[FOUR:.*]] :
// CHECK:           %[[AFTER:.*]] = arith.addi %[[D]], %[[FOUR]]
// CHECK:           %[[BEFORE:.*]] = arith.subi %[[D]], %[[FOUR]]
// CHECK:           %[[PARTNER:.*]] = arith.select %[[FIRST]], %[[AFTER]], %[[BEFORE]]
// CHECK:           tensor.extract %[[Q]][%[[B]], %[[H]], %[[I]], %[[D]]]
// CHECK:           tensor.extract %[[Q]][%[[B]], %[[H]], %[[I]], %[[PARTNER]]]
// CHECK:         %[[ROTATED:.*]] = "attn.collect"(%[[OF_Q]]) {weight = 0 : i64} : (none) -> tensor<?x?x?x8xf32>
// CHECK:         %[[OF_K:.*]] = "attn.elements"(%[[K]])
// CHECK:           arith.xori
// CHECK:         %[[KEYS:.*]] = "attn.collect"(%[[OF_K]])
// CHECK:         "attn.attention"(%[[ROTATED]], %[[KEYS]], %[[V]])
// CHECK-NOT:     "attn.query"
// CHECK-NOT:     "attn.key"

// OTHER-NOT:   "attn.elements"
// OTHER:       "attn.key"

// SAME:        PASS
