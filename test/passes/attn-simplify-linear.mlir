// Mods of linear attention are simplified like those of attention; what changes nothing goes.
// RUN: attn-opt %s -p 'attn-simplify' | FileCheck %s

// CHECK:      "attn.linear_attention"
// CHECK-NOT:    attn.query
// CHECK-NOT:    attn.decay
// CHECK-NOT:    attn.result
// CHECK:        "attn.value"() ({
// CHECK-NEXT:   ^bb0(%[[X:.*]]: f32, %{{.*}}: index, %{{.*}}: index, %{{.*}}: index, %{{.*}}: index):
// CHECK-NEXT:     %[[QUARTER:.*]] = arith.constant 2.500000e-01 : f32
// CHECK-NEXT:     %[[Y:.*]] = arith.mulf %[[X]], %[[QUARTER]] : f32
// CHECK-NEXT:     "attn.yield"(%[[Y]])
func.func @attention(%q: tensor<?x?x?x16xf32>, %k: tensor<?x?x?x16xf32>, %v: tensor<?x?x?x8xf32>, %decay: tensor<?x?x?xf32>) -> tensor<?x?x?x8xf32> {
  %o = "attn.linear_attention"(%q, %k, %v, %decay) ({
    "attn.query"() ({
    ^bb0(%x: f32, %b: index, %h: index, %t: index, %d: index):
      %one = arith.constant 1.0 : f32
      %y = arith.mulf %x, %one : f32
      "attn.yield"(%y) : (f32) -> ()
    }) : () -> ()
    "attn.decay"() ({
    ^bb0(%x: f32, %b: index, %h: index, %t: index, %d: index):
      "attn.yield"(%x) : (f32) -> ()
    }) : () -> ()
    "attn.result"() ({
    ^bb0(%x: f32, %b: index, %h: index, %t: index, %d: index):
      %one = arith.constant 1.0 : f32
      %y = arith.mulf %x, %one : f32
      "attn.yield"(%y) : (f32) -> ()
    }) : () -> ()
    "attn.value"() ({
    ^bb0(%x: f32, %b: index, %h: index, %t: index, %d: index):
      %four = arith.constant 4.0 : f32
      %y = arith.divf %x, %four : f32
      "attn.yield"(%y) : (f32) -> ()
    }) : () -> ()
  }) {heads = 2 : i64, direction = "forward", channels = "none", state = "kv", outputs = [], operandSegmentSizes = array<i32: 1, 1, 1, 1, 0, 0, 0>, resultSegmentSizes = array<i32: 1, 0, 0, 0, 0>}
    : (tensor<?x?x?x16xf32>, tensor<?x?x?x16xf32>, tensor<?x?x?x8xf32>, tensor<?x?x?xf32>) -> tensor<?x?x?x8xf32>
  return %o : tensor<?x?x?x8xf32>
}
