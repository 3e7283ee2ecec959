// Segments of linear attention.
// RUN: attn-opt %s --split-input-file --verify-diagnostics

!q = tensor<?x?x?x16xf32>
!v = tensor<?x?x?x8xf32>
func.func @attention(%q: !q, %k: !q, %v: !v) {
  // expected-error @below {{'attn.linear_attention' has segments of at least one position, got 0 : i64}}
  %o = "attn.linear_attention"(%q, %k, %v) ({
  ^bb0:
  }) {heads = 2 : i64, direction = "forward", channels = "none", state = "kv", outputs = [], segment = 0 : i64, operandSegmentSizes = array<i32: 1, 1, 1, 0, 0, 0, 0>, resultSegmentSizes = array<i32: 1, 0, 0, 0, 0>}
    : (!q, !q, !v) -> !v
  return
}

// -----

!q = tensor<?x?x?x16xf32>
!v = tensor<?x?x?x8xf32>
func.func @attention(%q: !q, %k: !q, %v: !v, %offsets: tensor<?xi32>) {
  // expected-error @below {{'attn.linear_attention' is cut by offsets or into segments, not both}}
  %o = "attn.linear_attention"(%q, %k, %v, %offsets) ({
  ^bb0:
  }) {heads = 2 : i64, direction = "forward", channels = "none", state = "kv", outputs = [], segment = 64 : i64, operandSegmentSizes = array<i32: 1, 1, 1, 0, 0, 0, 1>, resultSegmentSizes = array<i32: 1, 0, 0, 0, 0>}
    : (!q, !q, !v, tensor<?xi32>) -> !v
  return
}

// -----

!q = tensor<?x?x?x16xf32>
!v = tensor<?x?x?x8xf32>
func.func @attention(%q: !q, %k: !q, %v: !v) {
  // expected-error @below {{'attn.linear_attention' makes states every 64 positions, which do not divide segments of 96}}
  %o, %states = "attn.linear_attention"(%q, %k, %v) ({
  ^bb0:
  }) {heads = 2 : i64, direction = "forward", channels = "none", state = "kv", outputs = ["states"], interval = 64 : i64, segment = 96 : i64, operandSegmentSizes = array<i32: 1, 1, 1, 0, 0, 0, 0>, resultSegmentSizes = array<i32: 1, 0, 0, 1, 0>}
    : (!q, !q, !v) -> (!v, !v)
  return
}

// -----

!q = tensor<?x?x?x16xf32>
!v = tensor<?x?x?x8xf32>
func.func @attention(%q: !q, %k: !q, %v: !v) {
  // expected-error @below {{'attn.chunk' has segments of whole chunks of 16, got 24}}
  %o = "attn.chunk"(%q, %k, %v) ({
    "attn.chunk_decay"() ({
    ^bb0(%total: f32):
      "attn.yield"(%total) : (f32) -> ()
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
  }) {heads = 2 : i64, direction = "forward", channels = "none", state = "kv", outputs = [], chunk = 16 : i64, segment = 24 : i64, operandSegmentSizes = array<i32: 1, 1, 1, 0, 0, 0, 0>, resultSegmentSizes = array<i32: 1, 0, 0, 0, 0>}
    : (!q, !q, !v) -> !v
  return
}

// -----

func.func @sum(%like: tensor<?x?xf32>) {
  // expected-error @below {{'attn.decay_sum' counts positions of [batch, head, position, ...], got tensor<?x?xf32>}}
  %r = "attn.decay_sum"(%like) ({
  ^bb0:
  }) {segment = 64 : i64} : (tensor<?x?xf32>) -> tensor<?x?x?xf32>
  return
}

// -----

func.func @sum(%like: tensor<?x?x?xf32>) {
  // expected-error @below {{'attn.decay_sum' has segments of at least one position, got 0}}
  %r = "attn.decay_sum"(%like) ({
  ^bb0:
  }) {segment = 0 : i64} : (tensor<?x?x?xf32>) -> tensor<?x?x?xf32>
  return
}

// -----

func.func @sum(%like: tensor<?x?x?xf32>) {
  // expected-error @below {{'attn.decay_sum' makes [batch, head, segment] of f32 or f64, or one for each of a fixed number of channels, got tensor<?x?x?x?xf32>}}
  %r = "attn.decay_sum"(%like) ({
  ^bb0:
  }) {segment = 64 : i64} : (tensor<?x?x?xf32>) -> tensor<?x?x?x?xf32>
  return
}

// -----

func.func @sum(%like: tensor<?x?x?xf32>) {
  // expected-error @below {{'attn.decay_sum' takes at most one tensor of decays}}
  %r = "attn.decay_sum"(%like, %like, %like) ({
  ^bb0:
  }) {segment = 64 : i64} : (tensor<?x?x?xf32>, tensor<?x?x?xf32>, tensor<?x?x?xf32>) -> tensor<?x?x?xf32>
  return
}

// -----

func.func @sum(%like: tensor<?x?x?xf32>, %decay: tensor<?x?x?x16xf32>) {
  // expected-error @below {{'attn.decay_sum' takes decays with the rank and the channels of its result tensor<?x?x?x8xf32>, got tensor<?x?x?x16xf32>}}
  %r = "attn.decay_sum"(%like, %decay) ({
  ^bb0:
  }) {segment = 64 : i64} : (tensor<?x?x?xf32>, tensor<?x?x?x16xf32>) -> tensor<?x?x?x8xf32>
  return
}

// -----

func.func @scan(%states: tensor<?x?x?x?xf32>, %like: tensor<?x?x?xf32>) {
  // expected-error @below {{'attn.state_scan' takes states of f32 or f64 as [batch and segment, head, row, column], got tensor<?x?x?x?xf32>}}
  %r:2 = "attn.state_scan"(%states, %like) {segment = 64 : i64, rows = 16 : i64, direction = "forward", operandSegmentSizes = array<i32: 1, 1, 0, 0>}
    : (tensor<?x?x?x?xf32>, tensor<?x?x?xf32>) -> (tensor<?x?x?x?xf32>, tensor<?x?x?x?xf32>)
  return
}

// -----

func.func @scan(%states: tensor<?x?x?x8xf32>, %like: tensor<?x?x?xf32>) {
  // expected-error @below {{'attn.state_scan' takes an initial state and makes states like tensor<?x?x?x8xf32>, got tensor<?x?x?x8xf32>, tensor<?x?x?x8xf64>}}
  %r:2 = "attn.state_scan"(%states, %like) {segment = 64 : i64, rows = 16 : i64, direction = "forward", operandSegmentSizes = array<i32: 1, 1, 0, 0>}
    : (tensor<?x?x?x8xf32>, tensor<?x?x?xf32>) -> (tensor<?x?x?x8xf32>, tensor<?x?x?x8xf64>)
  return
}

// -----

func.func @scan(%states: tensor<?x?x?x8xf32>, %like: tensor<?x?x?xf32>) {
  // expected-error @below {{'attn.state_scan' has states of `rows` rows, got 0}}
  %r:2 = "attn.state_scan"(%states, %like) {segment = 64 : i64, rows = 0 : i64, direction = "forward", operandSegmentSizes = array<i32: 1, 1, 0, 0>}
    : (tensor<?x?x?x8xf32>, tensor<?x?x?xf32>) -> (tensor<?x?x?x8xf32>, tensor<?x?x?x8xf32>)
  return
}

// -----

func.func @scan(%states: tensor<?x?x?x8xf32>, %like: tensor<?x?x?xf32>, %totals: tensor<?x?x?x8xf32>) {
  // expected-error @below {{'attn.state_scan' takes totals as [batch, head, segment], or one for each of 16 rows, in f32, got tensor<?x?x?x8xf32>}}
  %r:2 = "attn.state_scan"(%states, %like, %totals) {segment = 64 : i64, rows = 16 : i64, direction = "forward", operandSegmentSizes = array<i32: 1, 1, 1, 0>}
    : (tensor<?x?x?x8xf32>, tensor<?x?x?xf32>, tensor<?x?x?x8xf32>) -> (tensor<?x?x?x8xf32>, tensor<?x?x?x8xf32>)
  return
}

// -----

func.func @scan(%states: tensor<?x?x?x8xf32>, %like: tensor<?x?x?xf32>) {
  // expected-error @below {{'attn.state_scan' takes `direction` as one of forward, backward, got 'sideways'}}
  %r:2 = "attn.state_scan"(%states, %like) {segment = 64 : i64, rows = 16 : i64, direction = "sideways", operandSegmentSizes = array<i32: 1, 1, 0, 0>}
    : (tensor<?x?x?x8xf32>, tensor<?x?x?xf32>) -> (tensor<?x?x?x8xf32>, tensor<?x?x?x8xf32>)
  return
}

// -----

func.func @scan(%states: tensor<?x?x16x8xf32>, %like: tensor<?x?x?xf32>) {
  // expected-error @below {{'attn.transition_scan' takes the columns of 16 x 16 transitions in 2 tensors like tensor<?x?x16x8xf32>, got tensor<?x?x16x8xf32>}}
  %r:2 = "attn.transition_scan"(%states, %like, %states) {segment = 64 : i64, rows = 16 : i64, direction = "forward", operandSegmentSizes = array<i32: 1, 1, 0, 1>}
    : (tensor<?x?x16x8xf32>, tensor<?x?x?xf32>, tensor<?x?x16x8xf32>) -> (tensor<?x?x16x8xf32>, tensor<?x?x16x8xf32>)
  return
}

// -----

!q = tensor<?x?x?x16xf32>
!v = tensor<?x?x?x8xf32>

func.func @start(%q: !q, %k: !q, %v: !v) {
  // expected-error @below {{'attn.linear_attention' starts with a column of the 16 x 16 `identity`, got 16 : i64}}
  %o = "attn.linear_attention"(%q, %k, %v) ({
  ^bb0:
  }) {heads = 2 : i64, direction = "forward", channels = "none", state = "kv", identity = 16 : i64, outputs = [], operandSegmentSizes = array<i32: 1, 1, 1, 0, 0, 0, 0>, resultSegmentSizes = array<i32: 1, 0, 0, 0, 0>}
    : (!q, !q, !v) -> !v
  return
}

// -----

!q = tensor<?x?x?x16xf32>
!v = tensor<?x?x?x8xf32>

func.func @start(%q: !q, %k: !q, %v: !v) {
  // expected-error @below {{'attn.linear_attention' starts from columns of the `identity` without initial_state, where states are 'kv'}}
  %o = "attn.linear_attention"(%q, %k, %v) ({
  ^bb0:
  }) {heads = 2 : i64, direction = "forward", channels = "none", state = "vk", identity = 0 : i64, outputs = [], operandSegmentSizes = array<i32: 1, 1, 1, 0, 0, 0, 0>, resultSegmentSizes = array<i32: 1, 0, 0, 0, 0>}
    : (!q, !q, !v) -> !v
  return
}
