// RUN: attn-opt %s -p 'attn-tile-chunks,canonicalize,cse' --split-input-file | FileCheck %s

// Decays of key channels: pairs within 8 positions one by one; those of the chunk's two halves are one product of factors of at most 1, each
// as seen from the last position of the first half: rows of one half are read as q, those of the other as k.

// CHECK-LABEL: func.func @attention(
// CHECK:         %[[PREFIX:.*]] = "tile.cumsum"{{.*}} (tensor<16x16xf32>)
// CHECK:         %[[NEAR:.*]] = scf.for %[[N:.*]] = %c0 to %c8 step %c1 iter_args(%[[OLD:.*]] =
// CHECK:           %[[SCORES:.*]] = "tile.map"(%c16, %c16)
// CHECK:             %[[BLOCK:.*]] = arith.divui %[[I:.*]], %c8
// CHECK:             %[[FIRST:.*]] = arith.muli %[[BLOCK]], %c8
// CHECK:             %[[S:.*]] = arith.addi %[[FIRST]], %[[N]]
// CHECK:             tensor.extract %[[PREFIX]][%[[S]],
// CHECK:             arith.cmpi sge, %[[I]], %[[S]]
// CHECK:           reductions = ["sum"]
// CHECK:           scf.yield
// CHECK:         %[[HALVES:.*]]:2 = "tile.map"(%c16, %c16)
// CHECK:             %[[LATER:.*]] = arith.cmpi eq, %{{.*}}, %c1
// CHECK:             %[[LAST:.*]] = arith.addi %{{.*}}, %c7
// CHECK:             %[[BOUNDARY:.*]] = arith.minsi %[[LAST]], %c15
// CHECK:             %[[OWN:.*]] = tensor.extract %[[PREFIX]][%[[ROW:.*]], %[[D:.*]]]
// CHECK:             %[[OTHER:.*]] = tensor.extract %[[PREFIX]][%[[BOUNDARY]], %[[D]]]
// CHECK:             %[[OF_READER:.*]] = arith.select %[[LATER]], %[[OWN]], %[[OTHER]]
// CHECK:             %[[OF_KEY:.*]] = arith.select %[[LATER]], %[[OTHER]], %[[OWN]]
// CHECK:             arith.subf %[[OF_READER]], %[[OF_KEY]]
// CHECK:         %[[FAR:.*]] = "tile.dot"(%[[HALVES]]#0, %[[HALVES]]#1) {transpose_b = true}
// CHECK:         %[[BOTH:.*]] = "tile.map"(%c16, %c16)
// CHECK:           %[[DIFFER:.*]] = arith.xori
// CHECK:           %[[IS_FAR:.*]] = arith.cmpi uge, %[[DIFFER]], %c8
// CHECK:           %[[FAR_ONE:.*]] = tensor.extract %[[FAR]]
// CHECK:           %[[NEAR_ONE:.*]] = tensor.extract %[[NEAR]]
// CHECK:           arith.select %[[IS_FAR]], %[[FAR_ONE]], %[[NEAR_ONE]]
// CHECK:         %[[WEIGHTS:.*]] = "tile.map"(%c16, %c16)
// CHECK:           tensor.extract %[[BOTH]]
// CHECK:           arith.cmpi sge
// CHECK:         "tile.dot_add"(%{{.*}}, %[[WEIGHTS]],
func.func @attention(%q: tensor<?x?x?x16xf32>, %k: tensor<?x?x?x16xf32>, %v: tensor<?x?x?x8xf32>, %decay: tensor<?x?x?x16xf32>) -> (tensor<?x?x?x8xf32>) attributes {tile.numerics = {sub_chunk = 8}} {
  %r0 = "attn.chunk"(%q, %k, %v, %decay) ({
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
  }) {heads = 2 : i64, direction = "forward", channels = "key", state = "kv", outputs = [], operandSegmentSizes = array<i32: 1, 1, 1, 1, 0, 0, 0>, resultSegmentSizes = array<i32: 1, 0, 0, 0, 0>, chunk = 16 : i64} : (tensor<?x?x?x16xf32>, tensor<?x?x?x16xf32>, tensor<?x?x?x8xf32>, tensor<?x?x?x16xf32>) -> (tensor<?x?x?x8xf32>)
  return %r0 : tensor<?x?x?x8xf32>
}


// -----

// Decays of value channels: the scores are the same for all, the products of halves are weighted by columns.

// CHECK-LABEL: func.func @attention(
// CHECK:         %[[SCORES:.*]] = "tile.dot"{{.*}} {transpose_b = true} : (tensor<16x16xf32>, tensor<16x16xf32>)
// CHECK:         %[[V:.*]] = "tile.map"(%c16, %c8)
// CHECK:         %[[OWN:.*]] = "tile.map"(%c16, %c16)
// CHECK:           arith.cmpi ult, %{{.*}}, %c16
// CHECK:         %[[PART:.*]] = "tile.dot"(%[[OWN]], %[[V]])
// CHECK:         %[[SUM:.*]] = "tile.map"(%c16, %c8)
// CHECK:           tensor.extract %[[PART]]
// CHECK:         scf.for %{{.*}} = %c0 to %c8 step %c1 iter_args(%{{.*}} = %[[SUM]])
func.func @attention(%q: tensor<?x?x?x16xf32>, %k: tensor<?x?x?x16xf32>, %v: tensor<?x?x?x8xf32>, %decay: tensor<?x?x?x8xf32>) -> (tensor<?x?x?x8xf32>) attributes {tile.numerics = {sub_chunk = 8}} {
  %r0 = "attn.chunk"(%q, %k, %v, %decay) ({
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
  }) {heads = 2 : i64, direction = "backward", channels = "value", state = "vk", outputs = [], operandSegmentSizes = array<i32: 1, 1, 1, 1, 0, 0, 0>, resultSegmentSizes = array<i32: 1, 0, 0, 0, 0>, chunk = 16 : i64} : (tensor<?x?x?x16xf32>, tensor<?x?x?x16xf32>, tensor<?x?x?x8xf32>, tensor<?x?x?x8xf32>) -> (tensor<?x?x?x8xf32>)
  return %r0 : tensor<?x?x?x8xf32>
}

// -----

// `sub_chunk_keys` of 1: all pairs are products of tiles, but for those of positions with themselves, which have no decays.

// CHECK-LABEL: func.func @attention(
// CHECK:         "tile.fill"{{.*}}tensor<16x16xf32>
// CHECK-NOT:     math.exp
// CHECK-NOT:     scf.for
// CHECK:           reductions = ["sum"]
// CHECK:         "tile.dot"(%{{.*}}#0, %{{.*}}#1)
// CHECK:           arith.cmpi uge, %{{.*}}, %c1
// CHECK:         "tile.dot"(%{{.*}}#0, %{{.*}}#1)
// CHECK:           arith.cmpi uge, %{{.*}}, %c2
// CHECK:         "tile.dot"(%{{.*}}#0, %{{.*}}#1)
// CHECK:           arith.cmpi uge, %{{.*}}, %c4
// CHECK:         "tile.dot"(%{{.*}}#0, %{{.*}}#1)
// CHECK:           arith.cmpi uge, %{{.*}}, %c8
func.func @attention(%q: tensor<?x?x?x16xbf16>, %k: tensor<?x?x?x16xbf16>, %v: tensor<?x?x?x8xbf16>, %decay: tensor<?x?x?x16xf32>) -> (tensor<?x?x?x8xbf16>) attributes {tile.numerics = {sub_chunk = 8, sub_chunk_keys = 1}} {
  %r0 = "attn.chunk"(%q, %k, %v, %decay) ({
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
  }) {heads = 2 : i64, direction = "forward", channels = "key", state = "kv", outputs = [], operandSegmentSizes = array<i32: 1, 1, 1, 1, 0, 0, 0>, resultSegmentSizes = array<i32: 1, 0, 0, 0, 0>, chunk = 16 : i64} : (tensor<?x?x?x16xbf16>, tensor<?x?x?x16xbf16>, tensor<?x?x?x8xbf16>, tensor<?x?x?x16xf32>) -> (tensor<?x?x?x8xbf16>)
  return %r0 : tensor<?x?x?x8xbf16>
}
