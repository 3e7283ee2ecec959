// RUN: attn-opt %s -p 'attn-tile-chunks,canonicalize,cse' --split-input-file | FileCheck %s

// Decays of key channels: pairs within 8 positions one by one; those of the chunk's two halves are one product of factors of at most 1, each
// as seen from the last position of the first half.

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
// CHECK:         %[[Q:.*]] = "tile.map"(%c16, %c16)
// CHECK:           arith.maxsi
// CHECK:         %[[K:.*]] = "tile.map"(%c16, %c16)
// CHECK:           arith.addi %{{.*}}, %c7
// CHECK:         %[[FAR:.*]] = "tile.dot"(%[[Q]], %[[K]]) {transpose_b = true}
// CHECK:         %[[WEIGHTS:.*]] = "tile.map"(%c16, %c16)
// CHECK:           %[[NEAR_ONE:.*]] = tensor.extract %[[NEAR]]
// CHECK:           %[[DIFFER:.*]] = arith.xori
// CHECK:           %[[IS_FAR:.*]] = arith.cmpi uge, %[[DIFFER]], %c8
// CHECK:           %[[FAR_ONE:.*]] = tensor.extract %[[FAR]]
// CHECK:           arith.select %[[IS_FAR]], %[[FAR_ONE]], %[[NEAR_ONE]]
// CHECK:         "tile.dot_add"(%{{.*}}, %[[WEIGHTS]],
func.func @attention(%q: tensor<?x?x?x16xf32>, %k: tensor<?x?x?x16xf32>, %v: tensor<?x?x?x8xf32>, %decay: tensor<?x?x?x16xf32>) -> (tensor<?x?x?x8xf32>) attributes {tile.numerics = {sub_chunk = 8}} {
  %r0 = "attn.chunk"(%q, %k, %v, %decay) ({
  ^bb0:
    "attn.carry"() ({
    ^bb0(%total: f32):
      %y = math.exp %total : f32
      "attn.yield"(%y) : (f32) -> ()
    }) : () -> ()
    "attn.enter"() ({
    ^bb0(%prefix: f32, %total: f32):
      %x = arith.subf %total, %prefix : f32
      %y = math.exp %x : f32
      "attn.yield"(%y) : (f32) -> ()
    }) : () -> ()
    "attn.leave"() ({
    ^bb0(%prefix: f32, %total: f32):
      %y = math.exp %prefix : f32
      "attn.yield"(%y) : (f32) -> ()
    }) : () -> ()
    "attn.weight"() ({
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
    "attn.carry"() ({
    ^bb0(%total: f32):
      %y = math.exp %total : f32
      "attn.yield"(%y) : (f32) -> ()
    }) : () -> ()
    "attn.enter"() ({
    ^bb0(%prefix: f32, %total: f32):
      %y = math.exp %prefix : f32
      "attn.yield"(%y) : (f32) -> ()
    }) : () -> ()
    "attn.leave"() ({
    ^bb0(%prefix: f32, %total: f32):
      %x = arith.subf %total, %prefix : f32
      %y = math.exp %x : f32
      "attn.yield"(%y) : (f32) -> ()
    }) : () -> ()
    "attn.weight"() ({
    ^bb0(%prefix_t: f32, %prefix_s: f32):
      %x = arith.subf %prefix_s, %prefix_t : f32
      %y = math.exp %x : f32
      "attn.yield"(%y) : (f32) -> ()
    }) : () -> ()
  }) {heads = 2 : i64, direction = "backward", channels = "value", state = "vk", outputs = [], operandSegmentSizes = array<i32: 1, 1, 1, 1, 0, 0, 0>, resultSegmentSizes = array<i32: 1, 0, 0, 0, 0>, chunk = 16 : i64} : (tensor<?x?x?x16xf32>, tensor<?x?x?x16xf32>, tensor<?x?x?x8xf32>, tensor<?x?x?x8xf32>) -> (tensor<?x?x?x8xf32>)
  return %r0 : tensor<?x?x?x8xf32>
}

