// Masked positions of a row with two scores get -inf and 0, where that leaves no trace: not in e s1, but in a sum of s + s1.
// RUN: attn-opt %s -p 'attn-online-rewrite,attn-tile,canonicalize,cse' --split-input-file | FileCheck %s

// CHECK-LABEL: func.func @by_scores(
// CHECK-DAG:     %[[ZERO:[a-z0-9_]+]] = arith.constant 0.000000e+00 : f32
// CHECK-DAG:     %[[NEVER:[a-z0-9_]+]] = arith.constant 0xFF800000 : f32
// CHECK:         %[[PRESENT:[0-9]+]] = arith.cmpi sge
// CHECK-NEXT:    %[[S:[0-9]+]] = arith.select %[[PRESENT]], %{{.*}}, %[[NEVER]]
// CHECK-NEXT:    %[[S1:[0-9]+]] = arith.select %[[PRESENT]], %{{.*}}, %[[ZERO]]
// CHECK-NEXT:    %[[E:[a-z0-9_]+]] = math.exp %[[S]]
// CHECK-NEXT:    %[[TERM:[a-z0-9_]+]] = arith.mulf %[[E]], %[[S1]]
// CHECK-NEXT:    "tile.yield"(%[[E]], %[[TERM]])

// CHECK-LABEL: func.func @by_terms(
// CHECK-DAG:     %[[ZERO:[a-z0-9_]+]] = arith.constant 0.000000e+00 : f32
// CHECK:         %[[PRESENT:[0-9]+]] = arith.cmpi sge
// CHECK:         %[[E:[a-z0-9_]+]] = math.exp
// CHECK-NEXT:    %[[WEIGHT:[0-9]+]] = arith.select %[[PRESENT]], %[[E]], %[[ZERO]]
// CHECK:         %[[BOTH:[0-9]+]] = arith.addf
// CHECK-NEXT:    %[[TERM:[0-9]+]] = arith.select %[[PRESENT]], %[[BOTH]], %[[ZERO]]
// CHECK-NEXT:    "tile.yield"(%[[WEIGHT]], %[[TERM]])
func.func @by_scores(%q: tensor<?x?x?x8xf32>, %k: tensor<?x?x?x8xf32>, %v: tensor<?x?x?x8xf32>) -> (tensor<?x?x?x8xf32>, tensor<?x?x?xf32>) {
  %o, %sum = "attn.attention"(%q, %k, %v) ({
    "attn.product"(%q, %v) : (tensor<?x?x?x8xf32>, tensor<?x?x?x8xf32>) -> ()
    "attn.mask"() ({
    ^bb0(%b: index, %h: index, %q_idx: index, %kv_idx: index):
      %keep = arith.cmpi sge, %q_idx, %kv_idx : index
      "attn.yield"(%keep) : (i1) -> ()
    }) : () -> ()
    "attn.row"() ({
    ^bb0(%s: f32, %s1: f32, %b: index, %h: index, %q_idx: index):
      %e = math.exp %s : f32
      %t = arith.mulf %e, %s1 : f32
      %sum = "attn.reduce"(%t) {kind = "sum"} : (f32) -> f32
      "attn.yield"(%e, %sum) : (f32, f32) -> ()
    }) : () -> ()
  }) {outputs = ["sum"]} : (tensor<?x?x?x8xf32>, tensor<?x?x?x8xf32>, tensor<?x?x?x8xf32>) -> (tensor<?x?x?x8xf32>, tensor<?x?x?xf32>)
  return %o, %sum : tensor<?x?x?x8xf32>, tensor<?x?x?xf32>
}

// -----

func.func @by_terms(%q: tensor<?x?x?x8xf32>, %k: tensor<?x?x?x8xf32>, %v: tensor<?x?x?x8xf32>) -> (tensor<?x?x?x8xf32>, tensor<?x?x?xf32>) {
  %o, %sum = "attn.attention"(%q, %k, %v) ({
    "attn.product"(%q, %v) : (tensor<?x?x?x8xf32>, tensor<?x?x?x8xf32>) -> ()
    "attn.mask"() ({
    ^bb0(%b: index, %h: index, %q_idx: index, %kv_idx: index):
      %keep = arith.cmpi sge, %q_idx, %kv_idx : index
      "attn.yield"(%keep) : (i1) -> ()
    }) : () -> ()
    "attn.row"() ({
    ^bb0(%s: f32, %s1: f32, %b: index, %h: index, %q_idx: index):
      %e = math.exp %s : f32
      %t = arith.addf %s, %s1 : f32
      %sum = "attn.reduce"(%t) {kind = "sum"} : (f32) -> f32
      "attn.yield"(%e, %sum) : (f32, f32) -> ()
    }) : () -> ()
  }) {outputs = ["sum"]} : (tensor<?x?x?x8xf32>, tensor<?x?x?x8xf32>, tensor<?x?x?x8xf32>) -> (tensor<?x?x?x8xf32>, tensor<?x?x?xf32>)
  return %o, %sum : tensor<?x?x?x8xf32>, tensor<?x?x?xf32>
}
