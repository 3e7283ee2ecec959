// With whole blocks a program of pairs has one tile of keys, here 128; blocks of queries are parts of a listed one, and begin within the queries.
// RUN: attn-opt %s -p 'attn-tile{block-q=64 block-kv=64 whole=true},canonicalize' | FileCheck %s

!t = tensor<?x?x?x8xf32>

// CHECK:       func.func @pairs(%[[Q:[^:]*]]: {{.*}}, %[[BACK:[^:]*]]: memref<?xi32, {{[^:]*}}, %[[RANGES:[^:]*]]: memref<?x?x?x?xi64
// CHECK-SAME:  block_kv = 32 : i64, block_q = 128 : i64
// CHECK:       %[[ROWS:.*]] = memref.dim %[[Q]], %c2
// CHECK:       memref.load %[[RANGES]]
// CHECK:       scf.for %[[PLACE:.*]] = %{{.*}} to %{{.*}} step %c1
// CHECK:         %[[ENTRY:.*]] = memref.load %[[BACK]][%[[PLACE]]]
// CHECK:         %[[NUMBER:.*]] = arith.index_cast %[[ENTRY]]
// CHECK:         %[[FIRST:.*]] = arith.muli %[[NUMBER]], %c96
// CHECK:         %[[INSIDE:.*]] = arith.minsi %[[FIRST]], %[[ROWS]]
// CHECK:         %[[BEGIN:.*]] = arith.maxsi %[[INSIDE]], %c0
// CHECK:         %[[NEXT:.*]] = arith.addi %[[BEGIN]], %c96
// CHECK:         %[[END:.*]] = arith.minsi %[[NEXT]], %[[ROWS]]
// CHECK:         scf.for %{{.*}} = %[[BEGIN]] to %[[END]] step %c32
func.func @pairs(%q: !t, %k: !t, %back: tensor<?xi32>, %ranges: tensor<?x?x?x?xi64>) -> !t {
  %weights = "attn.pairs"() ({
    "attn.product"(%q, %k) : (!t, !t) -> ()
    "attn.key_lists"(%back, %ranges, %back, %back, %ranges) {block = array<i64: 96, 256, 128>} : (tensor<?xi32>, tensor<?x?x?x?xi64>, tensor<?xi32>, tensor<?xi32>, tensor<?x?x?x?xi64>) -> ()
    "attn.pair"() ({
    ^bb0(%x: f32, %b: index, %h: index, %q_idx: index, %kv_idx: index):
      "attn.yield"(%x) : (f32) -> ()
    }) : () -> ()
  }) : () -> none
  %dk = "attn.key_sum"(%weights, %q) {weights = array<i64: 0>} : (none, !t) -> !t
  return %dk : !t
}
