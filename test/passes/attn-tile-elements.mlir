// RUN: attn-opt %s -p 'attn-tile-sums{block-q=16},canonicalize,cse' --split-input-file | FileCheck %s
// RUN: attn-opt %s -p 'cpu-numerics,attn-tile-sums{block-q=16},canonicalize,cse' --split-input-file | FileCheck %s --check-prefix SLOTS

// Elements: blocks of rows; collected weights are stored, scattered ones added, by one program after the other.

!t = tensor<?x?x?x8xf16>

// CHECK-LABEL: func.func @elements(
// CHECK-SAME:    %[[TABLE:[^:]*]]: memref<?xf32, {{[^>]*>>}}, %[[X:[^:]*]]: memref<?x?x?x8xf16, {{[^>]*>>}}, %[[OUT:[^:]*]]: memref<?x?x?x8xf16, {{[^>]*>>}}, %[[SUM:[^:]*]]: memref<?x?x?x?xf32, {{[^>]*>>}})
// CHECK-SAME:    grid = "elements", outputs = ["store", "scatter"], over = 1 : i64, score = f32, serial = true
// CHECK:         %[[BLOCK:.*]] = "tile.program_id"() {axis = 0 : i64}
// CHECK:         %[[BEGIN:.*]] = arith.muli %[[BLOCK]], %c16 : index
// CHECK:         %[[TILE:.*]] = "tile.map"(%c16, %c8) ({
// CHECK-NEXT:    ^bb0(%[[I:.*]]: index, %[[D:.*]]: index):
// CHECK:           %[[ROW:.*]] = arith.addi %[[BEGIN]], %[[I]]
// CHECK-NEXT:      %[[AT:.*]] = arith.minsi %[[ROW]]
// CHECK-NEXT:      memref.load %[[X]][%{{.*}}, %{{.*}}, %[[AT]], %[[D]]]
// CHECK:         "tile.store"(%[[TILE]], %[[OUT]], %{{.*}}, %{{.*}}, %[[BEGIN]], %[[COUNT:[^)]*]])
// CHECK:         "tile.scatter_add"(%[[SUM]], %[[COUNT]], %c8) ({
// CHECK:           "tile.scatter_yield"(%{{.*}}, %true, %c0, %

// With `slots`, every block of rows adds in slots of its own; programs meet unless an index of the read keeps them apart.
// SLOTS-LABEL: func.func @elements(
// SLOTS-SAME:    disjoint = {{\[}}[], [false, false, false]], grid = "elements"
// SLOTS-SAME:    serial = false
// SLOTS:         %[[BLOCK:.*]] = "tile.program_id"() {axis = 0 : i64}
// SLOTS:         "tile.scatter_yield"(%{{.*}}, %true, %[[BLOCK]], %
func.func @elements(%table: tensor<?xf32>, %x: !t) -> (!t, tensor<?xf32>) {
  %w = "attn.elements"(%x) ({
    "attn.element"() ({
    ^bb0(%b: index, %h: index, %i: index, %d: index):
      %0 = tensor.extract %x[%b, %h, %i, %d] : !t
      %1 = arith.extf %0 : f16 to f32
      "attn.yield"(%1) : (f32) -> ()
    }) : () -> ()
  }) : (!t) -> none
  %r = "attn.collect"(%w) {weight = 0} : (none) -> !t
  %s = "attn.scatter"(%w, %table) ({
  ^bb0(%b: index, %h: index, %i: index, %d: index):
    "attn.yield"(%d) : (index) -> ()
  }) {weight = 0} : (none, tensor<?xf32>) -> tensor<?xf32>
  return %r, %s : !t, tensor<?xf32>
}

// -----

// Products of rows: a sum along the columns.

!t = tensor<?x?x?x8xf16>

// CHECK-LABEL: func.func @row_dot(
// CHECK-SAME:    grid = "rows", outputs = ["store"], over = 0 : i64, score = f32
// CHECK:         "tile.load"{{.*}} -> tensor<16x8xf16>
// CHECK:         "tile.load"{{.*}} -> tensor<16x8xf16>
// CHECK:         %[[SUM:.*]] = "tile.map"
// CHECK:           arith.mulf %{{.*}} : f32
// CHECK:         reductions = ["sum"]
// CHECK:         "tile.store"(%[[SUM]]
func.func @row_dot(%a: !t, %b: !t) -> tensor<?x?x?xf32> {
  %r = "attn.row_dot"(%a, %b) : (!t, !t) -> tensor<?x?x?xf32>
  return %r : tensor<?x?x?xf32>
}
