// RUN: attn-opt %s -p 'attn-tile,canonicalize,cse' --split-input-file | FileCheck %s

// Segment i of batch entry b: positions from i L on, states numbered b N + i. Without o there is no product with q.

!q = tensor<?x?x?x16xf32>
!v = tensor<?x?x?x8xf32>
!s = tensor<?x?x16x8xf32>

// CHECK-LABEL: func.func @segments(
// CHECK-SAME:    grid = "chunks", outputs = ["store"], over = 2 : i64, score = f32, segment = 32 : i64
// CHECK:         %[[NUMBER:.*]] = "tile.program_id"() {axis = 2
// CHECK:         %[[LENGTH:.*]] = memref.dim %{{.*}}, %c2
// CHECK:         %[[COUNT:.*]] = arith.ceildivsi %[[LENGTH]], %c32
// CHECK:         %[[I:.*]] = arith.remsi %[[NUMBER]], %[[COUNT]]
// CHECK:         %[[BEGIN:.*]] = arith.muli %[[I]], %c32
// CHECK:         %[[NEXT:.*]] = arith.addi %[[BEGIN]], %c32
// CHECK:         %[[END:.*]] = arith.minsi %[[LENGTH]], %[[NEXT]]
// CHECK:         %[[BATCH:.*]] = arith.divsi %[[NUMBER]], %[[COUNT]]
// CHECK:         %[[SIZE:.*]] = arith.subi %[[END]], %[[BEGIN]]
// CHECK:         %[[STATE:.*]] = scf.for %[[START:.*]] = %c0 to %[[SIZE]] step %c16
// CHECK:           %[[AT:.*]] = arith.addi %[[BEGIN]], %[[START]]
// CHECK:           "tile.load"(%{{.*}}, %[[BATCH]], %{{.*}}, %[[AT]]
// CHECK-NOT:       "tile.dot"(
// CHECK:           "tile.dot_rescale"({{.*}}transpose_a = true
// CHECK:         "tile.store"(%[[STATE]], %{{.*}}, %[[NUMBER]]
func.func @segments(%q: !q, %k: !q, %v: !v) -> !s {
  %o, %final = "attn.chunk"(%q, %k, %v) ({
    "attn.chunk_decay"() ({
    ^bb0(%total: f32):
      %x = math.exp %total : f32
      "attn.yield"(%x) : (f32) -> ()
    }) : () -> ()
    "attn.input_decay"() ({
    ^bb0(%prefix: f32, %total: f32):
      "attn.yield"(%total) : (f32) -> ()
    }) : () -> ()
    "attn.output_decay"() ({
    ^bb0(%prefix: f32, %total: f32):
      "attn.yield"(%total) : (f32) -> ()
    }) : () -> ()
    "attn.decay_mask"() ({
    ^bb0(%t: f32, %s: f32):
      "attn.yield"(%t) : (f32) -> ()
    }) : () -> ()
  }) {heads = 2 : i64, direction = "forward", channels = "none", state = "kv", outputs = ["final_state"], chunk = 16 : i64, segment = 32 : i64, operandSegmentSizes = array<i32: 1, 1, 1, 0, 0, 0, 0>, resultSegmentSizes = array<i32: 1, 1, 0, 0, 0>}
    : (!q, !q, !v) -> (!v, !s)
  return %final : !s
}

// -----

// Sums of log decays over segments, 256 positions at a time.

!g = tensor<?x?x?xf32>

// CHECK-LABEL: func.func @decays(
// CHECK-SAME:    block_q = 1024 : i64, {{.*}}grid = "rows", outputs = ["store"], over = 0 : i64
// CHECK:         %[[N:.*]] = "tile.program_id"() {axis = 0
// CHECK:         %[[SUMS:.*]] = scf.for %{{.*}} = %c0 to %{{.*}} step %c256 iter_args(%{{.*}}) -> (tensor<256xf32>)
// CHECK:           memref.load
// CHECK:           arith.addf
// CHECK:         %[[TOTAL:.*]] = "tile.map"(%c1, %c256)
// CHECK:           tensor.extract %[[SUMS]]
// CHECK:           reductions = ["sum"]
// CHECK:         "tile.store"(%[[TOTAL]], %{{.*}}, %{{.*}}, %{{.*}}, %[[N]], %c1)
func.func @decays(%v: tensor<?x?x?x8xf16>, %g: !g) -> !g {
  %r = "attn.decay_sum"(%v, %g) ({
  ^bb0:
  }) {segment = 1024 : i64} : (tensor<?x?x?x8xf16>, !g) -> !g
  return %r : !g
}

// -----

// With channels 16 positions at a time, added up by running sums.

!g = tensor<?x?x?x8xf32>

// CHECK-LABEL: func.func @channels(
// CHECK:         scf.for {{.*}} step %c16 {{.*}} -> (tensor<16x8xf32>)
// CHECK:         %[[SUMS:.*]] = "tile.cumsum"
// CHECK:         tensor.extract %[[SUMS]][%c15
func.func @channels(%v: tensor<?x?x?x8xf16>, %g: !g) -> !g {
  %r = "attn.decay_sum"(%v, %g) ({
  ^bb0:
  }) {segment = 1024 : i64} : (tensor<?x?x?x8xf16>, !g) -> !g
  return %r : !g
}

// -----

// The states between segments: a program passes on some rows of the state of a head.

!s = tensor<?x?x?x64xf32>

// CHECK-LABEL: func.func @scan(
// CHECK-SAME:    block_kv = 64 : i64, block_q = 8 : i64, blocks = 2 : i64, {{.*}}grid = "chunks", outputs = ["store", "store"], over = 1 : i64
// CHECK-NOT:     segment
// CHECK:         %[[ROW:.*]] = arith.muli %{{.*}}, %c8
// CHECK:         %[[COUNT:.*]] = arith.ceildivsi %{{.*}}, %c32
// CHECK:         %[[LAST:.*]] = scf.for %[[N:.*]] = %c0 to %[[COUNT]] step %c1 iter_args(%[[STATE:.*]] = %{{.*}}) -> (tensor<8x64xf32>)
// CHECK:           %[[LEFT:.*]] = arith.subi %[[COUNT]], %c1
// CHECK:           %[[I:.*]] = arith.subi %[[LEFT]], %[[N]]
// CHECK:           "tile.store"(%[[STATE]]
// CHECK:           "tile.load"
// CHECK:           memref.load %{{.*}}[%{{.*}}, %{{.*}}, %[[I]]]
// CHECK:           math.exp
// CHECK:         "tile.store"(%[[LAST]]
func.func @scan(%states: !s, %like: tensor<?x?x?x8xf16>, %totals: tensor<?x?x?xf32>, %initial: !s) -> (!s, !s) {
  %before, %final = "attn.state_scan"(%states, %like, %totals, %initial) {segment = 32 : i64, rows = 16 : i64, direction = "backward", operandSegmentSizes = array<i32: 1, 1, 1, 1>}
    : (!s, tensor<?x?x?x8xf16>, tensor<?x?x?xf32>, !s) -> (!s, !s)
  return %before, %final : !s, !s
}
