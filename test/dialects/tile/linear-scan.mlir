// A scan of linear attention: sums along a tile, products with a transposed first factor, a state carried from chunk to chunk.
// RUN: attn-opt %s | attn-opt | FileCheck %s

// CHECK: "tile.cumsum"(%{{.*}}) {reverse = false} : (tensor<64xf32>) -> tensor<64xf32>
// CHECK: "tile.dot_rescale"({{.*}}) {transpose_a = true, transpose_b = false}
// The scan of Mamba-2's forward in f16: grid "chunks", one program per block of value columns (axis 0; here one of 64), head and batch.
func.func @attention(%q: memref<?x?x?x128xf16, strided<[?, ?, ?, ?]>>, %k: memref<?x?x?x128xf16, strided<[?, ?, ?, ?]>>, %v: memref<?x?x?x64xf16, strided<[?, ?, ?, ?]>>,
    %decay: memref<?x?x?xf32, strided<[?, ?, ?]>>, %a: memref<?xf32, strided<[?]>>, %initial: memref<?x?x?x64xf32, strided<[?, ?, ?, ?]>>,
    %o: memref<?x?x?x64xf16, strided<[?, ?, ?, ?]>>, %final: memref<?x?x?x64xf32, strided<[?, ?, ?, ?]>>)
    attributes {tile.kernel = {grid = "chunks", block_q = 64 : i64, block_kv = 64 : i64, blocks = 1 : i64, over = 2 : i64, score = f32, outputs = ["store", "store"]}} {
  %c0 = arith.constant 0 : index
  %c1 = arith.constant 1 : index
  %c2 = arith.constant 2 : index
  %c63 = arith.constant 63 : index
  %c64 = arith.constant 64 : index
  %c128 = arith.constant 128 : index
  %zero = arith.constant 0.0 : f32
  %h = "tile.program_id"() {axis = 1 : i64} : () -> index
  %b = "tile.program_id"() {axis = 2 : i64} : () -> index
  %length = memref.dim %q, %c2 : memref<?x?x?x128xf16, strided<[?, ?, ?, ?]>>
  %last = arith.subi %length, %c1 : index
  %heads = memref.dim %v, %c1 : memref<?x?x?x64xf16, strided<[?, ?, ?, ?]>>
  %heads_q = memref.dim %q, %c1 : memref<?x?x?x128xf16, strided<[?, ?, ?, ?]>>
  %group_q = arith.divsi %heads, %heads_q : index
  %h_q = arith.divsi %h, %group_q : index
  %s0 = "tile.load"(%initial, %b, %h, %c0, %c128) : (memref<?x?x?x64xf32, strided<[?, ?, ?, ?]>>, index, index, index, index) -> tensor<128x64xf32>
  %s = scf.for %begin = %c0 to %length step %c64 iter_args(%state = %s0) -> (tensor<128x64xf32>) {
    %left = arith.subi %length, %begin : index
    %count = arith.minsi %c64, %left : index
    // log decays of the chunk; positions past the end add nothing
    %g = "tile.map"(%c64) ({
    ^bb0(%i: index):
      %t0 = arith.addi %begin, %i : index
      %t = arith.minsi %t0, %last : index
      %dt = memref.load %decay[%b, %h, %t] : memref<?x?x?xf32, strided<[?, ?, ?]>>
      %a_h = memref.load %a[%h] : memref<?xf32, strided<[?]>>
      %y = arith.mulf %dt, %a_h : f32
      %present = arith.cmpi slt, %i, %count : index
      %z = arith.select %present, %y, %zero : f32
      "tile.yield"(%z) {operandSegmentSizes = array<i32: 1, 0>} : (f32) -> ()
    }) {reductions = [], resultSegmentSizes = array<i32: 1, 0>} : (index) -> tensor<64xf32>
    %prefix = "tile.cumsum"(%g) {reverse = false} : (tensor<64xf32>) -> tensor<64xf32>
    %total = tensor.extract %prefix[%c63] : tensor<64xf32>
    %q_tile = "tile.load"(%q, %b, %h_q, %begin, %count) : (memref<?x?x?x128xf16, strided<[?, ?, ?, ?]>>, index, index, index, index) -> tensor<64x128xf16>
    %k_tile = "tile.load"(%k, %b, %h_q, %begin, %count) : (memref<?x?x?x128xf16, strided<[?, ?, ?, ?]>>, index, index, index, index) -> tensor<64x128xf16>
    %v_raw = "tile.load"(%v, %b, %h, %begin, %count) : (memref<?x?x?x64xf16, strided<[?, ?, ?, ?]>>, index, index, index, index) -> tensor<64x64xf16>
    // mods: v dt
    %v_tile = "tile.map"(%c64, %c64) ({
    ^bb0(%i: index, %d: index):
      %t0 = arith.addi %begin, %i : index
      %t = arith.minsi %t0, %last : index
      %x = tensor.extract %v_raw[%i, %d] : tensor<64x64xf16>
      %xf = arith.extf %x : f16 to f32
      %dt = memref.load %decay[%b, %h, %t] : memref<?x?x?xf32, strided<[?, ?, ?]>>
      %y = arith.mulf %xf, %dt : f32
      %z = arith.truncf %y : f32 to f16
      "tile.yield"(%z) {operandSegmentSizes = array<i32: 1, 0>} : (f16) -> ()
    }) {reductions = [], resultSegmentSizes = array<i32: 1, 0>} : (index, index) -> tensor<64x64xf16>
    // what the chunk's own positions add
    %a_tile = "tile.dot"(%q_tile, %k_tile) {transpose_b = true} : (tensor<64x128xf16>, tensor<64x128xf16>) -> tensor<64x64xf32>
    %p = "tile.map"(%c64, %c64) ({
    ^bb0(%i: index, %j: index):
      %x = tensor.extract %a_tile[%i, %j] : tensor<64x64xf32>
      %bi = tensor.extract %prefix[%i] : tensor<64xf32>
      %bj = tensor.extract %prefix[%j] : tensor<64xf32>
      %d = arith.subf %bi, %bj : f32
      %e = math.exp %d : f32
      %y = arith.mulf %x, %e : f32
      %before = arith.cmpi sge, %i, %j : index
      %exists = arith.cmpi slt, %j, %count : index
      %present = arith.andi %before, %exists : i1
      %z = arith.select %present, %y, %zero : f32
      %w = arith.truncf %z : f32 to f16
      "tile.yield"(%w) {operandSegmentSizes = array<i32: 1, 0>} : (f16) -> ()
    }) {reductions = [], resultSegmentSizes = array<i32: 1, 0>} : (index, index) -> tensor<64x64xf16>
    // what the state adds
    %s_half = "tile.map"(%c128, %c64) ({
    ^bb0(%i: index, %j: index):
      %x = tensor.extract %state[%i, %j] : tensor<128x64xf32>
      %y = arith.truncf %x : f32 to f16
      "tile.yield"(%y) {operandSegmentSizes = array<i32: 1, 0>} : (f16) -> ()
    }) {reductions = [], resultSegmentSizes = array<i32: 1, 0>} : (index, index) -> tensor<128x64xf16>
    %o_state = "tile.dot"(%q_tile, %s_half) {transpose_b = false} : (tensor<64x128xf16>, tensor<128x64xf16>) -> tensor<64x64xf32>
    %leave, %enter = "tile.map"(%c64) ({
    ^bb0(%i: index):
      %x = tensor.extract %prefix[%i] : tensor<64xf32>
      %y = math.exp %x : f32
      %d = arith.subf %total, %x : f32
      %e = math.exp %d : f32
      %present = arith.cmpi slt, %i, %count : index
      %z = arith.select %present, %e, %zero : f32
      "tile.yield"(%y, %z) {operandSegmentSizes = array<i32: 2, 0>} : (f32, f32) -> ()
    }) {reductions = [], resultSegmentSizes = array<i32: 2, 0>} : (index) -> (tensor<64xf32>, tensor<64xf32>)
    %o_tile = "tile.dot_rescale"(%o_state, %leave, %p, %v_tile) {transpose_b = false} : (tensor<64x64xf32>, tensor<64xf32>, tensor<64x64xf16>, tensor<64x64xf16>) -> tensor<64x64xf32>
    "tile.store"(%o_tile, %o, %b, %h, %begin, %count) : (tensor<64x64xf32>, memref<?x?x?x64xf16, strided<[?, ?, ?, ?]>>, index, index, index, index) -> ()
    // the next state
    %carry = "tile.map"(%c128) ({
    ^bb0(%i: index):
      %y = math.exp %total : f32
      "tile.yield"(%y) {operandSegmentSizes = array<i32: 1, 0>} : (f32) -> ()
    }) {reductions = [], resultSegmentSizes = array<i32: 1, 0>} : (index) -> tensor<128xf32>
    %v_enter = "tile.map"(%c64, %c64) ({
    ^bb0(%i: index, %d: index):
      %x = tensor.extract %v_tile[%i, %d] : tensor<64x64xf16>
      %xf = arith.extf %x : f16 to f32
      %e = tensor.extract %enter[%i] : tensor<64xf32>
      %y = arith.mulf %xf, %e : f32
      %z = arith.truncf %y : f32 to f16
      "tile.yield"(%z) {operandSegmentSizes = array<i32: 1, 0>} : (f16) -> ()
    }) {reductions = [], resultSegmentSizes = array<i32: 1, 0>} : (index, index) -> tensor<64x64xf16>
    %next = "tile.dot_rescale"(%state, %carry, %k_tile, %v_enter) {transpose_a = true, transpose_b = false} : (tensor<128x64xf32>, tensor<128xf32>, tensor<64x128xf16>, tensor<64x64xf16>) -> tensor<128x64xf32>
    scf.yield %next : tensor<128x64xf32>
  }
  "tile.store"(%s, %final, %b, %h, %c0, %c128) : (tensor<128x64xf32>, memref<?x?x?x64xf32, strided<[?, ?, ?, ?]>>, index, index, index, index) -> ()
  return
}
