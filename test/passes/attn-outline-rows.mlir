// Rows divided by the root of their sum of squares: with `join-rows` the sums belong to the elements of the same rows, and one kernel reads x.
// RUN: attn-opt %s -p 'attn-outline{join-rows=true}' --split-input-file | FileCheck %s
// RUN: attn-opt %s -p 'attn-outline{join-rows=true keep-hosts=false},attn-tile{block-q=16},canonicalize,cse' --split-input-file | FileCheck %s --check-prefix=TILE
// RUN: attn-opt %s -p attn-outline --split-input-file | FileCheck %s --check-prefix=APART

!x = tensor<?x?x?x8xf32>
!rows = tensor<?x?x?xf32>

// APART:       func.func private @joined_0_row_dot(
// APART:       func.func private @joined_1_elements(

// CHECK-LABEL: func.func @joined(
// CHECK:         %[[SQUARES:.*]] = "attn.row_dot"(%arg0, %arg0)
// CHECK:         %[[MADE:.*]] = "attn.elements"(%arg0)
// CHECK:         %[[UNIT:.*]] = "attn.collect"(%[[MADE]])
// CHECK:         return %[[UNIT]], %[[SQUARES]]

// TILE-LABEL:  func.func @joined(
// TILE:          %[[TOTAL:.*]] = "tile.map"(
// TILE:          reductions = ["sum"]
// TILE:          "tile.map"(
// TILE:            tensor.extract %[[TOTAL]][
// TILE:            memref.load %arg0
// TILE:            math.rsqrt
// TILE:          "tile.store"({{.*}} : (tensor<16x8xf32>
// TILE:          "tile.store"(%[[TOTAL]],
func.func @joined(%x: !x) -> (!x, !rows) {
  %squares = "attn.row_dot"(%x, %x) : (!x, !x) -> !rows
  %weights = "attn.elements"(%x) ({
    "attn.element"() ({
    ^bb0(%b: index, %h: index, %i: index, %d: index):
      %value = tensor.extract %x[%b, %h, %i, %d] : !x
      %square = tensor.extract %squares[%b, %h, %i] : !rows
      %length = math.rsqrt %square : f32
      %unit = arith.mulf %value, %length : f32
      "attn.yield"(%unit) : (f32) -> ()
    }) : () -> ()
  }) : (!x) -> none
  %unit = "attn.collect"(%weights) {weight = 0 : i64} : (none) -> !x
  return %unit, %squares : !x, !rows
}

// -----

// Sums that are read at another row stay a kernel of their own.

!x = tensor<?x?x?x8xf32>
!rows = tensor<?x?x?xf32>

// CHECK:       func.func private @before_0_row_dot(
// CHECK:       func.func private @before_1_elements(
func.func @before(%x: !x) -> !x {
  %squares = "attn.row_dot"(%x, %x) : (!x, !x) -> !rows
  %weights = "attn.elements"(%x) ({
    "attn.element"() ({
    ^bb0(%b: index, %h: index, %i: index, %d: index):
      %first = arith.constant 0 : index
      %value = tensor.extract %x[%b, %h, %i, %d] : !x
      %square = tensor.extract %squares[%b, %h, %first] : !rows
      %unit = arith.mulf %value, %square : f32
      "attn.yield"(%unit) : (f32) -> ()
    }) : () -> ()
  }) : (!x) -> none
  %unit = "attn.collect"(%weights) {weight = 0 : i64} : (none) -> !x
  return %unit : !x
}
