// RUN: attn-opt %s -p attn-outline --split-input-file | FileCheck %s

// The shapes of what a linear attention makes: of the operand that has all heads, of states, of sequences.

!q = tensor<?x?x?x16xf32>
!v = tensor<?x?x?x8xf32>
!g = tensor<?x?x?xf32>

// CHECK:       func.func private @states_shapes(%{{.*}}: {{.*}}, %{{.*}}: {{.*}}, %[[V:[a-z0-9]+]]: tensor<?x?x?x8xf32>, %{{.*}}: {{.*}}, %{{.*}}: {{.*}}, %[[OFFSETS:[a-z0-9]+]]: tensor<?xi32>)
// CHECK:         %[[B:.*]] = tensor.dim %[[V]], %c0
// CHECK:         %[[H:.*]] = tensor.dim %[[V]], %c1
// CHECK:         %[[T:.*]] = tensor.dim %[[V]], %c2
// CHECK:         %[[N:.*]] = tensor.dim %[[OFFSETS]], %c0
// CHECK:         %[[SEQUENCES:.*]] = arith.subi %[[N]], %c1
// CHECK:         %[[WHOLE:.*]] = arith.floordivsi %[[T]], %c256
// CHECK:         %[[ALL:.*]] = arith.addi %[[N]], %[[WHOLE]]
// CHECK:         %[[COUNT:.*]] = arith.subi %[[ALL]], %c1
// CHECK:         %[[ROWS:.*]] = arith.muli %[[COUNT]], %c16
// CHECK:         return %[[B]], %[[H]], %[[T]], %c8, %[[SEQUENCES]], %[[H]], %c16, %c8, %[[B]], %[[H]], %[[T]], %[[B]], %[[H]], %[[ROWS]], %c8
// CHECK-LABEL: func.func @states(
// CHECK-SAME:    shapes = @states_shapes
func.func @states(%q: !q, %k: !q, %v: !v, %decay: !g, %factor: !v, %offsets: tensor<?xi32>) -> (!v, !v, !g, !v) {
  %o, %final, %products, %states = "attn.linear_attention"(%q, %k, %v, %decay, %factor, %offsets) ({
  ^bb0:
  }) {heads = 2 : i64, direction = "forward", channels = "none", state = "kv", outputs = ["final_state", "products", "states"], interval = 256 : i64,
      operandSegmentSizes = array<i32: 1, 1, 1, 1, 0, 1, 1>, resultSegmentSizes = array<i32: 1, 1, 1, 1, 0>}
    : (!q, !q, !v, !g, !v, tensor<?xi32>) -> (!v, !v, !g, !v)
  return %o, %final, %products, %states : !v, !v, !g, !v
}

// -----

// A host: heads of q and k are summed up, decays have those of the products.

!q = tensor<?x?x?x16xf32>
!v = tensor<?x?x?x8xf32>
!g = tensor<?x?x?xf32>

// CHECK:       func.func private @gradients_0_linear_attention(
// CHECK:       func.func private @gradients_1_head_sum({{.*}}) -> {{.*}} attributes {same = 1 : i64, shapes = @gradients_1_head_sum_shapes}
// CHECK:       func.func private @gradients_2_decay_gradient(
// CHECK-LABEL: func.func @gradients(
// CHECK-SAME:    %[[Q:[^:]*]]: {{.*}}, %[[K:[^:]*]]: {{.*}}, %[[DO:[^:]*]]: tensor<?x?x?x8xf32>, %[[DECAY:[^:]*]]: tensor<?x?x?xf32>
// CHECK-NEXT:    %[[DQ:.*]]:3 = call @gradients_0_linear_attention({{.*}})
// CHECK-NEXT:    %[[SUM:.*]] = call @gradients_1_head_sum(%[[Q]], %[[DQ]]#0)
// CHECK-NEXT:    %[[DG:.*]] = call @gradients_2_decay_gradient(%[[DQ]]#1, %[[DQ]]#2)
func.func @gradients(%q: !q, %k: !v, %do: !v, %decay: !g) -> (!q, !g) {
  %dq, %products, %states = "attn.linear_attention"(%do, %k, %q, %decay, %q) ({
  ^bb0:
  }) {heads = 0 : i64, direction = "forward", channels = "none", state = "vk", outputs = ["products", "states"], interval = 64 : i64,
      operandSegmentSizes = array<i32: 1, 1, 1, 1, 0, 1, 0>, resultSegmentSizes = array<i32: 1, 0, 1, 1, 0>}
    : (!v, !v, !q, !g, !q) -> (!q, !g, !v)
  %sum = "attn.head_sum"(%dq, %q) : (!q, !q) -> !q
  %dg = "attn.decay_gradient"(%products, %products, %states, %states) {interval = 64 : i64, rows = 16 : i64} : (!g, !g, !v, !v) -> !g
  return %sum, %dg : !q, !g
}

// -----

// The gradient of log decays without differences belongs to the backward scan, whose products and states go nowhere else.

!q = tensor<?x?x?x16xf32>
!v = tensor<?x?x?x8xf32>
!g = tensor<?x?x?xf32>

// CHECK:       func.func private @crossing_0_linear_attention(
// CHECK:       func.func private @crossing_1_linear_attention(
// CHECK:         attn.linear_attention
// CHECK:         attn.decay_gradient
// CHECK-LABEL: func.func @crossing(
// CHECK-NEXT:    %[[DQ:.*]]:3 = call @crossing_0_linear_attention(
// CHECK-NEXT:    %[[DK:.*]]:2 = call @crossing_1_linear_attention({{.*}}, %[[DQ]]#1, %[[DQ]]#2)
// CHECK-NEXT:    return %[[DQ]]#0, %[[DK]]#0, %[[DK]]#1
func.func @crossing(%q: !q, %k: !q, %v: !v, %do: !v, %decay: !g) -> (!q, !q, !g) {
  %dq, %a, %s = "attn.linear_attention"(%do, %v, %k, %decay, %q) ({
  ^bb0:
  }) {heads = 0 : i64, crossing, direction = "forward", channels = "none", state = "vk", outputs = ["products", "states"], interval = 64 : i64,
      operandSegmentSizes = array<i32: 1, 1, 1, 1, 0, 1, 0>, resultSegmentSizes = array<i32: 1, 0, 1, 1, 0>}
    : (!v, !v, !q, !g, !q) -> (!q, !g, !v)
  %dk, %b, %e = "attn.linear_attention"(%v, %do, %q, %decay, %k) ({
  ^bb0:
  }) {heads = 1 : i64, crossing, direction = "backward", channels = "none", state = "vk", outputs = ["products", "states"], interval = 64 : i64,
      operandSegmentSizes = array<i32: 1, 1, 1, 1, 0, 1, 0>, resultSegmentSizes = array<i32: 1, 0, 1, 1, 0>}
    : (!v, !v, !q, !g, !q) -> (!q, !g, !v)
  %dg = "attn.decay_gradient"(%a, %b, %s, %e) {crossing, interval = 64 : i64, rows = 16 : i64} : (!g, !g, !v, !v) -> !g
  return %dq, %dk, %dg : !q, !q, !g
}
