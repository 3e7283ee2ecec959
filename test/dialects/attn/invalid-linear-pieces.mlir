// Pieces of linear attention and of its chunked form, and the ops of its gradients.
// RUN: attn-opt %s --split-input-file --verify-diagnostics

func.func @attention(%q: tensor<?x?x?x16xf32>, %k: tensor<?x?x?x16xf32>, %v: tensor<?x?x?x8xf32>) {
  %o = "attn.linear_attention"(%q, %k, %v) ({
    // expected-error @below {{'attn.score' belongs inside attn.attention or attn.online}}
    "attn.score"() ({
    ^bb0(%s: f32, %b: index, %h: index, %i: index, %j: index):
      "attn.yield"(%s) : (f32) -> ()
    }) : () -> ()
  }) {heads = 2 : i64, direction = "forward", channels = "none", state = "kv", outputs = [], operandSegmentSizes = array<i32: 1, 1, 1, 0, 0, 0, 0>, resultSegmentSizes = array<i32: 1, 0, 0, 0, 0>}
    : (tensor<?x?x?x16xf32>, tensor<?x?x?x16xf32>, tensor<?x?x?x8xf32>) -> tensor<?x?x?x8xf32>
  return
}

// -----

func.func @attention(%q: tensor<?x?x?x16xf32>, %k: tensor<?x?x?x16xf32>, %v: tensor<?x?x?x8xf32>) {
  // expected-error @below {{'attn.linear_attention' holds more than one 'attn.decay'}}
  %o = "attn.linear_attention"(%q, %k, %v) ({
    "attn.decay"() ({
    ^bb0(%x: f32, %b: index, %h: index, %t: index, %d: index):
      "attn.yield"(%x) : (f32) -> ()
    }) : () -> ()
    "attn.decay"() ({
    ^bb0(%x: f32, %b: index, %h: index, %t: index, %d: index):
      "attn.yield"(%x) : (f32) -> ()
    }) : () -> ()
  }) {heads = 2 : i64, direction = "forward", channels = "none", state = "kv", outputs = [], operandSegmentSizes = array<i32: 1, 1, 1, 0, 0, 0, 0>, resultSegmentSizes = array<i32: 1, 0, 0, 0, 0>}
    : (tensor<?x?x?x16xf32>, tensor<?x?x?x16xf32>, tensor<?x?x?x8xf32>) -> tensor<?x?x?x8xf32>
  return
}

// -----

func.func @attention(%q: tensor<?x?x?x16xf32>, %k: tensor<?x?x?x16xf32>, %v: tensor<?x?x?x8xf32>) {
  %o = "attn.linear_attention"(%q, %k, %v) ({
    // expected-error @below {{'attn.decay' takes (g, b, h, t, d), got (score, index, index, index)}}
    "attn.decay"() ({
    ^bb0(%g: f32, %b: index, %h: index, %t: index):
      "attn.yield"(%g) : (f32) -> ()
    }) : () -> ()
  }) {heads = 2 : i64, direction = "forward", channels = "none", state = "kv", outputs = [], operandSegmentSizes = array<i32: 1, 1, 1, 0, 0, 0, 0>, resultSegmentSizes = array<i32: 1, 0, 0, 0, 0>}
    : (tensor<?x?x?x16xf32>, tensor<?x?x?x16xf32>, tensor<?x?x?x8xf32>) -> tensor<?x?x?x8xf32>
  return
}

// -----

func.func @attention(%q: tensor<?x?x?x16xf32>, %k: tensor<?x?x?x16xf32>, %v: tensor<?x?x?x8xf32>) {
  // expected-error @below {{'attn.chunk' lacks its 'attn.chunk_decay' piece}}
  %o = "attn.chunk"(%q, %k, %v) ({
  ^bb0:
  }) {heads = 2 : i64, direction = "forward", channels = "none", state = "kv", outputs = [], chunk = 64 : i64, operandSegmentSizes = array<i32: 1, 1, 1, 0, 0, 0, 0>, resultSegmentSizes = array<i32: 1, 0, 0, 0, 0>}
    : (tensor<?x?x?x16xf32>, tensor<?x?x?x16xf32>, tensor<?x?x?x8xf32>) -> tensor<?x?x?x8xf32>
  return
}

// -----

func.func @attention(%q: tensor<?x?x?x16xf32>, %k: tensor<?x?x?x16xf32>, %v: tensor<?x?x?x8xf32>) {
  // expected-error @below {{'attn.chunk' has chunks of at least one position, got 0}}
  %o = "attn.chunk"(%q, %k, %v) ({
    "attn.chunk_decay"() ({
    ^bb0(%total: f32):
      "attn.yield"(%total) : (f32) -> ()
    }) : () -> ()
    "attn.input_decay"() ({
    ^bb0(%prefix: f32, %total: f32):
      "attn.yield"(%prefix) : (f32) -> ()
    }) : () -> ()
    "attn.output_decay"() ({
    ^bb0(%prefix: f32, %total: f32):
      "attn.yield"(%prefix) : (f32) -> ()
    }) : () -> ()
    "attn.decay_mask"() ({
    ^bb0(%prefix_t: f32, %prefix_s: f32):
      "attn.yield"(%prefix_t) : (f32) -> ()
    }) : () -> ()
  }) {heads = 2 : i64, direction = "forward", channels = "none", state = "kv", outputs = [], chunk = 0 : i64, operandSegmentSizes = array<i32: 1, 1, 1, 0, 0, 0, 0>, resultSegmentSizes = array<i32: 1, 0, 0, 0, 0>}
    : (tensor<?x?x?x16xf32>, tensor<?x?x?x16xf32>, tensor<?x?x?x8xf32>) -> tensor<?x?x?x8xf32>
  return
}

// -----

func.func @attention(%q: tensor<?x?x?x16xf32>, %k: tensor<?x?x?x16xf32>, %v: tensor<?x?x?x8xf32>) {
  // expected-error @below {{'attn.chunk' makes states at multiples of 64 positions, got 96}}
  %o, %states = "attn.chunk"(%q, %k, %v) ({
    "attn.chunk_decay"() ({
    ^bb0(%total: f32):
      "attn.yield"(%total) : (f32) -> ()
    }) : () -> ()
    "attn.input_decay"() ({
    ^bb0(%prefix: f32, %total: f32):
      "attn.yield"(%prefix) : (f32) -> ()
    }) : () -> ()
    "attn.output_decay"() ({
    ^bb0(%prefix: f32, %total: f32):
      "attn.yield"(%prefix) : (f32) -> ()
    }) : () -> ()
    "attn.decay_mask"() ({
    ^bb0(%prefix_t: f32, %prefix_s: f32):
      "attn.yield"(%prefix_t) : (f32) -> ()
    }) : () -> ()
  }) {heads = 2 : i64, direction = "forward", channels = "none", state = "kv", outputs = ["states"], chunk = 64 : i64, interval = 96 : i64, operandSegmentSizes = array<i32: 1, 1, 1, 0, 0, 0, 0>, resultSegmentSizes = array<i32: 1, 0, 0, 1, 0>}
    : (tensor<?x?x?x16xf32>, tensor<?x?x?x16xf32>, tensor<?x?x?x8xf32>) -> (tensor<?x?x?x8xf32>, tensor<?x?x?x8xf32>)
  return
}

// -----

func.func @attention(%q: tensor<?x?x?x16xf32>, %k: tensor<?x?x?x16xf32>, %v: tensor<?x?x?x8xf32>) {
  // expected-error @below {{'attn.chunk' has chunks of the interval where products are `crossing`, got 64 and 128}}
  %o, %states = "attn.chunk"(%q, %k, %v) ({
    "attn.chunk_decay"() ({
    ^bb0(%total: f32):
      "attn.yield"(%total) : (f32) -> ()
    }) : () -> ()
    "attn.input_decay"() ({
    ^bb0(%prefix: f32, %total: f32):
      "attn.yield"(%prefix) : (f32) -> ()
    }) : () -> ()
    "attn.output_decay"() ({
    ^bb0(%prefix: f32, %total: f32):
      "attn.yield"(%prefix) : (f32) -> ()
    }) : () -> ()
    "attn.decay_mask"() ({
    ^bb0(%prefix_t: f32, %prefix_s: f32):
      "attn.yield"(%prefix_t) : (f32) -> ()
    }) : () -> ()
  }) {heads = 2 : i64, direction = "forward", channels = "none", state = "kv", outputs = ["states"], crossing, chunk = 64 : i64, interval = 128 : i64, operandSegmentSizes = array<i32: 1, 1, 1, 0, 0, 0, 0>, resultSegmentSizes = array<i32: 1, 0, 0, 1, 0>}
    : (tensor<?x?x?x16xf32>, tensor<?x?x?x16xf32>, tensor<?x?x?x8xf32>) -> (tensor<?x?x?x8xf32>, tensor<?x?x?x8xf32>)
  return
}

// -----

func.func @attention(%q: tensor<?x?x?x16xf32>, %k: tensor<?x?x?x16xf32>, %v: tensor<?x?x?x8xf32>) {
  %o = "attn.chunk"(%q, %k, %v) ({
    // expected-error @below {{'attn.chunk_decay' yields (score), got (score, score)}}
    "attn.chunk_decay"() ({
    ^bb0(%total: f32):
      "attn.yield"(%total, %total) : (f32, f32) -> ()
    }) : () -> ()
    "attn.input_decay"() ({
    ^bb0(%prefix: f32, %total: f32):
      "attn.yield"(%prefix) : (f32) -> ()
    }) : () -> ()
    "attn.output_decay"() ({
    ^bb0(%prefix: f32, %total: f32):
      "attn.yield"(%prefix) : (f32) -> ()
    }) : () -> ()
    "attn.decay_mask"() ({
    ^bb0(%prefix_t: f32, %prefix_s: f32):
      "attn.yield"(%prefix_t) : (f32) -> ()
    }) : () -> ()
  }) {heads = 2 : i64, direction = "forward", channels = "none", state = "kv", outputs = [], chunk = 64 : i64, operandSegmentSizes = array<i32: 1, 1, 1, 0, 0, 0, 0>, resultSegmentSizes = array<i32: 1, 0, 0, 0, 0>}
    : (tensor<?x?x?x16xf32>, tensor<?x?x?x16xf32>, tensor<?x?x?x8xf32>) -> tensor<?x?x?x8xf32>
  return
}

// -----

func.func @attention(%q: tensor<?x?x?x16xf32>, %k: tensor<?x?x?x16xf32>, %v: tensor<?x?x?x8xf32>) {
  %o = "attn.linear_attention"(%q, %k, %v) ({
    // expected-error @below {{'attn.chunk_decay' belongs inside attn.chunk}}
    "attn.chunk_decay"() ({
    ^bb0(%total: f32):
      "attn.yield"(%total) : (f32) -> ()
    }) : () -> ()
    "attn.input_decay"() ({
    ^bb0(%prefix: f32, %total: f32):
      "attn.yield"(%prefix) : (f32) -> ()
    }) : () -> ()
    "attn.output_decay"() ({
    ^bb0(%prefix: f32, %total: f32):
      "attn.yield"(%prefix) : (f32) -> ()
    }) : () -> ()
    "attn.decay_mask"() ({
    ^bb0(%prefix_t: f32, %prefix_s: f32):
      "attn.yield"(%prefix_t) : (f32) -> ()
    }) : () -> ()
  }) {heads = 2 : i64, direction = "forward", channels = "none", state = "kv", outputs = [], operandSegmentSizes = array<i32: 1, 1, 1, 0, 0, 0, 0>, resultSegmentSizes = array<i32: 1, 0, 0, 0, 0>}
    : (tensor<?x?x?x16xf32>, tensor<?x?x?x16xf32>, tensor<?x?x?x8xf32>) -> tensor<?x?x?x8xf32>
  return
}

// -----

func.func @sums(%x: tensor<?x?x?x16xf32>, %like: tensor<?x?x?x16xf32>, %a: tensor<?x?x?xf32>, %s: tensor<?x?x?x8xf32>, %other: tensor<?x?x?x16xf32>, %offsets: tensor<?xi32>) {
  // expected-error @below {{'attn.head_sum' sums heads of [B, H, T, D] or [B, H, T] to the same type, got tensor<?x?x?x16xf32>, tensor<?x?x?x16xf32> and tensor<?x?x?xf32>}}
  "attn.head_sum"(%x, %like) : (tensor<?x?x?x16xf32>, tensor<?x?x?x16xf32>) -> tensor<?x?x?xf32>
  return
}

// -----

func.func @sums(%x: tensor<?x?x?x16xf32>, %like: tensor<?x?x?x16xf32>, %a: tensor<?x?x?xf32>, %s: tensor<?x?x?x8xf32>, %other: tensor<?x?x?x16xf32>, %offsets: tensor<?xi32>) {
  // expected-error @below {{'attn.decay_gradient' takes products of one type, got tensor<?x?x?xf32> and tensor<?x?x?x16xf32>}}
  "attn.decay_gradient"(%a, %x, %s, %s) {interval = 256 : i64, rows = 16 : i64} : (tensor<?x?x?xf32>, tensor<?x?x?x16xf32>, tensor<?x?x?x8xf32>, tensor<?x?x?x8xf32>) -> tensor<?x?x?xf32>
  return
}

// -----

func.func @sums(%x: tensor<?x?x?x16xf32>, %like: tensor<?x?x?x16xf32>, %a: tensor<?x?x?xf32>, %s: tensor<?x?x?x8xf32>, %other: tensor<?x?x?x16xf32>, %offsets: tensor<?xi32>) {
  // expected-error @below {{'attn.decay_gradient' takes states of one type, got tensor<?x?x?x8xf32> and tensor<?x?x?x16xf32>}}
  "attn.decay_gradient"(%a, %a, %s, %other) {interval = 256 : i64, rows = 16 : i64} : (tensor<?x?x?xf32>, tensor<?x?x?xf32>, tensor<?x?x?x8xf32>, tensor<?x?x?x16xf32>) -> tensor<?x?x?xf32>
  return
}

// -----

func.func @sums(%x: tensor<?x?x?x16xf32>, %like: tensor<?x?x?x16xf32>, %a: tensor<?x?x?xf32>, %s: tensor<?x?x?x8xf32>, %other: tensor<?x?x?x16xf32>, %offsets: tensor<?xi32>) {
  // expected-error @below {{'attn.decay_gradient' takes at most one tensor of offsets}}
  "attn.decay_gradient"(%a, %a, %s, %s, %offsets, %offsets) {interval = 256 : i64, rows = 16 : i64} : (tensor<?x?x?xf32>, tensor<?x?x?xf32>, tensor<?x?x?x8xf32>, tensor<?x?x?x8xf32>, tensor<?xi32>, tensor<?xi32>) -> tensor<?x?x?xf32>
  return
}

// -----

func.func @sums(%x: tensor<?x?x?x16xf32>, %like: tensor<?x?x?x16xf32>, %a: tensor<?x?x?xf32>, %s: tensor<?x?x?x8xf32>, %other: tensor<?x?x?x16xf32>, %offsets: tensor<?xi32>) {
  // expected-error @below {{'attn.decay_gradient' makes decays shaped like the products, got tensor<?x?x?x16xf32> for tensor<?x?x?xf32>}}
  "attn.decay_gradient"(%a, %a, %s, %s) {interval = 256 : i64, rows = 16 : i64} : (tensor<?x?x?xf32>, tensor<?x?x?xf32>, tensor<?x?x?x8xf32>, tensor<?x?x?x8xf32>) -> tensor<?x?x?x16xf32>
  return
}

// -----

func.func @sums(%x: tensor<?x?x?x16xf32>, %like: tensor<?x?x?x16xf32>, %a: tensor<?x?x?xf32>, %s: tensor<?x?x?x8xf32>, %other: tensor<?x?x?x16xf32>, %offsets: tensor<?xi32>) {
  // expected-error @below {{'attn.decay_gradient' has a positive `interval` and positive `rows`}}
  "attn.decay_gradient"(%a, %a, %s, %s) {interval = 0 : i64, rows = 16 : i64} : (tensor<?x?x?xf32>, tensor<?x?x?xf32>, tensor<?x?x?x8xf32>, tensor<?x?x?x8xf32>) -> tensor<?x?x?xf32>
  return
}

// -----

func.func @sums(%a: tensor<?x?x?xf32>, %s: tensor<?x?x?x8xf32>, %other: tensor<?x?x?x16xf32>) {
  // expected-error @below {{'attn.decay_gradient_sum' takes products of one type, got tensor<?x?x?xf32>, tensor<?x?x?xf32>, tensor<?x?x?x16xf32>, tensor<?x?x?xf32>}}
  "attn.decay_gradient_sum"(%a, %a, %other, %a, %s, %s, %s) {interval = 256 : i64, rows = 16 : i64} : (tensor<?x?x?xf32>, tensor<?x?x?xf32>, tensor<?x?x?x16xf32>, tensor<?x?x?xf32>, tensor<?x?x?x8xf32>, tensor<?x?x?x8xf32>, tensor<?x?x?x8xf32>) -> tensor<?x?x?xf32>
  return
}

// -----

func.func @sums(%a: tensor<?x?x?xf32>, %s: tensor<?x?x?x8xf32>, %other: tensor<?x?x?x16xf32>) {
  // expected-error @below {{'attn.decay_gradient_sum' takes states of one type, got tensor<?x?x?x8xf32>, tensor<?x?x?x8xf32>, tensor<?x?x?x16xf32>}}
  "attn.decay_gradient_sum"(%a, %a, %a, %a, %s, %s, %other) {interval = 256 : i64, rows = 16 : i64} : (tensor<?x?x?xf32>, tensor<?x?x?xf32>, tensor<?x?x?xf32>, tensor<?x?x?xf32>, tensor<?x?x?x8xf32>, tensor<?x?x?x8xf32>, tensor<?x?x?x16xf32>) -> tensor<?x?x?xf32>
  return
}

// -----

func.func @sums(%a: tensor<?x?x?xf32>, %s: tensor<?x?x?x8xf32>, %other: tensor<?x?x?x16xf32>) {
  // expected-error @below {{'attn.decay_gradient_sum' has a positive `interval` and positive `rows`}}
  "attn.decay_gradient_sum"(%a, %a, %a, %a, %s, %s, %s) {interval = 0 : i64, rows = 16 : i64} : (tensor<?x?x?xf32>, tensor<?x?x?xf32>, tensor<?x?x?xf32>, tensor<?x?x?xf32>, tensor<?x?x?x8xf32>, tensor<?x?x?x8xf32>, tensor<?x?x?x8xf32>) -> tensor<?x?x?xf32>
  return
}

// -----

func.func @sums(%a: tensor<?x?x?xf32>, %s: tensor<?x?x?x8xf32>, %other: tensor<?x?x?x16xf32>) {
  // expected-error @below {{'attn.decay_gradient_sum' makes decays shaped like the products, got tensor<?x?x?x16xf32> for tensor<?x?x?xf32>}}
  "attn.decay_gradient_sum"(%a, %a, %a, %a, %s, %s, %s) {interval = 256 : i64, rows = 16 : i64} : (tensor<?x?x?xf32>, tensor<?x?x?xf32>, tensor<?x?x?xf32>, tensor<?x?x?xf32>, tensor<?x?x?x8xf32>, tensor<?x?x?x8xf32>, tensor<?x?x?x8xf32>) -> tensor<?x?x?x16xf32>
  return
}
