// Two outputs have adjoints of their own; what both say of a score adds up to one weight, and dv sums rows of both.
// RUN: attn-opt %inputs/two-outputs.mlir -p 'attn-differentiate{functions=fwd+bwd+jvp+bwd2 only=true residual=true}' | FileCheck %s

// Each output that a gradient is multiplied with has its residual.
// CHECK-LABEL: @attention_fwd(
// CHECK:         %[[O:.*]]:4 = "attn.attention"
// CHECK:         %[[O1:.*]] = "attn.output"(%[[O]]#0) {index = 1 : i64}
// CHECK-NEXT:    %[[REST:.*]] = "attn.residual"(%[[O]]#0) :
// CHECK-NEXT:    %[[REST1:.*]] = "attn.residual"(%[[O]]#0) {index = 1 : i64}
// CHECK-NEXT:    return %[[O]]#0, %[[O1]], %[[O]]#1, %[[O]]#2, %[[O]]#3, %[[REST]], %[[REST1]]

// CHECK-LABEL: @attention_bwd(
// CHECK-SAME:    %o: {{.*}}, %o1: {{.*}}, %row_lse: {{.*}}, %o_residual: {{.*}}, %o1_residual: {{.*}}, %do: {{.*}}, %do1: {{.*}}, %d_lse:
// CHECK-DAG:     "attn.row_dot"(%do, %o, %o_residual)
// CHECK-DAG:     "attn.row_dot"(%do1, %o1, %o1_residual)
// CHECK:         %[[PAIRS:.*]] = "attn.pairs"
// CHECK-NEXT:      "attn.product"(%q, %k)
// CHECK-NEXT:      "attn.product"(%do, %v)
// CHECK-NEXT:      "attn.product"(%do1, %v)
// CHECK-NOT:     "attn.pairs"
// CHECK:         %[[DV:.*]] = "attn.key_sum"(%[[PAIRS]], %do, %do1) {weights = array<i64: 0, 1>}
// CHECK-NEXT:    %[[DQ:.*]] = "attn.query_sum"(%[[PAIRS]], %k) {weights = array<i64: 2>}
// CHECK-NEXT:    %[[DK:.*]] = "attn.key_sum"(%[[PAIRS]], %q) {weights = array<i64: 2>}
// CHECK-NEXT:    return %[[DQ]], %[[DK]], %[[DV]]

// Each output comes with its tangent, then the row outputs, then theirs.
// CHECK-LABEL: @attention_jvp(
// CHECK:         %[[T:.*]]:3 = "attn.attention"
// CHECK:         %[[DOT:.*]] = "attn.output"(%[[T]]#0) {index = 1 : i64}
// CHECK-NEXT:    %[[SECOND:.*]] = "attn.output"(%[[T]]#0) {index = 2 : i64}
// CHECK-NEXT:    %[[SECOND_DOT:.*]] = "attn.output"(%[[T]]#0) {index = 3 : i64}
// CHECK-NEXT:    return %[[T]]#0, %[[DOT]], %[[SECOND]], %[[SECOND_DOT]], %[[T]]#1, %[[T]]#2

// CHECK-LABEL: @attention_bwd2(
// CHECK-DAG:     %[[BY_DO:.*]] = "attn.query_sum"(%{{.*}}, %dd_v, %v) {weights = array<i64: 0, 1>}
// CHECK-DAG:     %[[BY_DO1:.*]] = "attn.query_sum"(%{{.*}}, %dd_v, %v) {weights = array<i64: 2, 3>}
// CHECK:         return %{{.*}}, %{{.*}}, %{{.*}}, %[[BY_DO]], %[[BY_DO1]], %{{.*}} :
