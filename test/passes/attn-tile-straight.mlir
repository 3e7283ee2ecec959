// A state [V, K] held as [K, V]: no product transposes it. It is transposed where it is read (the initial state) and where it is stored.
// RUN: attn-opt %s -p 'attn-tile{straight=true},canonicalize,cse' | FileCheck %s

// CHECK-LABEL: func.func @attention(
// CHECK:         %[[READ:.*]] = "tile.load"{{.*}} -> tensor<8x16xf32>
// CHECK-NEXT:    %[[INITIAL:.*]] = "tile.map"(%c16, %c8)
// CHECK-NEXT:    ^bb0(%[[I:.*]]: index, %[[J:.*]]: index):
// CHECK-NEXT:      %[[X:.*]] = tensor.extract %[[READ]][%[[J]], %[[I]]]
// CHECK-NEXT:      "tile.yield"(%[[X]])
// CHECK-NEXT:    }) {{.*}} -> tensor<16x8xf32>
// CHECK:         %[[LAST:.*]] = scf.for {{.*}} iter_args(%[[STATE:.*]] = %[[INITIAL]]) -> (tensor<16x8xf32>)
// CHECK:           "tile.dot"(%{{.*}}, %[[STATE]]) {transpose_b = false}
// CHECK:           %[[NEXT:.*]] = "tile.dot_rescale"(%[[STATE]], %{{.*}}) {transpose_a = true, transpose_b = false}
// CHECK:           scf.yield %[[NEXT]]
// CHECK:         %[[FINAL:.*]] = "tile.map"(%c8, %c16)
// CHECK:         "tile.store"(%[[FINAL]]
func.func @attention(%q: tensor<?x?x?x16xf32>, %k: tensor<?x?x?x16xf32>, %v: tensor<?x?x?x8xf32>, %initial: tensor<?x?x?x16xf32>) -> (tensor<?x?x?x8xf32>, tensor<?x?x?x16xf32>) {
  %r0, %r1 = "attn.chunk"(%q, %k, %v, %initial) ({
  ^bb0:
    "attn.carry"() ({
    ^bb0(%total: f32):
      "attn.yield"(%total) : (f32) -> ()
    }) : () -> ()
    "attn.enter"() ({
    ^bb0(%prefix: f32, %total: f32):
      "attn.yield"(%prefix) : (f32) -> ()
    }) : () -> ()
    "attn.leave"() ({
    ^bb0(%prefix: f32, %total: f32):
      "attn.yield"(%total) : (f32) -> ()
    }) : () -> ()
    "attn.weight"() ({
    ^bb0(%prefix_t: f32, %prefix_s: f32):
      "attn.yield"(%prefix_s) : (f32) -> ()
    }) : () -> ()
  }) {heads = 2 : i64, direction = "backward", channels = "none", state = "vk", outputs = ["final_state"], operandSegmentSizes = array<i32: 1, 1, 1, 0, 1, 0, 0>, resultSegmentSizes = array<i32: 1, 1, 0, 0>, chunk = 16 : i64} : (tensor<?x?x?x16xf32>, tensor<?x?x?x16xf32>, tensor<?x?x?x8xf32>, tensor<?x?x?x16xf32>) -> (tensor<?x?x?x8xf32>, tensor<?x?x?x16xf32>)
  return %r0, %r1 : tensor<?x?x?x8xf32>, tensor<?x?x?x16xf32>
}
