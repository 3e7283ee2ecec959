// Products whose elements are only added share an accumulator: tile by tile, and over loops.
// RUN: attn-opt %s -p 'gpu-merge-sums,canonicalize' --split-input-file | FileCheck %s

!tile = tensor<64x64xf16>
!sum = tensor<64x64xf32>
!row = tensor<64xf32>

// CHECK-LABEL: func.func @tiles(
// CHECK:         [[FIRST:%.*]] = "tile.dot"(%arg0, %arg1)
// CHECK:         [[BOTH:%.*]] = "tile.dot_add"([[FIRST]], %arg2, %arg3) {transpose_b = true}
// CHECK:         tensor.extract [[BOTH]]
// CHECK-NOT:     tensor.extract
func.func @tiles(%a: !tile, %b: !tile, %c: !tile, %d: !tile) -> !sum attributes {tile.kernel = {block_q = 64 : i64, block_kv = 64 : i64}} {
  %n = arith.constant 64 : index
  %x = "tile.dot"(%a, %b) {transpose_b = true} : (!tile, !tile) -> !sum
  %y = "tile.dot"(%c, %d) {transpose_b = true} : (!tile, !tile) -> !sum
  %z = "tile.map"(%n, %n) ({
  ^bb0(%i: index, %j: index):
    %ex = tensor.extract %x[%i, %j] : !sum
    %ey = tensor.extract %y[%i, %j] : !sum
    %s = arith.addf %ex, %ey : f32
    %t = arith.mulf %s, %s : f32
    "tile.yield"(%t) {operandSegmentSizes = array<i32: 1, 0>} : (f32) -> ()
  }) {reductions = [], resultSegmentSizes = array<i32: 1, 0>} : (index, index) -> !sum
  return %z : !sum
}

// A loop carries one sum in place of two, which is scaled once.
// CHECK-LABEL: func.func @loop(
// CHECK:         [[ZEROS:%.*]] = "tile.fill"
// CHECK:         scf.for {{.*}} iter_args([[SUM:%.*]] = [[ZEROS]]) -> (tensor<64x64xf32>) {
// CHECK-NEXT:      [[SCALED:%.*]] = "tile.dot_rescale"([[SUM]], %arg0, %arg1, %arg2)
// CHECK-NEXT:      [[BOTH:%.*]] = "tile.dot_add"([[SCALED]], %arg1, %arg3) {transpose_b = false}
// CHECK-NEXT:      scf.yield [[BOTH]]
func.func @loop(%f: !row, %w: !tile, %v: !tile, %u: !tile, %m: index) -> !sum attributes {tile.kernel = {block_q = 64 : i64, block_kv = 64 : i64}} {
  %n = arith.constant 64 : index
  %zero = arith.constant 0 : index
  %none = arith.constant 0.0 : f32
  %start = "tile.fill"(%none) {accumulator = 0 : i64} : (f32) -> !sum
  %other = "tile.fill"(%none) {accumulator = 1 : i64} : (f32) -> !sum
  %r:2 = scf.for %kv = %zero to %m step %n iter_args(%x = %start, %y = %other) -> (!sum, !sum) {
    %p = "tile.dot_rescale"(%x, %f, %w, %v) {transpose_b = false} : (!sum, !row, !tile, !tile) -> !sum
    %q = "tile.dot_rescale"(%y, %f, %w, %u) {transpose_b = false} : (!sum, !row, !tile, !tile) -> !sum
    scf.yield %p, %q : !sum, !sum
  }
  %z = "tile.map"(%n, %n) ({
  ^bb0(%i: index, %j: index):
    %ex = tensor.extract %r#0[%i, %j] : !sum
    %ef = tensor.extract %f[%i] : !row
    %less = arith.subf %ex, %ef : f32
    %ey = tensor.extract %r#1[%i, %j] : !sum
    %s = arith.addf %less, %ey : f32
    "tile.yield"(%s) {operandSegmentSizes = array<i32: 1, 0>} : (f32) -> ()
  }) {reductions = [], resultSegmentSizes = array<i32: 1, 0>} : (index, index) -> !sum
  return %z : !sum
}

// What is read alone, too, or subtracted, or grows by other factors stays apart.
// CHECK-LABEL: func.func @apart(
// CHECK-COUNT-4: "tile.dot"(
// CHECK-NOT:     "tile.dot_add"
func.func @apart(%a: !tile, %b: !tile) -> (!sum, !sum) attributes {tile.kernel = {block_q = 64 : i64, block_kv = 64 : i64}} {
  %n = arith.constant 64 : index
  %x = "tile.dot"(%a, %b) {transpose_b = true} : (!tile, !tile) -> !sum
  %y = "tile.dot"(%b, %a) {transpose_b = true} : (!tile, !tile) -> !sum
  %v = "tile.dot"(%a, %a) {transpose_b = true} : (!tile, !tile) -> !sum
  %w = "tile.dot"(%b, %b) {transpose_b = true} : (!tile, !tile) -> !sum
  %z:2 = "tile.map"(%n, %n) ({
  ^bb0(%i: index, %j: index):
    %ex = tensor.extract %x[%i, %j] : !sum
    %ey = tensor.extract %y[%i, %j] : !sum
    %s = arith.addf %ex, %ey : f32
    %t = arith.mulf %s, %ex : f32
    %ev = tensor.extract %v[%i, %j] : !sum
    %ew = tensor.extract %w[%i, %j] : !sum
    %u = arith.subf %ev, %ew : f32
    "tile.yield"(%t, %u) {operandSegmentSizes = array<i32: 2, 0>} : (f32, f32) -> ()
  }) {reductions = [], resultSegmentSizes = array<i32: 2, 0>} : (index, index) -> (!sum, !sum)
  return %z#0, %z#1 : !sum, !sum
}
