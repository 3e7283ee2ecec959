// RUN: attn-opt %s -p 'attn-expand-dropout,canonicalize,cse' | FileCheck %s

// Ten rounds of Philox 4x32-10, with two products each, and one byte of one word compared.
// CHECK-LABEL: func.func @kept(
// CHECK-SAME:    %[[SEED:[^:]*]]: index, %[[OFFSET:[^:]*]]: index, %[[DROP:[^:]*]]: index, %[[HEADS:[^:]*]]: index,
// CHECK-SAME:    %[[B:[^:]*]]: index, %[[H:[^:]*]]: index, %[[Q:[^:]*]]: index, %[[KV:[^:]*]]: index)
// CHECK-DAG:     %[[SECOND:.*]] = arith.constant 3449720151 : index
// CHECK-DAG:     %[[FIRST:.*]] = arith.constant 3528531795 : index
// CHECK-DAG:     %[[WORD:.*]] = arith.constant 4294967295 : index
// CHECK:         %[[BH:.*]] = arith.muli %[[B]], %[[HEADS]] : index
// CHECK:         %[[ROW:.*]] = arith.addi %[[BH]], %[[H]] : index
// CHECK:         %[[GROUP:.*]] = arith.shrsi %[[KV]], %{{.*}} : index
// CHECK:         %[[C0:.*]] = arith.andi %[[GROUP]], %[[WORD]] : index
// CHECK-COUNT-10: arith.muli %{{.*}}, %[[FIRST]] : index
// CHECK:         arith.cmpi slt, %{{.*}} : index
// CHECK:         %[[KEPT:.*]] = arith.cmpi sge, %{{.*}}, %{{.*}} : index
// CHECK-NOT:     attn.kept
// CHECK:         return %[[KEPT]] : i1
func.func @kept(%seed: index, %offset: index, %drop: index, %heads: index, %b: index, %h: index, %q_idx: index, %kv_idx: index) -> i1 {
  %kept = "attn.kept"(%seed, %offset, %drop, %heads, %b, %h, %q_idx, %kv_idx) : (index, index, index, index, index, index, index, index) -> i1
  return %kept : i1
}
