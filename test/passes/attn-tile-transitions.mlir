// States pass between segments of a delta rule as products with matrices: a program has columns of the state.
// RUN: attn-opt %s -p 'attn-tile,canonicalize,cse' | FileCheck %s

!s = tensor<?x?x16x64xf32>
!like = tensor<?x?x?x8xf16>

// CHECK-LABEL: func.func @scan(
// CHECK-SAME:    block_kv = 32 : i64, block_q = 16 : i64, blocks = 2 : i64, {{.*}}grid = "chunks", outputs = ["store", "store"], over = 1 : i64
// CHECK:         %[[FIRST:.*]] = arith.muli %{{.*}}, %c32
// CHECK:         %[[ADDED:.*]] = memref.subview %{{.*}}[0, 0, 0, %[[FIRST]]]
// CHECK:         %[[MATRICES:.*]] = memref.subview %{{.*}}[0, 0, 0, 0] {{.*}} to memref<?x?x16x16xf32
// CHECK:         %[[LAST:.*]] = scf.for {{.*}} iter_args(%[[STATE:.*]] = %{{.*}}) -> (tensor<16x32xf32>)
// CHECK:           "tile.store"(%[[STATE]]
// CHECK:           %[[MATRIX:.*]] = "tile.load"(%[[MATRICES]]
// CHECK:           %[[PASSED:.*]] = "tile.dot"(%[[MATRIX]], %[[STATE]])
// CHECK:           "tile.load"(%[[ADDED]]
// CHECK:           arith.addf
// CHECK:         "tile.store"(%[[LAST]]
func.func @scan(%states: !s, %like: !like, %initial: !s, %matrices: !s) -> (!s, !s) {
  %before, %final = "attn.transition_scan"(%states, %like, %initial, %matrices) {segment = 32 : i64, rows = 16 : i64, direction = "backward", operandSegmentSizes = array<i32: 1, 1, 1, 1>}
    : (!s, !like, !s, !s) -> (!s, !s)
  return %before, %final : !s, !s
}

// Columns of the identity are what a state starts with.
// RUN: attn-opt %inputs/linear/gated-delta.mlir -p 'attn-split-sequences{segment=32},attn-outline{keep-hosts=false},attn-chunk-rewrite{chunk=16},attn-tile,canonicalize,cse' | FileCheck %s --check-prefix=IDENTITY

// IDENTITY-LABEL: func.func @attention_2_linear_attention(
// IDENTITY:         %[[START:.*]] = "tile.map"(%c16, %c8)
// IDENTITY-NEXT:    ^bb0(%[[I:.*]]: index, %[[J:.*]]: index):
// IDENTITY-NEXT:      %[[COLUMN:.*]] = arith.addi %[[J]], %c8
// IDENTITY-NEXT:      %[[SAME:.*]] = arith.cmpi eq, %[[I]], %[[COLUMN]]
// IDENTITY-NEXT:      %[[X:.*]] = arith.select %[[SAME]], %cst{{.*}}, %cst
// IDENTITY:         scf.for {{.*}} iter_args(%{{.*}} = %[[START]])
