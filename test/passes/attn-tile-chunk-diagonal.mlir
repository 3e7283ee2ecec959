// What products leave out, and a factor of o's rows behind them.
// RUN: attn-opt %S/../Inputs/linear/diagonal-terms.mlir -p 'attn-chunk-rewrite{chunk=16},attn-tile,canonicalize,cse' | FileCheck %s

// CHECK-LABEL: func.func @attention(
// CHECK-SAME:    %arg5: memref<?x?x?xf32
// CHECK-SAME:    outputs = ["store", "store", "store", "store"]
// CHECK:         %[[HEAD:.*]] = "tile.program_id"() {axis = 1 : i64}
// CHECK:           %[[V:.*]] = "tile.load"(%v,
// CHECK:           %[[FACTOR:.*]] = "tile.load"(%factor,
// CHECK:           %[[OTHERS:.*]] = "tile.dot_rescale"(
// CHECK:           %[[SUMS:.*]] = "tile.map"(%c16, %c16)
// CHECK-DAG:         tensor.extract %[[FACTOR]]
// CHECK-DAG:         tensor.extract %[[OTHERS]]
// CHECK:           reductions = ["sum"]
// CHECK:           %[[PAIRS:.*]] = "tile.map"(%c16, %c16)
// CHECK:             arith.cmpi eq
// CHECK:           reductions = ["sum"]
// CHECK:           %[[DIAGONAL_SUMS:.*]] = "tile.map"(%c16, %c16)
// CHECK:             %[[X:.*]] = tensor.extract %[[FACTOR]]
// CHECK:             %[[E:.*]] = tensor.extract %[[V]]
// CHECK:             %[[PAIR:.*]] = tensor.extract %[[PAIRS]]
// CHECK:             %[[PART:.*]] = arith.mulf %[[PAIR]], %[[E]]
// CHECK:             arith.mulf %[[PART]], %[[X]]
// CHECK:           reductions = ["sum"]
// The head of the factor behind the sums is that of o.
// CHECK:           %[[RESULT:.*]] = "tile.map"(%c16)
// CHECK:             memref.load %arg5[%{{.*}}, %[[HEAD]], %
// CHECK:           %[[ROWS:.*]] = "tile.map"(%c16, %c16)
// CHECK:             %[[OTHER:.*]] = tensor.extract %[[OTHERS]]
// CHECK:             %[[WHOLE:.*]] = arith.addf %[[OTHER]],
// CHECK:             %[[R:.*]] = tensor.extract %[[RESULT]]
// CHECK:             arith.mulf %[[WHOLE]], %[[R]]
// CHECK:           "tile.store"(%[[SUMS]], %products,
// CHECK:           "tile.store"(%[[DIAGONAL_SUMS]], %diagonal,
// CHECK:           "tile.store"(%[[ROWS]], %o,

// Without products, what leaves the state and the weights of pairs have it.
// RUN: attn-opt %s -p 'attn-chunk-rewrite{chunk=16},attn-tile,canonicalize,cse' | FileCheck %s --check-prefix=ALONE
// ALONE:         %[[LEFT:.*]] = "tile.map"(%c16)
// ALONE:           memref.load %arg3
// ALONE-COUNT-2: "tile.dot"
// ALONE:         %[[LEAVE:.*]] = "tile.map"(%c16)
// ALONE:           tensor.extract %[[LEFT]]
// ALONE:         %[[WEIGHTS:.*]] = "tile.map"(%c16, %c16)
// ALONE:           tensor.extract %[[LEFT]]
// ALONE:         %[[O:.*]] = "tile.dot_rescale"(%{{.*}}, %[[LEAVE]], %[[WEIGHTS]],
// ALONE:         "tile.store"(%[[O]], %o,
!t = tensor<?x?x?x16xf32>
func.func @attention(%q: !t, %k: !t, %v: !t, %dt: tensor<?x?x?xf32>) -> !t {
  %o = "attn.linear_attention"(%q, %k, %v) ({
    "attn.result"() ({
    ^bb0(%x: f32, %b: index, %h: index, %t: index, %d: index):
      %e = tensor.extract %dt[%b, %h, %t] : tensor<?x?x?xf32>
      %y = arith.divf %x, %e : f32
      "attn.yield"(%y) : (f32) -> ()
    }) : () -> ()
  }) {heads = 2 : i64, direction = "forward", channels = "none", state = "kv", outputs = [], operandSegmentSizes = array<i32: 1, 1, 1, 0, 0, 0, 0>, resultSegmentSizes = array<i32: 1, 0, 0, 0, 0>}
    : (!t, !t, !t) -> !t
  return %o : !t
}
