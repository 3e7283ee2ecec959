// What rows of o get of their own row of v.
// RUN: attn-opt %s --split-input-file --verify-diagnostics

func.func @attention(%q: tensor<?x?x?x16xf32>, %k: tensor<?x?x?x16xf32>, %v: tensor<?x?x?x8xf32>, %table: tensor<?xf32>) {
  %o = "attn.linear_attention"(%q, %k, %v) ({
    // expected-error @below {{'attn.skip' takes (b, h, t), got (score, index, index, index)}}
    "attn.skip"() ({
    ^bb0(%x: f32, %b: index, %h: index, %t: index):
      "attn.yield"(%x) : (f32) -> ()
    }) : () -> ()
  }) {heads = 2 : i64, direction = "forward", channels = "none", state = "kv", outputs = [], operandSegmentSizes = array<i32: 1, 1, 1, 0, 0, 0, 0>, resultSegmentSizes = array<i32: 1, 0, 0, 0, 0>}
    : (tensor<?x?x?x16xf32>, tensor<?x?x?x16xf32>, tensor<?x?x?x8xf32>) -> tensor<?x?x?x8xf32>
  return
}

// -----

func.func @attention(%q: tensor<?x?x?x16xf32>, %k: tensor<?x?x?x16xf32>, %v: tensor<?x?x?x8xf32>, %table: tensor<?xf32>) {
  // expected-error @below {{'attn.linear_attention' has an 'attn.skip' where decays are those of heads, and there is no factor}}
  %o = "attn.linear_attention"(%q, %k, %v) ({
    "attn.skip"() ({
    ^bb0(%b: index, %h: index, %t: index):
      %e = tensor.extract %table[%h] : tensor<?xf32>
      "attn.yield"(%e) : (f32) -> ()
    }) : () -> ()
  }) {heads = 2 : i64, direction = "forward", channels = "key", state = "kv", outputs = [], operandSegmentSizes = array<i32: 1, 1, 1, 0, 0, 0, 0>, resultSegmentSizes = array<i32: 1, 0, 0, 0, 0>}
    : (tensor<?x?x?x16xf32>, tensor<?x?x?x16xf32>, tensor<?x?x?x8xf32>) -> tensor<?x?x?x8xf32>
  return
}

// -----

func.func @attention(%q: tensor<?x?x?x16xf32>, %k: tensor<?x?x?x16xf32>, %v: tensor<?x?x?x8xf32>, %table: tensor<?xf32>) {
  // expected-error @below {{'attn.linear_attention' has an 'attn.skip' where decays are those of heads, and there is no factor}}
  %o, %products = "attn.linear_attention"(%q, %k, %v, %v) ({
    "attn.skip"() ({
    ^bb0(%b: index, %h: index, %t: index):
      %e = tensor.extract %table[%h] : tensor<?xf32>
      "attn.yield"(%e) : (f32) -> ()
    }) : () -> ()
  }) {heads = 2 : i64, direction = "forward", channels = "none", state = "kv", outputs = ["products"], operandSegmentSizes = array<i32: 1, 1, 1, 0, 0, 1, 0>, resultSegmentSizes = array<i32: 1, 0, 1, 0, 0>}
    : (tensor<?x?x?x16xf32>, tensor<?x?x?x16xf32>, tensor<?x?x?x8xf32>, tensor<?x?x?x8xf32>) -> (tensor<?x?x?x8xf32>, tensor<?x?x?xf32>)
  return
}
