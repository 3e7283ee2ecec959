// A function may have block sizes of its own, and keeps what a target chose for it.
// RUN: attn-opt %s -p 'attn-tile{block-q=16 block-kv=16}' --split-input-file --verify-diagnostics | FileCheck %s

// CHECK: func.func @delta({{.*}} attributes {tile.choices = {stages = 2 : i64}, tile.kernel = {block_kv = 1 : i64, block_q = 96 : i64
func.func @delta(%a: tensor<?x?x?x32xf32>, %b: tensor<?x?x?x32xf32>) -> tensor<?x?x?xf32>
    attributes {tile.blocks = array<i64: 96, 64>, tile.choices = {stages = 2 : i64}} {
  %d = "attn.row_dot"(%a, %b) : (tensor<?x?x?x32xf32>, tensor<?x?x?x32xf32>) -> tensor<?x?x?xf32>
  return %d : tensor<?x?x?xf32>
}

// -----

// expected-error@+1 {{attn-tile-sums: 'tile.blocks' must be two positive sizes}}
func.func @none(%a: tensor<?x?x?x32xf32>, %b: tensor<?x?x?x32xf32>) -> tensor<?x?x?xf32> attributes {tile.blocks = array<i64: 96>} {
  %d = "attn.row_dot"(%a, %b) : (tensor<?x?x?x32xf32>, tensor<?x?x?x32xf32>) -> tensor<?x?x?xf32>
  return %d : tensor<?x?x?xf32>
}

// -----

!s = tensor<?x?x16x24xf32>
!like = tensor<?x?x?x8xf16>

func.func @columns(%states: !s, %like: !like, %matrices: !s) -> !s attributes {tile.blocks = array<i64: 16, 16>} {
  // expected-error@+1 {{attn-tile-sums: blocks of 16 columns do not divide those of tensor<?x?x16x24xf32>}}
  %before, %final = "attn.transition_scan"(%states, %like, %matrices) {segment = 32 : i64, rows = 16 : i64, direction = "forward", operandSegmentSizes = array<i32: 1, 1, 0, 1>}
    : (!s, !like, !s) -> (!s, !s)
  return %before : !s
}
