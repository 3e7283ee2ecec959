// RUN: attn-opt %s -p 'attn-chunk-rewrite{chunk=32}' | FileCheck %s

// Towards later positions: a chunk's state is that of its beginning, where nothing has decayed yet. The scale of q becomes a factor of what
// makes o.
// CHECK-LABEL: func.func @forward(
// CHECK-SAME:    %[[Q:.*]]: tensor<?x?x?x16xf32>, %[[K:.*]]: tensor<?x?x?x16xf32>, %[[V:.*]]: tensor<?x?x?x8xf32>, %[[G:.*]]: tensor<?x?x?xf32>, %[[STATE:.*]]: tensor<?x?x16x8xf32>)
// CHECK:       "attn.chunk"(%[[Q]], %[[K]], %[[V]], %[[G]], %[[STATE]])
// CHECK-NEXT:    "attn.decay"() ({
// CHECK-NEXT:    ^bb0(%[[LOG_DECAY:.*]]: f32, %{{.*}}: index, %{{.*}}: index, %{{.*}}: index, %{{.*}}: index):
// CHECK-NEXT:      %[[LOWEST:.*]] = arith.constant -1.040000e+02
// CHECK-NEXT:      %[[BOUNDED:.*]] = arith.maximumf %[[LOG_DECAY]], %[[LOWEST]]
// CHECK-NEXT:      "attn.yield"(%[[BOUNDED]])
// CHECK:         "attn.chunk_decay"() ({
// CHECK-NEXT:    ^bb0(%[[TOTAL:.*]]: f32):
// CHECK-NEXT:      %[[CARRY:.*]] = math.exp %[[TOTAL]]
// CHECK-NEXT:      "attn.yield"(%[[CARRY]])
// CHECK:         "attn.input_decay"() ({
// CHECK-NEXT:    ^bb0(%[[PREFIX:.*]]: f32, %[[TOTAL:.*]]: f32):
// CHECK-NEXT:      %[[AFTER:.*]] = arith.subf %[[TOTAL]], %[[PREFIX]]
// CHECK-NEXT:      math.exp %[[AFTER]]
// CHECK:         "attn.output_decay"() ({
// CHECK-NEXT:    ^bb0(%[[PREFIX:.*]]: f32, %{{.*}}: f32):
// CHECK-NEXT:      %[[LEAVE:.*]] = math.exp %[[PREFIX]]
// CHECK-NEXT:      %[[SCALE:.*]] = arith.constant 2.500000e-01
// CHECK-NEXT:      arith.mulf %[[LEAVE]], %[[SCALE]]
// CHECK:         "attn.decay_mask"() ({
// CHECK-NEXT:    ^bb0(%[[OF_T:.*]]: f32, %[[OF_S:.*]]: f32):
// CHECK-NEXT:      %[[BETWEEN:.*]] = arith.subf %[[OF_T]], %[[OF_S]]
// CHECK-NEXT:      %[[WEIGHT:.*]] = math.exp %[[BETWEEN]]
// CHECK-NEXT:      %[[SCALE:.*]] = arith.constant 2.500000e-01
// CHECK-NEXT:      arith.mulf %[[WEIGHT]], %[[SCALE]]
// CHECK:       chunk = 32 : i64, direction = "forward", heads = 2 : i64
// CHECK-SAME:  outputs = ["final_state"]
func.func @forward(%q: tensor<?x?x?x16xf32>, %k: tensor<?x?x?x16xf32>, %v: tensor<?x?x?x8xf32>, %decay: tensor<?x?x?xf32>, %initial_state: tensor<?x?x16x8xf32>) -> (tensor<?x?x?x8xf32>, tensor<?x?x16x8xf32>) {
  %o, %final_state = "attn.linear_attention"(%q, %k, %v, %decay, %initial_state) ({
    "attn.query"() ({
    ^bb0(%x: f32, %b: index, %h: index, %t: index, %d: index):
      %scale = arith.constant 0.25 : f32
      %y = arith.mulf %x, %scale : f32
      "attn.yield"(%y) : (f32) -> ()
    }) : () -> ()
  }) {heads = 2 : i64, direction = "forward", channels = "none", state = "kv", outputs = ["final_state"], operandSegmentSizes = array<i32: 1, 1, 1, 1, 1, 0, 0>, resultSegmentSizes = array<i32: 1, 1, 0, 0, 0>}
    : (tensor<?x?x?x16xf32>, tensor<?x?x?x16xf32>, tensor<?x?x?x8xf32>, tensor<?x?x?xf32>, tensor<?x?x16x8xf32>) -> (tensor<?x?x?x8xf32>, tensor<?x?x16x8xf32>)
  return %o, %final_state : tensor<?x?x?x8xf32>, tensor<?x?x16x8xf32>
}

// Towards earlier positions it is that of its end; log decays of a captured tensor, in the type of scores.
// CHECK-LABEL: func.func @backward(
// CHECK:         "attn.decay"() ({
// CHECK:           %[[LOG_DECAY:.*]] = tensor.extract
// CHECK-NEXT:      %[[LOWEST:.*]] = arith.constant -7.460000e+02 : f64
// CHECK-NEXT:      arith.maximumf %[[LOG_DECAY]], %[[LOWEST]]
// CHECK:         "attn.input_decay"() ({
// CHECK-NEXT:    ^bb0(%[[PREFIX:.*]]: f64, %{{.*}}: f64):
// CHECK-NEXT:      math.exp %[[PREFIX]]
// CHECK:         "attn.output_decay"() ({
// CHECK-NEXT:    ^bb0(%[[PREFIX:.*]]: f64, %[[TOTAL:.*]]: f64):
// CHECK-NEXT:      %[[BEFORE:.*]] = arith.subf %[[TOTAL]], %[[PREFIX]]
// CHECK-NEXT:      math.exp %[[BEFORE]]
// CHECK:         "attn.decay_mask"() ({
// CHECK-NEXT:    ^bb0(%[[OF_T:.*]]: f64, %[[OF_S:.*]]: f64):
// CHECK-NEXT:      %[[BETWEEN:.*]] = arith.subf %[[OF_S]], %[[OF_T]]
// CHECK-NEXT:      math.exp %[[BETWEEN]]
func.func @backward(%q: tensor<?x?x?x16xf64>, %k: tensor<?x?x?x16xf64>, %v: tensor<?x?x?x8xf64>, %log_gamma: tensor<?xf64>) -> tensor<?x?x?x8xf64> {
  %o = "attn.linear_attention"(%q, %k, %v) ({
    "attn.decay"() ({
    ^bb0(%g: f64, %b: index, %h: index, %t: index, %d: index):
      %y = tensor.extract %log_gamma[%h] : tensor<?xf64>
      "attn.yield"(%y) : (f64) -> ()
    }) : () -> ()
  }) {heads = 2 : i64, direction = "backward", channels = "none", state = "kv", outputs = [], operandSegmentSizes = array<i32: 1, 1, 1, 0, 0, 0, 0>, resultSegmentSizes = array<i32: 1, 0, 0, 0, 0>}
    : (tensor<?x?x?x16xf64>, tensor<?x?x?x16xf64>, tensor<?x?x?x8xf64>) -> tensor<?x?x?x8xf64>
  return %o : tensor<?x?x?x8xf64>
}

// Without decays nothing is to be bounded.
// CHECK-LABEL: func.func @no_decay(
// CHECK-NOT:     "attn.decay"
// CHECK:         return
func.func @no_decay(%q: tensor<?x?x?x16xf32>, %k: tensor<?x?x?x16xf32>, %v: tensor<?x?x?x8xf32>) -> tensor<?x?x?x8xf32> {
  %o = "attn.linear_attention"(%q, %k, %v) ({
  ^bb0:
  }) {heads = 2 : i64, direction = "forward", channels = "none", state = "kv", outputs = [], operandSegmentSizes = array<i32: 1, 1, 1, 0, 0, 0, 0>, resultSegmentSizes = array<i32: 1, 0, 0, 0, 0>}
    : (tensor<?x?x?x16xf32>, tensor<?x?x?x16xf32>, tensor<?x?x?x8xf32>) -> tensor<?x?x?x8xf32>
  return %o : tensor<?x?x?x8xf32>
}

// A scale of k, here a scalar argument, goes into the state; what is more than a scale stays a change of q.
// CHECK-LABEL: func.func @scales(
// CHECK-SAME:    %[[SCALE:[a-z0-9]+]]: f32)
// CHECK-NOT:     "attn.key"
// CHECK:         "attn.query"
// CHECK:         "attn.input_decay"
// CHECK:           arith.mulf %{{.*}}, %[[SCALE]]
// CHECK:         "attn.output_decay"
// CHECK-NOT:       arith.mulf
// CHECK:         "attn.decay_mask"
// CHECK:           arith.mulf %{{.*}}, %[[SCALE]]
func.func @scales(%q: tensor<?x?x?x16xf32>, %k: tensor<?x?x?x16xf32>, %v: tensor<?x?x?x8xf32>, %scale: f32) -> tensor<?x?x?x8xf32> {
  %o = "attn.linear_attention"(%q, %k, %v) ({
    "attn.query"() ({
    ^bb0(%x: f32, %b: index, %h: index, %t: index, %d: index):
      %y = arith.mulf %x, %x : f32
      "attn.yield"(%y) : (f32) -> ()
    }) : () -> ()
    "attn.key"() ({
    ^bb0(%x: f32, %b: index, %h: index, %t: index, %d: index):
      %y = arith.mulf %scale, %x : f32
      "attn.yield"(%y) : (f32) -> ()
    }) : () -> ()
  }) {heads = 2 : i64, direction = "forward", channels = "none", state = "kv", outputs = [], operandSegmentSizes = array<i32: 1, 1, 1, 0, 0, 0, 0>, resultSegmentSizes = array<i32: 1, 0, 0, 0, 0>}
    : (tensor<?x?x?x16xf32>, tensor<?x?x?x16xf32>, tensor<?x?x?x8xf32>) -> tensor<?x?x?x8xf32>
  return %o : tensor<?x?x?x8xf32>
}
