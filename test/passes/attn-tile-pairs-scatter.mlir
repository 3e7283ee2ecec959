// RUN: attn-opt %s -p 'attn-resolve-masks,attn-tile{block-q=16 block-kv=32},canonicalize,cse' | FileCheck %s

// Scatters of pairs. By key and head: the weights are summed over the queries first, with whether a query was present at all.
// By query and key: pair by pair. Weights of absent pairs are 0. Programs of other heads have other keys' elements or not.

!t = tensor<?x?x?x8xf32>

// CHECK-LABEL: func.func @scatters(
// CHECK-SAME:    %[[BIAS:[^:]*]]: memref<?x?x?x?xf32, {{[^>]*>>}}, %[[TABLE:[^:]*]]: memref<?x?x?x?x?xf32, {{[^>]*>>}}, %chunk: index)
// CHECK-SAME:    disjoint = {{\[\[}}false, true, false], [true, false, false]], grid = "pairs", outputs = ["scatter", "scatter"]
// CHECK-DAG:     %[[SLOT:.*]] = "tile.program_id"() {axis = 0 : i64}
// CHECK-DAG:     %[[HEAD:.*]] = "tile.program_id"() {axis = 1 : i64}
// CHECK-DAG:     %[[B:.*]] = "tile.program_id"() {axis = 2 : i64}
// CHECK:         scf.for %{{.*}} iter_args(%[[TOTAL:.*]] = %{{.*}}, %[[SEEN:.*]] = %{{.*}}) -> (tensor<16xf32>, tensor<16xf32>)
// CHECK:           %[[W:.*]]:3 = "tile.map"
// CHECK:             %[[KEEP:.*]] = arith.cmpi sge
// CHECK:             %[[WEIGHT:.*]] = arith.select %[[KEEP]], %{{.*}}, %[[ZERO:.*]] : f32
// CHECK:             %[[PRESENT:.*]] = arith.select %[[KEEP]], %{{.*}}, %[[ZERO]] : f32
// CHECK:             "tile.yield"(%[[WEIGHT]], %[[WEIGHT]], %[[PRESENT]])
// CHECK-NEXT:      }) {reductions = ["sum", "max"]
// CHECK:           "tile.scatter_add"(%[[TABLE]], %[[KEYS:[^,]*]], %{{[^)]*}}) ({
// CHECK-NEXT:      ^bb0(%[[I:.*]]: index, %[[J:.*]]: index):
// CHECK:             %[[KEEP_2:.*]] = arith.cmpi sge, %[[Q_IDX:.*]], %[[KV_IDX:.*]] : index
// CHECK-NEXT:        %[[X:.*]] = tensor.extract %[[W]]#0[%[[I]], %[[J]]]
// CHECK-NEXT:        "tile.scatter_yield"(%[[X]], %[[KEEP_2]], %[[SLOT]], %[[B]], %[[HEAD]], %[[KV_IDX]], %[[Q_IDX]])
// CHECK:           "tile.map"(%c16) ({
// CHECK:             arith.addf
// CHECK:             arith.maximumf
// CHECK:         "tile.scatter_add"(%[[BIAS]], %[[KEYS]]) ({
// CHECK:           "tile.scatter_yield"(%{{.*}}, %{{.*}}, %[[SLOT]], %[[B]], %[[HEAD]], %{{.*}}) : (f32, i1, index, index, index, index) -> ()
func.func @scatters(%q: !t, %k: !t, %bias: tensor<?xf32>, %table: tensor<?x?xf32>) -> (tensor<?xf32>, tensor<?x?xf32>) {
  %w = "attn.pairs"() ({
    "attn.product"(%q, %k) : (!t, !t) -> ()
    "attn.mask"() ({
    ^bb0(%b: index, %h: index, %q_idx: index, %kv_idx: index):
      %keep = arith.cmpi sge, %q_idx, %kv_idx : index
      "attn.yield"(%keep) : (i1) -> ()
    }) : () -> ()
    "attn.pair"() ({
    ^bb0(%x: f32, %b: index, %h: index, %q_idx: index, %kv_idx: index):
      "attn.yield"(%x) : (f32) -> ()
    }) : () -> ()
  }) : () -> none
  %dbias = "attn.scatter"(%w, %bias) ({
  ^bb0(%b: index, %h: index, %q_idx: index, %kv_idx: index):
    "attn.yield"(%h) : (index) -> ()
  }) {weight = 0} : (none, tensor<?xf32>) -> tensor<?xf32>
  %dtable = "attn.scatter"(%w, %table) ({
  ^bb0(%b: index, %h: index, %q_idx: index, %kv_idx: index):
    "attn.yield"(%kv_idx, %q_idx) : (index, index) -> ()
  }) {weight = 0} : (none, tensor<?x?xf32>) -> tensor<?x?xf32>
  return %dbias, %dtable : tensor<?xf32>, tensor<?x?xf32>
}
