// RUN: attn-opt %s -p 'attn-resolve-masks{cuts=0}' | FileCheck %s
// RUN: attn-opt %s -p attn-resolve-masks | FileCheck %s --check-prefix=CUT

// q % 64 >= kv % 64 is not an interval of keys, so that blocks are classified one by one: a block inside one period by
// its corners, one that crosses a multiple of 64 by 0 and 63. By default, it is cut there first.

// CHECK:         "attn.block_mask"() ({
// CHECK-NEXT:    ^bb0(%{{[^:]*}}: index, %{{[^:]*}}: index, %[[Q_BEGIN:[^:]*]]: index, %[[Q_END:[^:]*]]: index, %{{.*}}: index, %{{.*}}: index):
// CHECK-DAG:       %[[C63:.*]] = arith.constant 63 : index
// CHECK-DAG:       %[[PERIOD:.*]] = arith.constant 64 : index
// CHECK-DAG:       %{{.*}} = arith.floordivsi %[[Q_BEGIN]], %[[PERIOD]] : index
// CHECK:           %{{.*}} = arith.select %[[SAME:.*]], %{{.*}}, %[[C63]] : index
// CHECK:           %[[ANY:.*]] = arith.cmpi sge, %{{.*}}, %{{.*}} : index
// CHECK:           %[[ALL:.*]] = arith.cmpi sge, %{{.*}}, %{{.*}} : index
// CHECK-NEXT:      "attn.yield"(%[[ANY]], %[[ALL]]) : (i1, i1) -> ()
// CUT:           "attn.block_mask"
// CUT-COUNT-3:     arith.ori %{{.*}}, %{{.*}} : i1
// CUT-COUNT-3:     arith.andi %{{.*}}, %{{.*}} : i1
// CUT-NEXT:        "attn.yield"
func.func @attention(%q: tensor<?x?x?x8xf32>, %k: tensor<?x?x?x8xf32>, %v: tensor<?x?x?x8xf32>) -> tensor<?x?x?x8xf32> {
  %c64 = arith.constant 64 : index
  %o = "attn.attention"(%q, %k, %v) ({
    "attn.mask"() ({
    ^bb0(%b: index, %h: index, %q_idx: index, %kv_idx: index):
      %0 = arith.floordivsi %q_idx, %c64 : index
      %1 = arith.muli %0, %c64 : index
      %2 = arith.subi %q_idx, %1 : index
      %3 = arith.floordivsi %kv_idx, %c64 : index
      %4 = arith.muli %3, %c64 : index
      %5 = arith.subi %kv_idx, %4 : index
      %6 = arith.cmpi sge, %2, %5 : index
      "attn.yield"(%6) : (i1) -> ()
    }) : () -> ()
    "attn.row"() ({
    ^bb0(%s: f32, %b: index, %h: index, %q_idx: index):
      "attn.yield"(%s) : (f32) -> ()
    }) : () -> ()
  }) {outputs = []} : (tensor<?x?x?x8xf32>, tensor<?x?x?x8xf32>, tensor<?x?x?x8xf32>) -> tensor<?x?x?x8xf32>
  return %o : tensor<?x?x?x8xf32>
}
