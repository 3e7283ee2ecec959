// Results of linear attention.
// RUN: attn-opt %s --split-input-file --verify-diagnostics

func.func @attention(%q: tensor<?x?x?x16xf32>, %k: tensor<?x?x?x16xf32>, %v: tensor<?x?x?x8xf32>) {
  // expected-error @below {{'attn.linear_attention' takes `outputs` among final_state, products, states, diagonal, in this order, got states, final_state}}
  %o, %final_state = "attn.linear_attention"(%q, %k, %v) ({
  ^bb0:
  }) {heads = 2 : i64, direction = "forward", channels = "none", state = "kv", outputs = ["states", "final_state"], operandSegmentSizes = array<i32: 1, 1, 1, 0, 0, 0, 0>, resultSegmentSizes = array<i32: 1, 1, 0, 0, 0>}
    : (tensor<?x?x?x16xf32>, tensor<?x?x?x16xf32>, tensor<?x?x?x8xf32>) -> (tensor<?x?x?x8xf32>, tensor<?x?x16x8xf32>)
  return
}

// -----

func.func @attention(%q: tensor<?x?x?x16xf32>, %k: tensor<?x?x?x16xf32>, %v: tensor<?x?x?x8xf32>) {
  // expected-error @below {{'attn.linear_attention' makes o and its `outputs` (final_state), got (o)}}
  %o = "attn.linear_attention"(%q, %k, %v) ({
  ^bb0:
  }) {heads = 2 : i64, direction = "forward", channels = "none", state = "kv", outputs = ["final_state"], operandSegmentSizes = array<i32: 1, 1, 1, 0, 0, 0, 0>, resultSegmentSizes = array<i32: 1, 0, 0, 0, 0>}
    : (tensor<?x?x?x16xf32>, tensor<?x?x?x16xf32>, tensor<?x?x?x8xf32>) -> tensor<?x?x?x8xf32>
  return
}

// -----

func.func @attention(%q: tensor<?x?x?x16xf32>, %k: tensor<?x?x?x16xf32>, %v: tensor<?x?x?x8xf32>) {
  // expected-error @below {{'attn.linear_attention' makes products where it has a factor, and only there}}
  %o, %products = "attn.linear_attention"(%q, %k, %v) ({
  ^bb0:
  }) {heads = 2 : i64, direction = "forward", channels = "none", state = "kv", outputs = ["products"], operandSegmentSizes = array<i32: 1, 1, 1, 0, 0, 0, 0>, resultSegmentSizes = array<i32: 1, 0, 1, 0, 0>}
    : (tensor<?x?x?x16xf32>, tensor<?x?x?x16xf32>, tensor<?x?x?x8xf32>) -> (tensor<?x?x?x8xf32>, tensor<?x?x?xf32>)
  return
}

// -----

func.func @attention(%q: tensor<?x?x?x16xf32>, %k: tensor<?x?x?x16xf32>, %v: tensor<?x?x?x8xf32>, %factor: tensor<?x?x?x8xf32>) {
  // expected-error @below {{'attn.linear_attention' makes products where it has a factor, and only there}}
  %o = "attn.linear_attention"(%q, %k, %v, %factor) ({
  ^bb0:
  }) {heads = 2 : i64, direction = "forward", channels = "none", state = "kv", outputs = [], operandSegmentSizes = array<i32: 1, 1, 1, 0, 0, 1, 0>, resultSegmentSizes = array<i32: 1, 0, 0, 0, 0>}
    : (tensor<?x?x?x16xf32>, tensor<?x?x?x16xf32>, tensor<?x?x?x8xf32>, tensor<?x?x?x8xf32>) -> tensor<?x?x?x8xf32>
  return
}

// -----

func.func @attention(%q: tensor<?x?x?x16xf32>, %k: tensor<?x?x?x16xf32>, %v: tensor<?x?x?x8xf32>) {
  // expected-error @below {{'attn.linear_attention' has a positive `interval` where it makes states}}
  %o, %states = "attn.linear_attention"(%q, %k, %v) ({
  ^bb0:
  }) {heads = 2 : i64, direction = "forward", channels = "none", state = "kv", outputs = ["states"], operandSegmentSizes = array<i32: 1, 1, 1, 0, 0, 0, 0>, resultSegmentSizes = array<i32: 1, 0, 0, 1, 0>}
    : (tensor<?x?x?x16xf32>, tensor<?x?x?x16xf32>, tensor<?x?x?x8xf32>) -> (tensor<?x?x?x8xf32>, tensor<?x?x?x8xf32>)
  return
}

// -----

func.func @attention(%q: tensor<?x?x?x16xf32>, %k: tensor<?x?x?x16xf32>, %v: tensor<?x?x?x8xf32>) {
  // expected-error @below {{'attn.linear_attention' has a positive `interval` where it makes states}}
  %o = "attn.linear_attention"(%q, %k, %v) ({
  ^bb0:
  }) {heads = 2 : i64, direction = "forward", channels = "none", state = "kv", outputs = [], interval = 64 : i64, operandSegmentSizes = array<i32: 1, 1, 1, 0, 0, 0, 0>, resultSegmentSizes = array<i32: 1, 0, 0, 0, 0>}
    : (tensor<?x?x?x16xf32>, tensor<?x?x?x16xf32>, tensor<?x?x?x8xf32>) -> tensor<?x?x?x8xf32>
  return
}

// -----

func.func @attention(%q: tensor<?x?x?x16xf32>, %k: tensor<?x?x?x16xf32>, %v: tensor<?x?x?x8xf32>) {
  // expected-error @below {{'attn.linear_attention' has a positive `interval` where it makes states}}
  %o, %states = "attn.linear_attention"(%q, %k, %v) ({
  ^bb0:
  }) {heads = 2 : i64, direction = "forward", channels = "none", state = "kv", outputs = ["states"], interval = 0 : i64, operandSegmentSizes = array<i32: 1, 1, 1, 0, 0, 0, 0>, resultSegmentSizes = array<i32: 1, 0, 0, 1, 0>}
    : (tensor<?x?x?x16xf32>, tensor<?x?x?x16xf32>, tensor<?x?x?x8xf32>) -> (tensor<?x?x?x8xf32>, tensor<?x?x?x8xf32>)
  return
}

// -----

func.func @attention(%q: tensor<?x?x?x16xf32>, %k: tensor<?x?x?x16xf32>, %v: tensor<?x?x?x8xf32>) {
  // expected-error @below {{'attn.linear_attention' makes final_state of rank 4 with 8 columns, got tensor<?x?x16x8xf16>}}
  %o, %final_state = "attn.linear_attention"(%q, %k, %v) ({
  ^bb0:
  }) {heads = 2 : i64, direction = "forward", channels = "none", state = "kv", outputs = ["final_state"], operandSegmentSizes = array<i32: 1, 1, 1, 0, 0, 0, 0>, resultSegmentSizes = array<i32: 1, 1, 0, 0, 0>}
    : (tensor<?x?x?x16xf32>, tensor<?x?x?x16xf32>, tensor<?x?x?x8xf32>) -> (tensor<?x?x?x8xf32>, tensor<?x?x16x8xf16>)
  return
}

// -----

func.func @attention(%q: tensor<?x?x?x16xf32>, %k: tensor<?x?x?x16xf32>, %v: tensor<?x?x?x8xf32>) {
  // expected-error @below {{'attn.linear_attention' makes states of rank 4 with 8 columns, got tensor<?x?x?x16xf32>}}
  %o, %states = "attn.linear_attention"(%q, %k, %v) ({
  ^bb0:
  }) {heads = 2 : i64, direction = "forward", channels = "none", state = "kv", outputs = ["states"], interval = 64 : i64, operandSegmentSizes = array<i32: 1, 1, 1, 0, 0, 0, 0>, resultSegmentSizes = array<i32: 1, 0, 0, 1, 0>}
    : (tensor<?x?x?x16xf32>, tensor<?x?x?x16xf32>, tensor<?x?x?x8xf32>) -> (tensor<?x?x?x8xf32>, tensor<?x?x?x16xf32>)
  return
}

// -----

func.func @attention(%q: tensor<?x?x?x16xf32>, %k: tensor<?x?x?x16xf32>, %v: tensor<?x?x?x8xf32>, %factor: tensor<?x?x?x8xf32>) {
  // expected-error @below {{'attn.linear_attention' makes products of rank 3, got tensor<?x?x?x8xf32>}}
  %o, %products = "attn.linear_attention"(%q, %k, %v, %factor) ({
  ^bb0:
  }) {heads = 2 : i64, direction = "forward", channels = "none", state = "kv", outputs = ["products"], operandSegmentSizes = array<i32: 1, 1, 1, 0, 0, 1, 0>, resultSegmentSizes = array<i32: 1, 0, 1, 0, 0>}
    : (tensor<?x?x?x16xf32>, tensor<?x?x?x16xf32>, tensor<?x?x?x8xf32>, tensor<?x?x?x8xf32>) -> (tensor<?x?x?x8xf32>, tensor<?x?x?x8xf32>)
  return
}

// -----

func.func @crossing_products_of_keys(%q: tensor<?x?x?x16xf32>, %v: tensor<?x?x?x8xf32>, %g: tensor<?x?x?x16xf32>) {
  // expected-error @below {{'attn.linear_attention' has no `crossing` products where key channels have decays}}
  %r:2 = "attn.linear_attention"(%q, %q, %v, %g, %v) ({
  ^bb0:
  }) {heads = 2 : i64, crossing, direction = "forward", channels = "key", state = "kv", outputs = ["products"], operandSegmentSizes = array<i32: 1, 1, 1, 1, 0, 1, 0>, resultSegmentSizes = array<i32: 1, 0, 1, 0, 0>}
    : (tensor<?x?x?x16xf32>, tensor<?x?x?x16xf32>, tensor<?x?x?x8xf32>, tensor<?x?x?x16xf32>, tensor<?x?x?x8xf32>) -> (tensor<?x?x?x8xf32>, tensor<?x?x?x8xf32>)
  return
}

// -----

func.func @attention(%q: tensor<?x?x?x16xf32>, %k: tensor<?x?x?x16xf32>, %v: tensor<?x?x?x8xf32>, %factor: tensor<?x?x?x8xf32>) {
  // expected-error @below {{'attn.linear_attention' makes diagonal terms beside products of decays of heads, not `crossing`}}
  %o, %r0 = "attn.linear_attention"(%q, %k, %v) ({
  ^bb0:
  }) {heads = 2 : i64, direction = "forward", channels = "none", state = "kv", outputs = ["diagonal"], operandSegmentSizes = array<i32: 1, 1, 1, 0, 0, 0, 0>, resultSegmentSizes = array<i32: 1, 0, 0, 0, 1>}
    : (tensor<?x?x?x16xf32>, tensor<?x?x?x16xf32>, tensor<?x?x?x8xf32>) -> (tensor<?x?x?x8xf32>, tensor<?x?x?xf32>)
  return
}

// -----

func.func @attention(%q: tensor<?x?x?x16xf32>, %k: tensor<?x?x?x16xf32>, %v: tensor<?x?x?x8xf32>, %factor: tensor<?x?x?x8xf32>) {
  // expected-error @below {{'attn.linear_attention' makes diagonal terms beside products of decays of heads, not `crossing`}}
  %o, %r0, %r1 = "attn.linear_attention"(%q, %k, %v, %factor) ({
  ^bb0:
  }) {heads = 2 : i64, direction = "forward", channels = "none", state = "kv", outputs = ["products", "diagonal"], crossing, operandSegmentSizes = array<i32: 1, 1, 1, 0, 0, 1, 0>, resultSegmentSizes = array<i32: 1, 0, 1, 0, 1>}
    : (tensor<?x?x?x16xf32>, tensor<?x?x?x16xf32>, tensor<?x?x?x8xf32>, tensor<?x?x?x8xf32>) -> (tensor<?x?x?x8xf32>, tensor<?x?x?xf32>, tensor<?x?x?xf32>)
  return
}

// -----

func.func @attention(%q: tensor<?x?x?x16xf32>, %k: tensor<?x?x?x16xf32>, %v: tensor<?x?x?x8xf32>, %factor: tensor<?x?x?x8xf32>) {
  // expected-error @below {{'attn.linear_attention' makes diagonal terms beside products of decays of heads, not `crossing`}}
  %o, %r0, %r1 = "attn.linear_attention"(%q, %k, %v, %factor) ({
  ^bb0:
  }) {heads = 2 : i64, direction = "forward", channels = "value", state = "vk", outputs = ["products", "diagonal"], operandSegmentSizes = array<i32: 1, 1, 1, 0, 0, 1, 0>, resultSegmentSizes = array<i32: 1, 0, 1, 0, 1>}
    : (tensor<?x?x?x16xf32>, tensor<?x?x?x16xf32>, tensor<?x?x?x8xf32>, tensor<?x?x?x8xf32>) -> (tensor<?x?x?x8xf32>, tensor<?x?x?x8xf32>, tensor<?x?x?xf32>)
  return
}

// -----

func.func @attention(%q: tensor<?x?x?x16xf32>, %k: tensor<?x?x?x16xf32>, %v: tensor<?x?x?x8xf32>, %factor: tensor<?x?x?x8xf32>) {
  // expected-error @below {{'attn.linear_attention' makes diagonal of rank 3, got tensor<?x?x?x8xf32>}}
  %o, %r0, %r1 = "attn.linear_attention"(%q, %k, %v, %factor) ({
  ^bb0:
  }) {heads = 2 : i64, direction = "forward", channels = "none", state = "kv", outputs = ["products", "diagonal"], operandSegmentSizes = array<i32: 1, 1, 1, 0, 0, 1, 0>, resultSegmentSizes = array<i32: 1, 0, 1, 0, 1>}
    : (tensor<?x?x?x16xf32>, tensor<?x?x?x16xf32>, tensor<?x?x?x8xf32>, tensor<?x?x?x8xf32>) -> (tensor<?x?x?x8xf32>, tensor<?x?x?xf32>, tensor<?x?x?x8xf32>)
  return
}
