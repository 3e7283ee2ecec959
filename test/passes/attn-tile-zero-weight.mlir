// An attention that is wanted for its row outputs only: nothing is summed, v is not read, o is zero.
// RUN: attn-opt %s -p 'attn-online-rewrite,attn-guard-empty-rows,attn-tile,canonicalize,cse' | FileCheck %s

// CHECK-LABEL: func.func @attention(
// CHECK-DAG:     %[[ZERO:[a-z0-9_]+]] = arith.constant 0.000000e+00 : f32
// CHECK:         "tile.load"(%q,
// CHECK-NOT:     "tile.fill"
// CHECK:         scf.for {{.*}} iter_args(%[[SUM:[a-z0-9_]+]] = %{{[a-z0-9_#]+}}) -> (tensor<64xf32>)
// CHECK:           "tile.load"(%k,
// CHECK-NEXT:      "tile.dot"
// CHECK-NOT:       "tile.load"
// CHECK-NOT:       "tile.dot
// CHECK:           scf.yield
// CHECK:         %[[O:[0-9]+]] = "tile.map"
// CHECK:           "tile.yield"(%[[ZERO]])
// CHECK:         "tile.store"(%[[O]], %o,
// CHECK:         "tile.store"(%{{.*}}, %sum,
func.func @attention(%q: tensor<?x?x?x8xf32>, %k: tensor<?x?x?x8xf32>, %v: tensor<?x?x?x8xf32>) -> (tensor<?x?x?x8xf32>, tensor<?x?x?xf32>) {
  %o, %sum = "attn.attention"(%q, %k, %v) ({
    "attn.row"() ({
    ^bb0(%s: f32, %b: index, %h: index, %q_idx: index):
      %sum = "attn.reduce"(%s) {kind = "sum"} : (f32) -> f32 loc("sum")
      %zero = arith.constant 0.0 : f32
      "attn.yield"(%zero, %sum) : (f32, f32) -> ()
    }) : () -> ()
  }) {outputs = ["sum"]} : (tensor<?x?x?x8xf32>, tensor<?x?x?x8xf32>, tensor<?x?x?x8xf32>) -> (tensor<?x?x?x8xf32>, tensor<?x?x?xf32>)
  return %o, %sum : tensor<?x?x?x8xf32>, tensor<?x?x?xf32>
}
