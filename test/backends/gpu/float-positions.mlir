// Distances are differences of floats: the column's index is converted alone, the rest once a row.
// RUN: attn-opt %inputs/alibi-causal-softmax.mlir -p 'attn-simplify,attn-resolve-masks,attn-online-rewrite,attn-tile{block-q=128 block-kv=128},canonicalize,cse,gpu-float-positions,canonicalize' | FileCheck %s
// RUN: attn-opt %s -p 'gpu-float-positions' | FileCheck %s --check-prefix=KEPT

// CHECK:         ^bb0(%[[I:.*]]: index, %[[J:.*]]: index):
// CHECK:           %[[COLUMN:.*]] = arith.index_cast %[[J]] : index to i64
// CHECK-NEXT:      %[[A:.*]] = arith.sitofp %[[COLUMN]] : i64 to f32
// CHECK-NEXT:      %[[REST:.*]] = arith.subi %[[BEGIN:.*]], %[[ROW:.*]] : index
// CHECK-NEXT:      %[[CAST:.*]] = arith.index_cast %[[REST]] : index to i64
// CHECK-NEXT:      %[[B:.*]] = arith.sitofp %[[CAST]] : i64 to f32
// CHECK-NEXT:      %[[DISTANCE:.*]] = arith.addf %[[A]], %[[B]] : f32
// CHECK-NEXT:      arith.mulf %{{.*}}, %[[DISTANCE]]

// A captured number may be too large to be exact in f32.
// KEPT-LABEL:  func.func @captured(
// KEPT:          %[[SUM:.*]] = arith.addi %{{.*}}, %{{.*}} : index
// KEPT-NEXT:     %[[CAST:.*]] = arith.index_cast %[[SUM]] : index to i64
// KEPT-NEXT:     arith.sitofp %[[CAST]] : i64 to f32
func.func @captured(%n: index, %rows: index, %columns: index) -> (tensor<128x64xf32>) {
  %y = "tile.map"(%rows, %columns) ({
  ^bb0(%i: index, %j: index):
    %row = arith.muli %i, %n : index
    %sum = arith.addi %row, %j : index
    %cast = arith.index_cast %sum : index to i64
    %x = arith.sitofp %cast : i64 to f32
    "tile.yield"(%x) {operandSegmentSizes = array<i32: 1, 0>} : (f32) -> ()
  }) {reductions = [], resultSegmentSizes = array<i32: 1, 0>} : (index, index) -> tensor<128x64xf32>
  return %y : tensor<128x64xf32>
}
