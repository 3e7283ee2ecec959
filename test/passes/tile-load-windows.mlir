// Reads with the row and the column become tiles: windows where indices grow by constant steps, bands where only i - j matters, which
// also takes what is made of them. Rows past the last position repeat it. What varies with rows or columns alone stays a scalar.
// RUN: attn-opt %s -p 'tile-load-windows,canonicalize,cse' | FileCheck %s

!any = memref<?x?x?xf16>
!row = memref<?xf32>

// CHECK-LABEL: func.func @reads(
// CHECK-SAME:    %[[BIAS:[^:]*]]: memref<?x?x?xf16>, %[[TABLE:[^:]*]]: memref<?xf32>, %[[SCORES:[^:]*]]: tensor<32x?xf32>,
// CHECK-SAME:    %[[H:[^:]*]]: index, %[[Q:[^:]*]]: index, %[[KV:[^:]*]]: index, %[[LAST:[^:]*]]: index, %[[COUNT:[^:]*]]: index)
// CHECK:         %[[BAND:.*]] = "tile.band"(%c32, %[[COUNT]]) ({
// CHECK-NEXT:    ^bb0(%[[I:.*]]: index, %[[J:.*]]: index):
// CHECK:           %[[APART:.*]] = arith.subi
// CHECK:           %[[CLAMPED:.*]] = arith.minsi %[[APART]], %c8
// CHECK:           %[[READ:.*]] = memref.load %[[TABLE]][%[[CLAMPED]]]
// CHECK:           %[[MADE:.*]] = math.tanh %[[READ]]
// CHECK:           "tile.yield"(%[[MADE]])
// CHECK:         %[[FIRST:.*]] = arith.minsi %[[Q]], %[[LAST]]
// CHECK:         %[[LEFT:.*]] = arith.subi %[[LAST]], %[[Q]]
// CHECK:         %[[ROWS:.*]] = arith.addi %[[LEFT]], %c1
// CHECK:         %[[THERE:.*]] = arith.minsi %[[ROWS]], %c32
// CHECK:         %[[WINDOW:.*]] = "tile.load_window"(%[[BIAS]], %[[THERE]], %[[COUNT]], %[[H]], %[[FIRST]], %[[KV]])
// CHECK-SAME:    {column_steps = array<i64: 0, 0, 1>, row_steps = array<i64: 0, 1, 0>} : {{.*}} -> tensor<32x?xf16>
// CHECK:         "tile.map"
// CHECK-NEXT:    ^bb0(%[[I:.*]]: index, %[[J:.*]]: index):
// CHECK:           tensor.extract %[[BAND]][%[[I]], %[[J]]]
// CHECK:           tensor.extract %[[WINDOW]][%[[I]], %[[J]]] : tensor<32x?xf16>
// CHECK:           memref.load %[[TABLE]][
// CHECK-NOT:       memref.load
func.func @reads(%bias: !any, %table: !row, %scores: tensor<32x?xf32>, %h: index, %q: index, %kv: index, %last: index, %count: index) -> tensor<32x?xf32> {
  %c8 = arith.constant 8 : index
  %c32 = arith.constant 32 : index
  %result = "tile.map"(%c32, %count) ({
  ^bb0(%i: index, %j: index):
    %below = arith.addi %q, %i : index
    %q_idx = arith.minsi %below, %last : index
    %kv_idx = arith.addi %kv, %j : index
    %apart = arith.subi %q_idx, %kv_idx : index
    %clamped = arith.minsi %apart, %c8 : index
    %far = memref.load %table[%clamped] : !row
    %made = math.tanh %far : f32
    %read = memref.load %bias[%h, %q_idx, %kv_idx] : !any
    %wide = arith.extf %read : f16 to f32
    %of_key = memref.load %table[%kv_idx] : !row
    %score = tensor.extract %scores[%i, %j] : tensor<32x?xf32>
    %a = arith.addf %score, %made : f32
    %b = arith.mulf %a, %wide : f32
    %c = arith.addf %b, %of_key : f32
    "tile.yield"(%c) {operandSegmentSizes = array<i32: 1, 0>} : (f32) -> ()
  }) {reductions = [], resultSegmentSizes = array<i32: 1, 0>} : (index, index) -> tensor<32x?xf32>
  return %result : tensor<32x?xf32>
}

// Neither steps nor differences: a product of positions, rows that end at two places, and a map over channels, whose extent is known.
// CHECK-LABEL: func.func @others(
// CHECK-NOT:     tile.load_window
// CHECK-NOT:     tile.band
// CHECK-COUNT-3: memref.load
func.func @others(%bias: !any, %table: !row, %last: index, %count: index) -> (tensor<32x?xf32>, tensor<32x64xf16>) {
  %c32 = arith.constant 32 : index
  %c64 = arith.constant 64 : index
  %result = "tile.map"(%c32, %count) ({
  ^bb0(%i: index, %j: index):
    %product = arith.muli %i, %j : index
    %x = memref.load %table[%product] : !row
    %limited = arith.minsi %i, %last : index
    %twice = arith.addi %limited, %i : index
    %place = arith.addi %twice, %j : index
    %y = memref.load %table[%place] : !row
    %z = arith.addf %x, %y : f32
    "tile.yield"(%z) {operandSegmentSizes = array<i32: 1, 0>} : (f32) -> ()
  }) {reductions = [], resultSegmentSizes = array<i32: 1, 0>} : (index, index) -> tensor<32x?xf32>
  %channels = "tile.map"(%c32, %c64) ({
  ^bb0(%i: index, %j: index):
    %x = memref.load %bias[%i, %i, %j] : !any
    "tile.yield"(%x) {operandSegmentSizes = array<i32: 1, 0>} : (f16) -> ()
  }) {reductions = [], resultSegmentSizes = array<i32: 1, 0>} : (index, index) -> tensor<32x64xf16>
  return %result, %channels : tensor<32x?xf32>, tensor<32x64xf16>
}
