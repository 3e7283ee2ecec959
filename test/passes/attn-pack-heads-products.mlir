// Query tensors of further products are packed as q is: sizes of either are those before packing.
// RUN: attn-opt %s -p 'attn-pack-heads,canonicalize,cse' | FileCheck %s

// CHECK-DAG:   %[[HEADS:[a-z0-9_]+]] = tensor.dim %{{[a-z0-9]+}}, %c1
// CHECK-DAG:   %[[GROUP:[a-z0-9_]+]] = tensor.dim %{{[a-z0-9]+}}, %c2
// CHECK:       %[[ALL:[0-9]+]] = arith.muli %[[HEADS]], %[[GROUP]]
// CHECK-NOT:   tensor.dim
// CHECK:       "attn.product"
// CHECK:       "attn.score"
// CHECK-NEXT:  ^bb0(%{{[a-z0-9]+}}: f32, %{{[a-z0-9]+}}: f32, %{{[a-z0-9]+}}: index, %[[H:[a-z0-9]+]]: index, %[[Q:[a-z0-9]+]]: index,
// CHECK-NEXT:    %[[FIRST:[0-9]+]] = arith.muli %[[H]], %[[GROUP]]
// CHECK-NEXT:    %[[HEAD:[0-9]+]] = arith.addi %[[FIRST]], %[[Q]]
// CHECK-NEXT:    %[[LEFT:[0-9]+]] = arith.subi %[[ALL]], %[[HEAD]]
func.func @attention(%q: tensor<?x?x?x8xf32>, %k: tensor<?x?x?x8xf32>, %q2: tensor<?x?x?x4xf32>, %k2: tensor<?x?x?x4xf32>) -> tensor<?x?x?x8xf32> {
  %c1 = arith.constant 1 : index
  %heads = tensor.dim %q2, %c1 : tensor<?x?x?x4xf32>
  %o = "attn.attention"(%q, %k, %k) ({
    "attn.product"(%q2, %k2) : (tensor<?x?x?x4xf32>, tensor<?x?x?x4xf32>) -> ()
    "attn.score"() ({
    ^bb0(%x: f32, %x2: f32, %b: index, %h: index, %q_idx: index, %kv_idx: index):
      %left = arith.subi %heads, %h : index
      %i = arith.index_cast %left : index to i64
      %f = arith.sitofp %i : i64 to f32
      %y = arith.mulf %x2, %f : f32
      %s = arith.addf %x, %y : f32
      "attn.yield"(%s) : (f32) -> ()
    }) : () -> ()
    "attn.row"() ({
    ^bb0(%s: f32, %b: index, %h: index, %q_idx: index):
      "attn.yield"(%s) : (f32) -> ()
    }) : () -> ()
  }) {outputs = []} : (tensor<?x?x?x8xf32>, tensor<?x?x?x8xf32>, tensor<?x?x?x8xf32>) -> tensor<?x?x?x8xf32>
  return %o : tensor<?x?x?x8xf32>
}
