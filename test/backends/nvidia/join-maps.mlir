// RUN: attn-opt %s -p nvidia-join-maps --split-input-file | FileCheck %s

// A tile and its residual need the same exponential: one map makes both.
// CHECK-LABEL: func.func @residual(
// CHECK:         scf.for
// CHECK:           %[[BOTH:.*]]:2 = "tile.map"
// CHECK:             %[[DECAY:.*]] = math.exp2
// CHECK-NOT:         math.exp2
// CHECK:             "tile.yield"(%{{.*}}, %{{.*}})
// CHECK:           "tile.store"(%[[BOTH]]#0,
// CHECK-NOT:       "tile.map"
// CHECK:           "tile.store"(%[[BOTH]]#1,
func.func @residual(%x: tensor<32x32xf32>, %out: memref<?x?x?x32xbf16>, %rest: memref<?x?x?x32xbf16>, %end: index) {
  %c0 = arith.constant 0 : index
  %c32 = arith.constant 32 : index
  scf.for %at = %c0 to %end step %c32 {
    %high = "tile.map"(%c32, %c32) ({
    ^bb0(%i: index, %j: index):
      %a = tensor.extract %x[%i, %j] : tensor<32x32xf32>
      %e = math.exp2 %a : f32
      %h = arith.truncf %e : f32 to bf16
      "tile.yield"(%h) {operandSegmentSizes = array<i32: 1, 0>} : (bf16) -> ()
    }) {reductions = [], resultSegmentSizes = array<i32: 1, 0>} : (index, index) -> tensor<32x32xbf16>
    "tile.store"(%high, %out, %c0, %c0, %at, %c32) : (tensor<32x32xbf16>, memref<?x?x?x32xbf16>, index, index, index, index) -> ()
    %low = "tile.map"(%c32, %c32) ({
    ^bb0(%i: index, %j: index):
      %a = tensor.extract %x[%i, %j] : tensor<32x32xf32>
      %e = math.exp2 %a : f32
      %h = arith.truncf %e : f32 to bf16
      %w = arith.extf %h : bf16 to f32
      %r = arith.subf %e, %w : f32
      %l = arith.truncf %r : f32 to bf16
      "tile.yield"(%l) {operandSegmentSizes = array<i32: 1, 0>} : (bf16) -> ()
    }) {reductions = [], resultSegmentSizes = array<i32: 1, 0>} : (index, index) -> tensor<32x32xbf16>
    "tile.store"(%low, %rest, %c0, %c0, %at, %c32) : (tensor<32x32xbf16>, memref<?x?x?x32xbf16>, index, index, index, index) -> ()
  } {nvidia.once}
  return
}

// -----

// Not where the later map reads what is made after the earlier one, and not where nothing is shared.
// CHECK-LABEL: func.func @apart(
// CHECK:           "tile.map"
// CHECK:           "tile.cumsum"
// CHECK:           "tile.map"
// CHECK:           "tile.map"
func.func @apart(%x: tensor<32x32xf32>, %out: memref<?x?x?x32xf32>, %end: index) {
  %c0 = arith.constant 0 : index
  %c32 = arith.constant 32 : index
  scf.for %at = %c0 to %end step %c32 {
    %first = "tile.map"(%c32, %c32) ({
    ^bb0(%i: index, %j: index):
      %a = tensor.extract %x[%i, %j] : tensor<32x32xf32>
      %e = math.exp2 %a : f32
      "tile.yield"(%e) {operandSegmentSizes = array<i32: 1, 0>} : (f32) -> ()
    }) {reductions = [], resultSegmentSizes = array<i32: 1, 0>} : (index, index) -> tensor<32x32xf32>
    %late = "tile.cumsum"(%first) {reverse = false} : (tensor<32x32xf32>) -> tensor<32x32xf32>
    %second = "tile.map"(%c32, %c32) ({
    ^bb0(%i: index, %j: index):
      %a = tensor.extract %x[%i, %j] : tensor<32x32xf32>
      %e = math.exp2 %a : f32
      %b = tensor.extract %late[%i, %j] : tensor<32x32xf32>
      %s = arith.mulf %e, %b : f32
      "tile.yield"(%s) {operandSegmentSizes = array<i32: 1, 0>} : (f32) -> ()
    }) {reductions = [], resultSegmentSizes = array<i32: 1, 0>} : (index, index) -> tensor<32x32xf32>
    %third = "tile.map"(%c32, %c32) ({
    ^bb0(%i: index, %j: index):
      %a = tensor.extract %x[%i, %j] : tensor<32x32xf32>
      %n = arith.negf %a : f32
      %e = math.exp2 %n : f32
      "tile.yield"(%e) {operandSegmentSizes = array<i32: 1, 0>} : (f32) -> ()
    }) {reductions = [], resultSegmentSizes = array<i32: 1, 0>} : (index, index) -> tensor<32x32xf32>
    "tile.store"(%second, %out, %c0, %c0, %at, %c32) : (tensor<32x32xf32>, memref<?x?x?x32xf32>, index, index, index, index) -> ()
    "tile.store"(%third, %out, %c0, %c0, %at, %c32) : (tensor<32x32xf32>, memref<?x?x?x32xf32>, index, index, index, index) -> ()
  } {nvidia.once}
  return
}

// -----

// Pairs of two products weighted alike: a map makes tiles of one type, so that what one of them rounds is rounded after it.
// CHECK-LABEL: func.func @rounded(
// CHECK:           %[[BOTH:.*]]:2 = "tile.map"
// CHECK:             math.exp2
// CHECK-NOT:         math.exp2
// CHECK:             (index, index) -> (tensor<32x32xf32>, tensor<32x32xf32>)
// CHECK:           %[[NARROW:.*]] = "tile.map"
// CHECK:             tensor.extract %[[BOTH]]#1
// CHECK:             arith.truncf
// CHECK:           "tile.store"(%[[BOTH]]#0,
// CHECK:           "tile.store"(%[[NARROW]],
func.func @rounded(%x: tensor<32x32xf32>, %y: tensor<32x32xf32>, %out: memref<?x?x?x32xf32>, %rest: memref<?x?x?x32xbf16>, %end: index) {
  %c0 = arith.constant 0 : index
  %c32 = arith.constant 32 : index
  scf.for %at = %c0 to %end step %c32 {
    %first = "tile.map"(%c32, %c32) ({
    ^bb0(%i: index, %j: index):
      %a = tensor.extract %x[%i, %j] : tensor<32x32xf32>
      %e = math.exp2 %a : f32
      "tile.yield"(%e) {operandSegmentSizes = array<i32: 1, 0>} : (f32) -> ()
    }) {reductions = [], resultSegmentSizes = array<i32: 1, 0>} : (index, index) -> tensor<32x32xf32>
    "tile.store"(%first, %out, %c0, %c0, %at, %c32) : (tensor<32x32xf32>, memref<?x?x?x32xf32>, index, index, index, index) -> ()
    %second = "tile.map"(%c32, %c32) ({
    ^bb0(%i: index, %j: index):
      %a = tensor.extract %x[%i, %j] : tensor<32x32xf32>
      %b = tensor.extract %y[%i, %j] : tensor<32x32xf32>
      %e = math.exp2 %a : f32
      %p = arith.mulf %b, %e : f32
      %h = arith.truncf %p : f32 to bf16
      "tile.yield"(%h) {operandSegmentSizes = array<i32: 1, 0>} : (bf16) -> ()
    }) {reductions = [], resultSegmentSizes = array<i32: 1, 0>} : (index, index) -> tensor<32x32xbf16>
    "tile.store"(%second, %rest, %c0, %c0, %at, %c32) : (tensor<32x32xbf16>, memref<?x?x?x32xbf16>, index, index, index, index) -> ()
  } {nvidia.once}
  return
}
