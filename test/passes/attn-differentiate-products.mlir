// Scores of several products, as of differential attention: each product has gradients of its own tensors.
// RUN: attn-opt %s -p 'attn-differentiate{functions=bwd only=true},canonicalize,cse' | FileCheck %s
// RUN: attn-opt %s -p 'attn-differentiate{functions=bwd wrt=arg3 only=true},canonicalize,cse' | FileCheck %s --check-prefix=ONE
// RUN: attn-run %s -p 'attn-differentiate{functions=fwd+bwd+jvp+bwd2}'

// CHECK-LABEL: @attention_bwd(
// CHECK:       "attn.pairs"
// CHECK-NEXT:    "attn.product"(%q, %k)
// CHECK-NEXT:    "attn.product"(%arg4, %arg3)
// CHECK-NEXT:    "attn.product"(%do, %v)
// CHECK:         "attn.pair"
// CHECK-NEXT:    ^bb0(%x: f32, %q2_k2: f32, %do_v: f32,
// CHECK-DAG:   %[[DQ:[a-z0-9_]+]] = "attn.query_sum"(%[[PAIRS:[0-9]+]], %k)
// CHECK-DAG:   %[[DK:[a-z0-9_]+]] = "attn.key_sum"(%[[PAIRS]], %q)
// CHECK-DAG:   %[[DV:[a-z0-9_]+]] = "attn.key_sum"(%[[PAIRS]], %do)
// CHECK-DAG:   %[[DQ2:[a-z0-9_]+]] = "attn.query_sum"(%[[PAIRS]], %arg3)
// CHECK-DAG:   %[[DK2:[a-z0-9_]+]] = "attn.key_sum"(%[[PAIRS]], %arg4)
// CHECK:       return %[[DQ]], %[[DK]], %[[DV]], %[[DK2]], %[[DQ2]],

// ONE:         "attn.pairs"
// ONE:         %[[DK2:[a-z0-9_]+]] = "attn.key_sum"(%{{.*}}, %arg4)
// ONE-NOT:     attn.{{key|query}}_sum
// ONE:         return %[[DK2]] : tensor<?x?x?x12xf32>
func.func @attention(%q: tensor<?x?x?x8xf32>, %k: tensor<?x?x?x8xf32>, %v: tensor<?x?x?x16xf32>, %k2: tensor<?x?x?x12xf32>, %first: tensor<?x?x?x12xf32>, %q2: tensor<?xf32>) -> tensor<?x?x?x16xf32> {
  %o = "attn.attention"(%q, %k, %v) ({
    "attn.product"(%first, %k2) : (tensor<?x?x?x12xf32>, tensor<?x?x?x12xf32>) -> ()
    "attn.row"() ({
    ^bb0(%s: f32, %s2: f32, %b: index, %h: index, %q_idx: index):
      %m = "attn.reduce"(%s) {kind = "max"} : (f32) -> f32
      %d = arith.subf %s, %m : f32
      %e = math.exp %d : f32
      %l = "attn.reduce"(%e) {kind = "sum"} : (f32) -> f32
      %p = arith.divf %e, %l : f32
      %factor = tensor.extract %q2[%h] : tensor<?xf32>
      %t = math.tanh %s2 : f32
      %p2 = arith.mulf %factor, %t : f32
      %w = arith.subf %p, %p2 : f32
      "attn.yield"(%w) : (f32) -> ()
    }) : () -> ()
  }) {outputs = []} : (tensor<?x?x?x8xf32>, tensor<?x?x?x8xf32>, tensor<?x?x?x16xf32>) -> tensor<?x?x?x16xf32>
  return %o : tensor<?x?x?x16xf32>
}
