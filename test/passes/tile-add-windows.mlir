// Sums scattered with the row and the column become sums of tiles, over windows or diagonals; others stay.
// RUN: attn-opt %s -p 'tile-add-windows,canonicalize,cse' | FileCheck %s

// CHECK-LABEL: func.func @sums(
// CHECK-SAME:    %[[BIAS:[^:]*]]: memref<?x?x?xf32>, %[[TABLE:[^:]*]]: memref<?x?xf32>, %[[TILE:[^:]*]]: tensor<32x?xf32>,
// CHECK-SAME:    %[[SLOT:[^:]*]]: index, %[[Q:[^:]*]]: index, %[[KV:[^:]*]]: index, %[[ROWS:[^:]*]]: index, %[[COLUMNS:[^:]*]]: index)
// CHECK:         "tile.add_window"(%[[TILE]], %[[BIAS]], %[[ROWS]], %[[COLUMNS]], %[[SLOT]], %[[Q]], %{{[^)]*}})
// CHECK-SAME:    {column_steps = array<i64: 0, 1, 0>, row_steps = array<i64: 0, 0, 1>}
// CHECK:         "tile.add_band"(%[[TILE]], %[[TABLE]], %[[ROWS]], %[[COLUMNS]]) ({
// CHECK-NEXT:    ^bb0(%[[I:.*]]: index, %[[J:.*]]: index):
// CHECK:           %[[APART:.*]] = arith.subi
// CHECK-NEXT:      "tile.yield"(%[[SLOT]], %[[APART]])
// CHECK:         "tile.scatter_add"(%[[TABLE]]
// CHECK:           arith.muli
func.func @sums(%bias: memref<?x?x?xf32>, %table: memref<?x?xf32>, %tile: tensor<32x?xf32>, %slot: index, %q: index, %kv: index, %rows: index, %columns: index) {
  %true = arith.constant true
  %c1 = arith.constant 1 : index
  %last = arith.subi %rows, %c1 : index
  "tile.scatter_add"(%bias, %rows, %columns) ({
  ^bb0(%i: index, %j: index):
    %q_idx = arith.addi %q, %j : index
    %limited = arith.minsi %i, %last : index
    %kv_idx = arith.addi %kv, %limited : index
    %present = arith.cmpi sge, %q_idx, %kv_idx : index
    %x = tensor.extract %tile[%i, %j] : tensor<32x?xf32>
    "tile.scatter_yield"(%x, %present, %slot, %q_idx, %kv_idx) : (f32, i1, index, index, index) -> ()
  }) : (memref<?x?x?xf32>, index, index) -> ()
  "tile.scatter_add"(%table, %rows, %columns) ({
  ^bb0(%i: index, %j: index):
    %q_idx = arith.addi %q, %j : index
    %kv_idx = arith.addi %kv, %i : index
    %apart = arith.subi %q_idx, %kv_idx : index
    %x = tensor.extract %tile[%i, %j] : tensor<32x?xf32>
    "tile.scatter_yield"(%x, %true, %slot, %apart) : (f32, i1, index, index) -> ()
  }) : (memref<?x?xf32>, index, index) -> ()
  "tile.scatter_add"(%table, %rows, %columns) ({
  ^bb0(%i: index, %j: index):
    %x = tensor.extract %tile[%i, %j] : tensor<32x?xf32>
    %place = arith.muli %i, %j : index
    "tile.scatter_yield"(%x, %true, %slot, %place) : (f32, i1, index, index) -> ()
  }) : (memref<?x?xf32>, index, index) -> ()
  return
}
