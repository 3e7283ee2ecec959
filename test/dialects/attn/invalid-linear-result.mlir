// The factor of o's rows behind all sums.
// RUN: attn-opt %s --split-input-file --verify-diagnostics

func.func @attention(%q: tensor<?x?x?x16xf32>, %k: tensor<?x?x?x16xf32>, %v: tensor<?x?x?x8xf32>, %table: tensor<?xf32>) {
  %o = "attn.linear_attention"(%q, %k, %v) ({
    // expected-error @below {{'attn.result' multiplies each row by one number}}
    "attn.result"() ({
    ^bb0(%x: f32, %b: index, %h: index, %t: index, %d: index):
      %e = tensor.extract %table[%d] : tensor<?xf32>
      %y = arith.mulf %x, %e : f32
      "attn.yield"(%y) : (f32) -> ()
    }) : () -> ()
  }) {heads = 2 : i64, direction = "forward", channels = "none", state = "kv", outputs = [], operandSegmentSizes = array<i32: 1, 1, 1, 0, 0, 0, 0>, resultSegmentSizes = array<i32: 1, 0, 0, 0, 0>}
    : (tensor<?x?x?x16xf32>, tensor<?x?x?x16xf32>, tensor<?x?x?x8xf32>) -> tensor<?x?x?x8xf32>
  return
}

// -----

func.func @attention(%q: tensor<?x?x?x16xf32>, %k: tensor<?x?x?x16xf32>, %v: tensor<?x?x?x8xf32>, %table: tensor<?xf32>) {
  %o = "attn.linear_attention"(%q, %k, %v) ({
    // expected-error @below {{'attn.result' multiplies each row by one number}}
    "attn.result"() ({
    ^bb0(%x: f32, %b: index, %h: index, %t: index, %d: index):
      %e = tensor.extract %table[%t] : tensor<?xf32>
      %y = arith.addf %x, %e : f32
      "attn.yield"(%y) : (f32) -> ()
    }) : () -> ()
  }) {heads = 2 : i64, direction = "forward", channels = "none", state = "kv", outputs = [], operandSegmentSizes = array<i32: 1, 1, 1, 0, 0, 0, 0>, resultSegmentSizes = array<i32: 1, 0, 0, 0, 0>}
    : (tensor<?x?x?x16xf32>, tensor<?x?x?x16xf32>, tensor<?x?x?x8xf32>) -> tensor<?x?x?x8xf32>
  return
}

// -----

func.func @attention(%q: tensor<?x?x?x16xf32>, %k: tensor<?x?x?x16xf32>, %v: tensor<?x?x?x8xf32>, %table: tensor<?xf32>) {
  // expected-error @below {{'attn.linear_attention' has an 'attn.result' where decays are those of heads, and products not `crossing`}}
  %o = "attn.linear_attention"(%q, %k, %v) ({
    "attn.result"() ({
    ^bb0(%x: f32, %b: index, %h: index, %t: index, %d: index):
      %e = tensor.extract %table[%t] : tensor<?xf32>
      %y = arith.mulf %x, %e : f32
      "attn.yield"(%y) : (f32) -> ()
    }) : () -> ()
  }) {heads = 2 : i64, direction = "forward", channels = "value", state = "vk", outputs = [], operandSegmentSizes = array<i32: 1, 1, 1, 0, 0, 0, 0>, resultSegmentSizes = array<i32: 1, 0, 0, 0, 0>}
    : (tensor<?x?x?x16xf32>, tensor<?x?x?x16xf32>, tensor<?x?x?x8xf32>) -> tensor<?x?x?x8xf32>
  return
}

// -----

func.func @attention(%q: tensor<?x?x?x16xf32>, %k: tensor<?x?x?x16xf32>, %v: tensor<?x?x?x8xf32>, %table: tensor<?xf32>) {
  // expected-error @below {{'attn.linear_attention' has an 'attn.result' where decays are those of heads, and products not `crossing`}}
  %o = "attn.linear_attention"(%q, %k, %v) ({
    "attn.result"() ({
    ^bb0(%x: f32, %b: index, %h: index, %t: index, %d: index):
      %e = tensor.extract %table[%t] : tensor<?xf32>
      %y = arith.mulf %x, %e : f32
      "attn.yield"(%y) : (f32) -> ()
    }) : () -> ()
  }) {heads = 2 : i64, direction = "forward", channels = "none", state = "kv", outputs = [], crossing, operandSegmentSizes = array<i32: 1, 1, 1, 0, 0, 0, 0>, resultSegmentSizes = array<i32: 1, 0, 0, 0, 0>}
    : (tensor<?x?x?x16xf32>, tensor<?x?x?x16xf32>, tensor<?x?x?x8xf32>) -> tensor<?x?x?x8xf32>
  return
}

// -----

func.func @attention(%q: tensor<?x?x?x16xf32>, %k: tensor<?x?x?x16xf32>, %v: tensor<?x?x?x8xf32>) {
  %o = "attn.linear_attention"(%q, %k, %v) ({
    // expected-error @below {{'attn.result' takes (x, b, h, t, d), got (score)}}
    "attn.result"() ({
    ^bb0(%x: f32):
      "attn.yield"(%x) : (f32) -> ()
    }) : () -> ()
  }) {heads = 2 : i64, direction = "forward", channels = "none", state = "kv", outputs = [], operandSegmentSizes = array<i32: 1, 1, 1, 0, 0, 0, 0>, resultSegmentSizes = array<i32: 1, 0, 0, 0, 0>}
    : (tensor<?x?x?x16xf32>, tensor<?x?x?x16xf32>, tensor<?x?x?x8xf32>) -> tensor<?x?x?x8xf32>
  return
}

// -----

func.func @attention(%x: tensor<?x?x?x16xf32>) {
  // expected-error @below {{'attn.result' belongs inside attn.linear_attention or attn.chunk}}
  "attn.result"() ({
  ^bb0(%y: f32, %b: index, %h: index, %t: index, %d: index):
    "attn.yield"(%y) : (f32) -> ()
  }) : () -> ()
  return
}
