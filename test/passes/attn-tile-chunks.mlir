// RUN: attn-opt %s -p 'attn-tile-chunks,canonicalize,cse' --split-input-file | FileCheck %s
// RUN: attn-opt %s -p 'amd-numerics,attn-tile-chunks,canonicalize,cse' --split-input-file | FileCheck %s --check-prefix=FLUSHING

// Where products flush small numbers of f16, residuals of weights are a tile of their own.
// FLUSHING:      %[[WEIGHTS:.*]] = "tile.map"(%c16, %c16)
// FLUSHING:      %[[REST:.*]] = "tile.map"(%c16, %c16)
// FLUSHING:        %[[ROUNDED:.*]] = arith.extf
// FLUSHING:        arith.subf %{{.*}}, %[[ROUNDED]]
// FLUSHING:      %[[O:.*]] = "tile.dot_rescale"(%{{.*}}, %{{.*}}, %[[WEIGHTS]], %[[V:[^)]*]])
// FLUSHING:      "tile.dot_add"(%[[O]], %[[REST]], %[[V]])

// RUN: sed -e "s/f16/bf16/g" %s | attn-opt -p 'attn-tile-chunks,canonicalize,cse' --split-input-file | FileCheck %s --check-prefix=COARSE

// bf16 has too few digits for sums of products: there it is so wherever such are made.
// COARSE:      %[[WEIGHTS:.*]] = "tile.map"(%c16, %c16)
// COARSE:      %[[REST:.*]] = "tile.map"(%c16, %c16)
// COARSE:        %[[ROUNDED:.*]] = arith.extf
// COARSE:        arith.subf %{{.*}}, %[[ROUNDED]]
// COARSE:      %[[O:.*]] = "tile.dot_rescale"(%{{.*}}, %{{.*}}, %[[WEIGHTS]], %[[V:[^)]*]])
// COARSE:      "tile.dot_add"(%[[O]], %[[REST]], %[[V]])

// A scan in f16 in blocks of 4 of v's 8 columns: what goes into products is rounded, the state is not; sums over columns have a slot each.
// Of such sums differences are taken: there the state, and what enters it, are two rounded pieces each, and pairs of a position with itself are
// added to o behind the sums.

// CHECK-LABEL: func.func @attention(
// CHECK-SAME:    %[[Q:[^:]*]]: memref<?x?x?x16xf16, {{[^>]*>>}}, %[[K:[^:]*]]: memref<{{[^>]*>>}}, %[[V:[^:]*]]: memref<{{[^>]*>>}}, %[[DECAY:[^:]*]]: memref<?x?x?xf32
// CHECK-SAME:    tile.kernel = {block_kv = 4 : i64, block_q = 16 : i64, blocks = 2 : i64, {{.*}}grid = "chunks", outputs = ["store", "accumulate"], over = 2 : i64, score = f32}
// CHECK:         %[[BLOCK:.*]] = "tile.program_id"() {axis = 0 : i64}
// CHECK:         %[[COLUMN:.*]] = arith.muli %[[BLOCK]], %c4
// CHECK:         %[[V_OWN:.*]] = memref.subview %[[V]][0, 0, 0, %[[COLUMN]]]
// CHECK:         memref.subview %{{.*}}[%[[BLOCK]], 0, 0, 0]
// CHECK:         %[[INITIAL:.*]] = "tile.load"{{.*}} -> tensor<16x4xf32>
// CHECK:         scf.for %[[BEGIN:.*]] = %c0 to %{{.*}} step %c16 iter_args(%[[STATE:.*]] = %[[INITIAL]])
// CHECK:           %[[STEPS:.*]] = "tile.map"(%c16)
// CHECK:           %[[PREFIX:.*]] = "tile.cumsum"(%[[STEPS]]) {reverse = false}
// CHECK:           %[[TOTAL:.*]] = tensor.extract %[[PREFIX]][%c15]
// CHECK:           %[[OWN_V:.*]] = "tile.load"(%[[V_OWN]]
// CHECK:           %[[HIGH:.*]] = "tile.map"(%c16, %c4)
// CHECK:             arith.truncf %{{.*}} : f32 to f16
// CHECK:           %[[LOW:.*]] = "tile.map"(%c16, %c4)
// CHECK:             %[[WIDE:.*]] = arith.extf
// CHECK:             arith.subf %{{.*}}, %[[WIDE]] : f32
// CHECK:           %[[OF_HIGH:.*]] = "tile.dot"(%{{.*}}, %[[HIGH]]) {transpose_b = false}
// CHECK:           %[[OF_STATE:.*]] = "tile.dot_add"(%[[OF_HIGH]], %{{.*}}, %[[LOW]]) {transpose_b = false}
// CHECK:           %[[PRODUCTS:.*]] = "tile.dot"{{.*}} {transpose_b = true}
// CHECK:           %[[WEIGHTS:.*]] = "tile.map"(%c16, %c16)
// CHECK:             arith.cmpi sgt
// CHECK:           %[[OTHERS:.*]] = "tile.dot_rescale"(%[[OF_STATE]], %{{.*}}, %[[WEIGHTS]], %[[OWN_V]])
// CHECK:           %[[SUMS:.*]] = "tile.map"(%c16, %c4)
// CHECK:             tensor.extract %[[OTHERS]]
// CHECK:           reductions = ["sum"]
// CHECK:           %[[OWN:.*]] = "tile.map"(%c16, %c16)
// CHECK:             arith.cmpi eq
// CHECK:             tensor.extract %[[PRODUCTS]]
// CHECK:           reductions = ["sum"]
// CHECK:           %[[O:.*]] = "tile.map"(%c16, %c4)
// CHECK-DAG:         tensor.extract %[[OTHERS]]
// CHECK-DAG:         tensor.extract %[[OWN]]
// CHECK-DAG:         tensor.extract %[[OWN_V]]
// CHECK:           "tile.store"(%[[SUMS]]
// CHECK:           "tile.store"(%[[O]]
// CHECK:           %[[PART:.*]] = "tile.dot_rescale"(%[[STATE]], %{{.*}}) {transpose_a = true, transpose_b = false}
// CHECK:           %[[NEXT:.*]] = "tile.dot_add"(%[[PART]], %{{.*}}) {transpose_a = true, transpose_b = false}
// CHECK:           scf.yield %[[NEXT]]
func.func @attention(%q: tensor<?x?x?x16xf16>, %k: tensor<?x?x?x16xf16>, %v: tensor<?x?x?x8xf16>, %decay: tensor<?x?x?xf32>, %initial: tensor<?x?x?x8xf32>, %factor: tensor<?x?x?x8xf16>) -> (tensor<?x?x?x8xf16>, tensor<?x?x?xf32>) attributes {tile.blocks = array<i64: 16, 4>} {
  %r0, %r1 = "attn.chunk"(%q, %k, %v, %decay, %initial, %factor) ({
  ^bb0:
    "attn.chunk_decay"() ({
    ^bb0(%total: f32):
      %y = math.exp %total : f32
      "attn.yield"(%y) : (f32) -> ()
    }) : () -> ()
    "attn.input_decay"() ({
    ^bb0(%prefix: f32, %total: f32):
      %x = arith.subf %total, %prefix : f32
      %y = math.exp %x : f32
      "attn.yield"(%y) : (f32) -> ()
    }) : () -> ()
    "attn.output_decay"() ({
    ^bb0(%prefix: f32, %total: f32):
      %y = math.exp %prefix : f32
      "attn.yield"(%y) : (f32) -> ()
    }) : () -> ()
    "attn.decay_mask"() ({
    ^bb0(%prefix_t: f32, %prefix_s: f32):
      %x = arith.subf %prefix_t, %prefix_s : f32
      %y = math.exp %x : f32
      "attn.yield"(%y) : (f32) -> ()
    }) : () -> ()
  }) {heads = 2 : i64, direction = "forward", channels = "none", state = "kv", outputs = ["products"], operandSegmentSizes = array<i32: 1, 1, 1, 1, 1, 1, 0>, resultSegmentSizes = array<i32: 1, 0, 1, 0, 0>, chunk = 16 : i64} : (tensor<?x?x?x16xf16>, tensor<?x?x?x16xf16>, tensor<?x?x?x8xf16>, tensor<?x?x?xf32>, tensor<?x?x?x8xf32>, tensor<?x?x?x8xf16>) -> (tensor<?x?x?x8xf16>, tensor<?x?x?xf32>)
  return %r0, %r1 : tensor<?x?x?x8xf16>, tensor<?x?x?xf32>
}


// -----

// Backward over sequences of offsets, transposed states: chunks from the last on; the state after a chunk is kept where an interval begins.

// CHECK-LABEL: func.func @attention(
// CHECK-SAME:    blocks = 1 : i64, {{.*}}outputs = ["store", "store", "store"], over = 2 : i64, score = f32, sequences = 4 : i64}
// CHECK:         %[[BEGIN:.*]] = arith.index_cast
// CHECK:         %[[END:.*]] = arith.index_cast
// CHECK:         %[[LENGTH:.*]] = arith.subi %[[END]], %[[BEGIN]]
// CHECK:         %[[CHUNKS:.*]] = arith.ceildivsi %[[LENGTH]], %c16
// CHECK:         %[[LAST:.*]] = scf.for %[[N:.*]] = %c0 to %[[CHUNKS]] step %c1 iter_args(%[[STATE:.*]] =
// CHECK:           %[[BEFORE:.*]] = arith.subi %[[CHUNKS]], %c1
// CHECK:           arith.subi %[[BEFORE]], %[[N]]
// CHECK:           "tile.dot"(%{{.*}}, %[[STATE]]) {transpose_b = true}
// CHECK:           arith.cmpi sle
// CHECK:           %[[NEXT:.*]] = "tile.dot_rescale"(%[[STATE]], {{.*}}transpose_a = true
// CHECK:           scf.if
// CHECK:             "tile.store"(%[[NEXT]]
// CHECK:         "tile.store"(%[[LAST]]
func.func @attention(%q: tensor<?x?x?x16xf32>, %k: tensor<?x?x?x16xf32>, %v: tensor<?x?x?x8xf32>, %decay: tensor<?x?x?xf32>, %offsets: tensor<?xi64>) -> (tensor<?x?x?x8xf32>, tensor<?x?x?x16xf32>, tensor<?x?x?x16xf32>) {
  %r0, %r1, %r2 = "attn.chunk"(%q, %k, %v, %decay, %offsets) ({
  ^bb0:
    "attn.chunk_decay"() ({
    ^bb0(%total: f32):
      %y = math.exp %total : f32
      "attn.yield"(%y) : (f32) -> ()
    }) : () -> ()
    "attn.input_decay"() ({
    ^bb0(%prefix: f32, %total: f32):
      %y = math.exp %prefix : f32
      "attn.yield"(%y) : (f32) -> ()
    }) : () -> ()
    "attn.output_decay"() ({
    ^bb0(%prefix: f32, %total: f32):
      %x = arith.subf %total, %prefix : f32
      %y = math.exp %x : f32
      "attn.yield"(%y) : (f32) -> ()
    }) : () -> ()
    "attn.decay_mask"() ({
    ^bb0(%prefix_t: f32, %prefix_s: f32):
      %x = arith.subf %prefix_s, %prefix_t : f32
      %y = math.exp %x : f32
      "attn.yield"(%y) : (f32) -> ()
    }) : () -> ()
  }) {heads = 2 : i64, direction = "backward", channels = "none", state = "vk", outputs = ["final_state", "states"], operandSegmentSizes = array<i32: 1, 1, 1, 1, 0, 0, 1>, resultSegmentSizes = array<i32: 1, 1, 0, 1, 0>, interval = 32 : i64, chunk = 16 : i64} : (tensor<?x?x?x16xf32>, tensor<?x?x?x16xf32>, tensor<?x?x?x8xf32>, tensor<?x?x?xf32>, tensor<?xi64>) -> (tensor<?x?x?x8xf32>, tensor<?x?x?x16xf32>, tensor<?x?x?x16xf32>)
  return %r0, %r1, %r2 : tensor<?x?x?x8xf32>, tensor<?x?x?x16xf32>, tensor<?x?x?x16xf32>
}

