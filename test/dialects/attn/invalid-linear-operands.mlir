// Operands and attributes of linear attention.
// RUN: attn-opt %s --split-input-file --verify-diagnostics

func.func @attention(%q: tensor<?x?x?x16xf32>, %k: tensor<?x?x?x16xf32>, %v: tensor<?x?x?x?xf32>) {
  // expected-error @below {{'attn.linear_attention' takes v as [batch, head, position, dim] with a static dim, got tensor<?x?x?x?xf32>}}
  %o = "attn.linear_attention"(%q, %k, %v) ({
  ^bb0:
  }) {heads = 2 : i64, direction = "forward", channels = "none", state = "kv", outputs = [], operandSegmentSizes = array<i32: 1, 1, 1, 0, 0, 0, 0>, resultSegmentSizes = array<i32: 1, 0, 0, 0, 0>}
    : (tensor<?x?x?x16xf32>, tensor<?x?x?x16xf32>, tensor<?x?x?x?xf32>) -> tensor<?x?x?x?xf32>
  return
}

// -----

func.func @attention(%q: tensor<?x?x?x32xf32>, %k: tensor<?x?x?x16xf32>, %v: tensor<?x?x?x8xf32>) {
  // expected-error @below {{'attn.linear_attention' needs equal head dimensions of q and k, got 32 and 16}}
  %o = "attn.linear_attention"(%q, %k, %v) ({
  ^bb0:
  }) {heads = 2 : i64, direction = "forward", channels = "none", state = "kv", outputs = [], operandSegmentSizes = array<i32: 1, 1, 1, 0, 0, 0, 0>, resultSegmentSizes = array<i32: 1, 0, 0, 0, 0>}
    : (tensor<?x?x?x32xf32>, tensor<?x?x?x16xf32>, tensor<?x?x?x8xf32>) -> tensor<?x?x?x8xf32>
  return
}

// -----

func.func @attention(%q: tensor<?x?x?x16xf16>, %k: tensor<?x?x?x16xf32>, %v: tensor<?x?x?x8xf32>) {
  // expected-error @below {{'attn.linear_attention' needs one element type for q, k and v, got tensor<?x?x?x16xf16>, tensor<?x?x?x16xf32>, tensor<?x?x?x8xf32>}}
  %o = "attn.linear_attention"(%q, %k, %v) ({
  ^bb0:
  }) {heads = 2 : i64, direction = "forward", channels = "none", state = "kv", outputs = [], operandSegmentSizes = array<i32: 1, 1, 1, 0, 0, 0, 0>, resultSegmentSizes = array<i32: 1, 0, 0, 0, 0>}
    : (tensor<?x?x?x16xf16>, tensor<?x?x?x16xf32>, tensor<?x?x?x8xf32>) -> tensor<?x?x?x8xf32>
  return
}

// -----

func.func @attention(%q: tensor<?x?x?x16xf32>, %k: tensor<?x?x?x16xf32>, %v: tensor<?x?x?x8xf32>) {
  // expected-error @below {{'attn.linear_attention' makes o with v's head dimension 8, got tensor<?x?x?x16xf32>}}
  %o = "attn.linear_attention"(%q, %k, %v) ({
  ^bb0:
  }) {heads = 2 : i64, direction = "forward", channels = "none", state = "kv", outputs = [], operandSegmentSizes = array<i32: 1, 1, 1, 0, 0, 0, 0>, resultSegmentSizes = array<i32: 1, 0, 0, 0, 0>}
    : (tensor<?x?x?x16xf32>, tensor<?x?x?x16xf32>, tensor<?x?x?x8xf32>) -> tensor<?x?x?x16xf32>
  return
}

// -----

func.func @attention(%q: tensor<?x?x?x16xf32>, %k: tensor<?x?x?x16xf32>, %v: tensor<?x?x?x8xf32>, %decay: tensor<?x?x?x16xf32>) {
  // expected-error @below {{'attn.linear_attention' takes decay as [batch, head, position] for channels 'none', got tensor<?x?x?x16xf32>}}
  %o = "attn.linear_attention"(%q, %k, %v, %decay) ({
  ^bb0:
  }) {heads = 2 : i64, direction = "forward", channels = "none", state = "kv", outputs = [], operandSegmentSizes = array<i32: 1, 1, 1, 1, 0, 0, 0>, resultSegmentSizes = array<i32: 1, 0, 0, 0, 0>}
    : (tensor<?x?x?x16xf32>, tensor<?x?x?x16xf32>, tensor<?x?x?x8xf32>, tensor<?x?x?x16xf32>) -> tensor<?x?x?x8xf32>
  return
}

// -----

func.func @attention(%q: tensor<?x?x?x16xf32>, %k: tensor<?x?x?x16xf32>, %v: tensor<?x?x?x8xf32>, %decay: tensor<?x?x?xf32>) {
  // expected-error @below {{'attn.linear_attention' takes decay as [batch, head, position, 16] for channels 'key', got tensor<?x?x?xf32>}}
  %o = "attn.linear_attention"(%q, %k, %v, %decay) ({
  ^bb0:
  }) {heads = 2 : i64, direction = "forward", channels = "key", state = "kv", outputs = [], operandSegmentSizes = array<i32: 1, 1, 1, 1, 0, 0, 0>, resultSegmentSizes = array<i32: 1, 0, 0, 0, 0>}
    : (tensor<?x?x?x16xf32>, tensor<?x?x?x16xf32>, tensor<?x?x?x8xf32>, tensor<?x?x?xf32>) -> tensor<?x?x?x8xf32>
  return
}

// -----

func.func @attention(%q: tensor<?x?x?x16xf32>, %k: tensor<?x?x?x16xf32>, %v: tensor<?x?x?x8xf32>, %initial_state: tensor<?x?x8x16xf32>) {
  // expected-error @below {{'attn.linear_attention' takes initial_state as f32 [batch, head, 16, 8], got tensor<?x?x8x16xf32>}}
  %o = "attn.linear_attention"(%q, %k, %v, %initial_state) ({
  ^bb0:
  }) {heads = 2 : i64, direction = "forward", channels = "none", state = "kv", outputs = [], operandSegmentSizes = array<i32: 1, 1, 1, 0, 1, 0, 0>, resultSegmentSizes = array<i32: 1, 0, 0, 0, 0>}
    : (tensor<?x?x?x16xf32>, tensor<?x?x?x16xf32>, tensor<?x?x?x8xf32>, tensor<?x?x8x16xf32>) -> tensor<?x?x?x8xf32>
  return
}

// -----

func.func @attention(%q: tensor<?x?x?x16xf32>, %k: tensor<?x?x?x16xf32>, %v: tensor<?x?x?x8xf32>, %factor: tensor<?x?x?x16xf32>) {
  // expected-error @below {{'attn.linear_attention' multiplies o by [batch, head, position, 8], got tensor<?x?x?x16xf32>}}
  %o, %products = "attn.linear_attention"(%q, %k, %v, %factor) ({
  ^bb0:
  }) {heads = 2 : i64, direction = "forward", channels = "none", state = "kv", outputs = ["products"], operandSegmentSizes = array<i32: 1, 1, 1, 0, 0, 1, 0>, resultSegmentSizes = array<i32: 1, 0, 1, 0, 0>}
    : (tensor<?x?x?x16xf32>, tensor<?x?x?x16xf32>, tensor<?x?x?x8xf32>, tensor<?x?x?x16xf32>) -> (tensor<?x?x?x8xf32>, tensor<?x?x?xf32>)
  return
}

// -----

func.func @attention(%q: tensor<?x?x?x16xf32>, %k: tensor<?x?x?x16xf32>, %v: tensor<?x?x?x8xf32>, %offsets: tensor<?xf32>) {
  // expected-error @below {{'attn.linear_attention' takes offsets as a tensor of integers [sequences + 1], got tensor<?xf32>}}
  %o = "attn.linear_attention"(%q, %k, %v, %offsets) ({
  ^bb0:
  }) {heads = 2 : i64, direction = "forward", channels = "none", state = "kv", outputs = [], operandSegmentSizes = array<i32: 1, 1, 1, 0, 0, 0, 1>, resultSegmentSizes = array<i32: 1, 0, 0, 0, 0>}
    : (tensor<?x?x?x16xf32>, tensor<?x?x?x16xf32>, tensor<?x?x?x8xf32>, tensor<?xf32>) -> tensor<?x?x?x8xf32>
  return
}

// -----

func.func @attention(%q: tensor<?x?x?x16xf32>, %k: tensor<?x?x?x16xf32>, %v: tensor<?x?x?x8xf32>) {
  // expected-error @below {{'attn.linear_attention' takes `direction` as one of forward, backward, got 'sideways'}}
  %o = "attn.linear_attention"(%q, %k, %v) ({
  ^bb0:
  }) {heads = 2 : i64, direction = "sideways", channels = "none", state = "kv", outputs = [], operandSegmentSizes = array<i32: 1, 1, 1, 0, 0, 0, 0>, resultSegmentSizes = array<i32: 1, 0, 0, 0, 0>}
    : (tensor<?x?x?x16xf32>, tensor<?x?x?x16xf32>, tensor<?x?x?x8xf32>) -> tensor<?x?x?x8xf32>
  return
}

// -----

func.func @attention(%q: tensor<?x?x?x16xf32>, %k: tensor<?x?x?x16xf32>, %v: tensor<?x?x?x8xf32>) {
  // expected-error @below {{'attn.linear_attention' takes `channels` as one of none, key, value, got 'all'}}
  %o = "attn.linear_attention"(%q, %k, %v) ({
  ^bb0:
  }) {heads = 2 : i64, direction = "forward", channels = "all", state = "kv", outputs = [], operandSegmentSizes = array<i32: 1, 1, 1, 0, 0, 0, 0>, resultSegmentSizes = array<i32: 1, 0, 0, 0, 0>}
    : (tensor<?x?x?x16xf32>, tensor<?x?x?x16xf32>, tensor<?x?x?x8xf32>) -> tensor<?x?x?x8xf32>
  return
}

// -----

func.func @attention(%q: tensor<?x?x?x16xf32>, %k: tensor<?x?x?x16xf32>, %v: tensor<?x?x?x8xf32>) {
  // expected-error @below {{'attn.linear_attention' takes `heads` as the number of q, k, v or decay (0 to 3), got 4}}
  %o = "attn.linear_attention"(%q, %k, %v) ({
  ^bb0:
  }) {heads = 4 : i64, direction = "forward", channels = "none", state = "kv", outputs = [], operandSegmentSizes = array<i32: 1, 1, 1, 0, 0, 0, 0>, resultSegmentSizes = array<i32: 1, 0, 0, 0, 0>}
    : (tensor<?x?x?x16xf32>, tensor<?x?x?x16xf32>, tensor<?x?x?x8xf32>) -> tensor<?x?x?x8xf32>
  return
}

// -----

func.func @attention(%q: tensor<?x?x?x16xf32>, %k: tensor<?x?x?x16xf32>, %v: tensor<?x?x?x8xf32>, %decay: tensor<?x?x?x16xf32>) {
  // expected-error @below {{'attn.linear_attention' has states 'kv', where rows are channels, for decays of key channels}}
  %o = "attn.linear_attention"(%q, %k, %v, %decay) ({
  ^bb0:
  }) {heads = 2 : i64, direction = "forward", channels = "key", state = "vk", outputs = [], operandSegmentSizes = array<i32: 1, 1, 1, 1, 0, 0, 0>, resultSegmentSizes = array<i32: 1, 0, 0, 0, 0>}
    : (tensor<?x?x?x16xf32>, tensor<?x?x?x16xf32>, tensor<?x?x?x8xf32>, tensor<?x?x?x16xf32>) -> tensor<?x?x?x8xf32>
  return
}

// -----

func.func @attention(%q: tensor<?x?x?x16xf32>, %k: tensor<?x?x?x16xf32>, %v: tensor<?x?x?x8xf32>) {
  // expected-error @below {{'attn.linear_attention' takes its heads from the decay, but has none}}
  %o = "attn.linear_attention"(%q, %k, %v) ({
  ^bb0:
  }) {heads = 3 : i64, direction = "forward", channels = "none", state = "kv", outputs = [], operandSegmentSizes = array<i32: 1, 1, 1, 0, 0, 0, 0>, resultSegmentSizes = array<i32: 1, 0, 0, 0, 0>}
    : (tensor<?x?x?x16xf32>, tensor<?x?x?x16xf32>, tensor<?x?x?x8xf32>) -> tensor<?x?x?x8xf32>
  return
}

// -----

!q = tensor<?x?x?x16xvector<2xf32>>
func.func @vectors(%q: !q, %k: !q, %v: !q) {
  // expected-error @below {{'attn.linear_attention' takes q, k and v of floating-point numbers, got tensor<?x?x?x16xvector<2xf32>>}}
  %o = "attn.linear_attention"(%q, %k, %v) ({
  ^bb0:
  }) {heads = 2 : i64, direction = "forward", channels = "none", state = "kv", outputs = [], operandSegmentSizes = array<i32: 1, 1, 1, 0, 0, 0, 0>, resultSegmentSizes = array<i32: 1, 0, 0, 0, 0>}
    : (!q, !q, !q) -> !q
  return
}
