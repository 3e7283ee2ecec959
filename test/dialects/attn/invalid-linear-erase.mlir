// What a linear attention erases, its second writer, and where its state is read.
// RUN: attn-opt %s --split-input-file --verify-diagnostics

func.func @attention(%q: tensor<?x?x?x16xf32>, %k: tensor<?x?x?x16xf32>, %v: tensor<?x?x?x8xf32>, %half: tensor<?x?x?x16xf16>) {
  %o = "attn.linear_attention"(%q, %k, %v) ({
    // expected-error @below {{'attn.erase' removes at most one key, got 2}}
    "attn.erase"(%k, %k, %k) ({
    ^bb0(%x: f32, %b: index, %h: index, %t: index, %d: index):
      "attn.yield"(%x) : (f32) -> ()
    }) {reads = "decayed"} : (tensor<?x?x?x16xf32>, tensor<?x?x?x16xf32>, tensor<?x?x?x16xf32>) -> ()
  }) {heads = 2 : i64, direction = "forward", channels = "none", state = "kv", outputs = [], operandSegmentSizes = array<i32: 1, 1, 1, 0, 0, 0, 0>, resultSegmentSizes = array<i32: 1, 0, 0, 0, 0>}
    : (tensor<?x?x?x16xf32>, tensor<?x?x?x16xf32>, tensor<?x?x?x8xf32>) -> tensor<?x?x?x8xf32>
  return
}

// -----

func.func @attention(%q: tensor<?x?x?x16xf32>, %k: tensor<?x?x?x16xf32>, %v: tensor<?x?x?x8xf32>, %half: tensor<?x?x?x16xf16>) {
  %o = "attn.linear_attention"(%q, %k, %v) ({
    // expected-error @below {{'attn.erase' takes `reads` as one of decayed, written, got 'before'}}
    "attn.erase"(%k) ({
    ^bb0(%x: f32, %b: index, %h: index, %t: index, %d: index):
      "attn.yield"(%x) : (f32) -> ()
    }) {reads = "before"} : (tensor<?x?x?x16xf32>) -> ()
  }) {heads = 2 : i64, direction = "forward", channels = "none", state = "kv", outputs = [], operandSegmentSizes = array<i32: 1, 1, 1, 0, 0, 0, 0>, resultSegmentSizes = array<i32: 1, 0, 0, 0, 0>}
    : (tensor<?x?x?x16xf32>, tensor<?x?x?x16xf32>, tensor<?x?x?x8xf32>) -> tensor<?x?x?x8xf32>
  return
}

// -----

func.func @attention(%q: tensor<?x?x?x16xf32>, %k: tensor<?x?x?x16xf32>, %v: tensor<?x?x?x8xf32>, %half: tensor<?x?x?x16xf16>) {
  %o = "attn.linear_attention"(%q, %k, %v) ({
    // expected-error @below {{'attn.erase' reads what is written where another key is removed, and only there}}
    "attn.erase"(%k) ({
    ^bb0(%x: f32, %b: index, %h: index, %t: index, %d: index):
      "attn.yield"(%x) : (f32) -> ()
    }) {reads = "written"} : (tensor<?x?x?x16xf32>) -> ()
  }) {heads = 2 : i64, direction = "forward", channels = "none", state = "kv", outputs = [], operandSegmentSizes = array<i32: 1, 1, 1, 0, 0, 0, 0>, resultSegmentSizes = array<i32: 1, 0, 0, 0, 0>}
    : (tensor<?x?x?x16xf32>, tensor<?x?x?x16xf32>, tensor<?x?x?x8xf32>) -> tensor<?x?x?x8xf32>
  return
}

// -----

func.func @attention(%q: tensor<?x?x?x16xf32>, %k: tensor<?x?x?x16xf32>, %v: tensor<?x?x?x8xf32>, %half: tensor<?x?x?x16xf16>) {
  %o = "attn.linear_attention"(%q, %k, %v) ({
    // expected-error @below {{'attn.erase' takes (x, b, h, t, d), got (score, index, index, index)}}
    "attn.erase"(%k) ({
    ^bb0(%x: f32, %b: index, %h: index, %t: index):
      "attn.yield"(%x) : (f32) -> ()
    }) {reads = "decayed"} : (tensor<?x?x?x16xf32>) -> ()
  }) {heads = 2 : i64, direction = "forward", channels = "none", state = "kv", outputs = [], operandSegmentSizes = array<i32: 1, 1, 1, 0, 0, 0, 0>, resultSegmentSizes = array<i32: 1, 0, 0, 0, 0>}
    : (tensor<?x?x?x16xf32>, tensor<?x?x?x16xf32>, tensor<?x?x?x8xf32>) -> tensor<?x?x?x8xf32>
  return
}

// -----

func.func @attention(%q: tensor<?x?x?x16xf32>, %k: tensor<?x?x?x16xf32>, %v: tensor<?x?x?x8xf32>, %half: tensor<?x?x?x16xf16>) {
  // expected-error @below {{'attn.linear_attention' takes `output` as one of after, decayed, written, values, got "before"}}
  %o = "attn.linear_attention"(%q, %k, %v) ({
  ^bb0:
  }) {heads = 2 : i64, direction = "forward", channels = "none", state = "kv", output = "before", outputs = [], operandSegmentSizes = array<i32: 1, 1, 1, 0, 0, 0, 0>, resultSegmentSizes = array<i32: 1, 0, 0, 0, 0>}
    : (tensor<?x?x?x16xf32>, tensor<?x?x?x16xf32>, tensor<?x?x?x8xf32>) -> tensor<?x?x?x8xf32>
  return
}

// -----

func.func @attention(%q: tensor<?x?x?x16xf32>, %k: tensor<?x?x?x16xf32>, %v: tensor<?x?x?x8xf32>, %half: tensor<?x?x?x16xf16>) {
  // expected-error @below {{'attn.linear_attention' makes 'values' where it erases}}
  %o = "attn.linear_attention"(%q, %k, %v) ({
  ^bb0:
  }) {heads = 2 : i64, direction = "forward", channels = "none", state = "kv", output = "values", outputs = [], operandSegmentSizes = array<i32: 1, 1, 1, 0, 0, 0, 0>, resultSegmentSizes = array<i32: 1, 0, 0, 0, 0>}
    : (tensor<?x?x?x16xf32>, tensor<?x?x?x16xf32>, tensor<?x?x?x8xf32>) -> tensor<?x?x?x8xf32>
  return
}

// -----

func.func @attention(%q: tensor<?x?x?x16xf32>, %k: tensor<?x?x?x16xf32>, %v: tensor<?x?x?x8xf32>, %half: tensor<?x?x?x16xf16>) {
  // expected-error @below {{'attn.linear_attention' makes 'values' of f32, f64 or v's type, got tensor<?x?x?x8xf16>}}
  %o = "attn.linear_attention"(%q, %k, %v) ({
    "attn.erase"(%k) ({
    ^bb0(%x: f32, %b: index, %h: index, %t: index, %d: index):
      "attn.yield"(%x) : (f32) -> ()
    }) {reads = "decayed"} : (tensor<?x?x?x16xf32>) -> ()
  }) {heads = 2 : i64, direction = "forward", channels = "none", state = "kv", output = "values", outputs = [], operandSegmentSizes = array<i32: 1, 1, 1, 0, 0, 0, 0>, resultSegmentSizes = array<i32: 1, 0, 0, 0, 0>}
    : (tensor<?x?x?x16xf32>, tensor<?x?x?x16xf32>, tensor<?x?x?x8xf32>) -> tensor<?x?x?x8xf16>
  return
}

// -----

func.func @attention(%q: tensor<?x?x?x16xf32>, %k: tensor<?x?x?x16xf32>, %v: tensor<?x?x?x8xf32>, %half: tensor<?x?x?x16xf16>) {
  // expected-error @below {{'attn.linear_attention' is read where it is 'written' by the first of two writers}}
  %o = "attn.linear_attention"(%q, %k, %v) ({
    "attn.erase"(%k) ({
    ^bb0(%x: f32, %b: index, %h: index, %t: index, %d: index):
      "attn.yield"(%x) : (f32) -> ()
    }) {reads = "decayed"} : (tensor<?x?x?x16xf32>) -> ()
  }) {heads = 2 : i64, direction = "forward", channels = "none", state = "kv", output = "written", outputs = [], operandSegmentSizes = array<i32: 1, 1, 1, 0, 0, 0, 0>, resultSegmentSizes = array<i32: 1, 0, 0, 0, 0>}
    : (tensor<?x?x?x16xf32>, tensor<?x?x?x16xf32>, tensor<?x?x?x8xf32>) -> tensor<?x?x?x8xf32>
  return
}

// -----

func.func @attention(%q: tensor<?x?x?x16xf32>, %k: tensor<?x?x?x16xf32>, %v: tensor<?x?x?x8xf32>, %half: tensor<?x?x?x16xf16>) {
  // expected-error @below {{'attn.linear_attention' makes `crossing` products with 'attn.erase' and 'attn.write'}}
  %o, %products = "attn.linear_attention"(%q, %k, %v, %v) ({
    "attn.write"(%k, %v) : (tensor<?x?x?x16xf32>, tensor<?x?x?x8xf32>) -> ()
  }) {heads = 2 : i64, direction = "forward", channels = "none", state = "kv", output = "decayed", outputs = ["products"], operandSegmentSizes = array<i32: 1, 1, 1, 0, 0, 1, 0>, resultSegmentSizes = array<i32: 1, 0, 1, 0, 0>}
    : (tensor<?x?x?x16xf32>, tensor<?x?x?x16xf32>, tensor<?x?x?x8xf32>, tensor<?x?x?x8xf32>) -> (tensor<?x?x?x8xf32>, tensor<?x?x?xf32>)
  return
}

// -----

func.func @attention(%q: tensor<?x?x?x16xf32>, %k: tensor<?x?x?x16xf32>, %v: tensor<?x?x?x8xf32>, %half: tensor<?x?x?x16xf16>) {
  // expected-error @below {{'attn.linear_attention' has no 'attn.skip' and no 'attn.result' beside 'attn.erase' and `output`}}
  %o = "attn.linear_attention"(%q, %k, %v) ({
    "attn.erase"(%k) ({
    ^bb0(%x: f32, %b: index, %h: index, %t: index, %d: index):
      "attn.yield"(%x) : (f32) -> ()
    }) {reads = "decayed"} : (tensor<?x?x?x16xf32>) -> ()
    "attn.skip"() ({
    ^bb0(%b: index, %h: index, %t: index):
      %one = arith.constant 1.0 : f32
      "attn.yield"(%one) : (f32) -> ()
    }) : () -> ()
  }) {heads = 2 : i64, direction = "forward", channels = "none", state = "kv", outputs = [], operandSegmentSizes = array<i32: 1, 1, 1, 0, 0, 0, 0>, resultSegmentSizes = array<i32: 1, 0, 0, 0, 0>}
    : (tensor<?x?x?x16xf32>, tensor<?x?x?x16xf32>, tensor<?x?x?x8xf32>) -> tensor<?x?x?x8xf32>
  return
}

// -----

func.func @attention(%q: tensor<?x?x?x16xf32>, %k: tensor<?x?x?x16xf32>, %v: tensor<?x?x?x8xf32>, %half: tensor<?x?x?x16xf16>) {
  // expected-error @below {{'attn.linear_attention' has an 'attn.erase' or an 'attn.write', not both}}
  %o = "attn.linear_attention"(%q, %k, %v) ({
    "attn.erase"(%k) ({
    ^bb0(%x: f32, %b: index, %h: index, %t: index, %d: index):
      "attn.yield"(%x) : (f32) -> ()
    }) {reads = "decayed"} : (tensor<?x?x?x16xf32>) -> ()
    "attn.write"(%k, %v) : (tensor<?x?x?x16xf32>, tensor<?x?x?x8xf32>) -> ()
  }) {heads = 2 : i64, direction = "forward", channels = "none", state = "kv", outputs = [], operandSegmentSizes = array<i32: 1, 1, 1, 0, 0, 0, 0>, resultSegmentSizes = array<i32: 1, 0, 0, 0, 0>}
    : (tensor<?x?x?x16xf32>, tensor<?x?x?x16xf32>, tensor<?x?x?x8xf32>) -> tensor<?x?x?x8xf32>
  return
}

// -----

func.func @attention(%q: tensor<?x?x?x16xf32>, %k: tensor<?x?x?x16xf32>, %v: tensor<?x?x?x8xf32>, %half: tensor<?x?x?x16xf16>) {
  // expected-error @below {{'attn.linear_attention' erases where states are 'kv'}}
  %o = "attn.linear_attention"(%q, %k, %v) ({
    "attn.erase"(%k) ({
    ^bb0(%x: f32, %b: index, %h: index, %t: index, %d: index):
      "attn.yield"(%x) : (f32) -> ()
    }) {reads = "decayed"} : (tensor<?x?x?x16xf32>) -> ()
  }) {heads = 2 : i64, direction = "forward", channels = "none", state = "vk", outputs = [], operandSegmentSizes = array<i32: 1, 1, 1, 0, 0, 0, 0>, resultSegmentSizes = array<i32: 1, 0, 0, 0, 0>}
    : (tensor<?x?x?x16xf32>, tensor<?x?x?x16xf32>, tensor<?x?x?x8xf32>) -> tensor<?x?x?x8xf32>
  return
}

// -----

func.func @attention(%q: tensor<?x?x?x16xf32>, %k: tensor<?x?x?x16xf32>, %v: tensor<?x?x?x8xf32>, %half: tensor<?x?x?x16xf16>) {
  // expected-error @below {{'attn.linear_attention' makes no products where it erases}}
  %o, %products = "attn.linear_attention"(%q, %k, %v, %v) ({
    "attn.erase"(%k) ({
    ^bb0(%x: f32, %b: index, %h: index, %t: index, %d: index):
      "attn.yield"(%x) : (f32) -> ()
    }) {reads = "decayed"} : (tensor<?x?x?x16xf32>) -> ()
  }) {heads = 2 : i64, direction = "forward", channels = "none", state = "kv", crossing, outputs = ["products"], operandSegmentSizes = array<i32: 1, 1, 1, 0, 0, 1, 0>, resultSegmentSizes = array<i32: 1, 0, 1, 0, 0>}
    : (tensor<?x?x?x16xf32>, tensor<?x?x?x16xf32>, tensor<?x?x?x8xf32>, tensor<?x?x?x8xf32>) -> (tensor<?x?x?x8xf32>, tensor<?x?x?xf32>)
  return
}

// -----

func.func @attention(%q: tensor<?x?x?x16xf32>, %k: tensor<?x?x?x16xf32>, %v: tensor<?x?x?x8xf32>, %half: tensor<?x?x?x16xf16>) {
  // expected-error @below {{'attn.linear_attention' writes values [batch, head, position, 8], got tensor<?x?x?x16xf32>}}
  %o = "attn.linear_attention"(%q, %k, %v) ({
    "attn.write"(%k, %k) : (tensor<?x?x?x16xf32>, tensor<?x?x?x16xf32>) -> ()
  }) {heads = 2 : i64, direction = "forward", channels = "none", state = "kv", outputs = [], operandSegmentSizes = array<i32: 1, 1, 1, 0, 0, 0, 0>, resultSegmentSizes = array<i32: 1, 0, 0, 0, 0>}
    : (tensor<?x?x?x16xf32>, tensor<?x?x?x16xf32>, tensor<?x?x?x8xf32>) -> tensor<?x?x?x8xf32>
  return
}

// -----

func.func @attention(%q: tensor<?x?x?x16xf32>, %k: tensor<?x?x?x16xf32>, %v: tensor<?x?x?x8xf32>, %half: tensor<?x?x?x16xf16>) {
  // expected-error @below {{'attn.linear_attention' erases and writes keys [batch, head, position, 16], got tensor<?x?x?x8xf32>}}
  %o = "attn.linear_attention"(%q, %k, %v) ({
    "attn.erase"(%v) ({
    ^bb0(%x: f32, %b: index, %h: index, %t: index, %d: index):
      "attn.yield"(%x) : (f32) -> ()
    }) {reads = "decayed"} : (tensor<?x?x?x8xf32>) -> ()
  }) {heads = 2 : i64, direction = "forward", channels = "none", state = "kv", outputs = [], operandSegmentSizes = array<i32: 1, 1, 1, 0, 0, 0, 0>, resultSegmentSizes = array<i32: 1, 0, 0, 0, 0>}
    : (tensor<?x?x?x16xf32>, tensor<?x?x?x16xf32>, tensor<?x?x?x8xf32>) -> tensor<?x?x?x8xf32>
  return
}

// -----

func.func @attention(%x: tensor<?x?x?x16xf32>) {
  // expected-error @below {{'attn.write' belongs inside attn.linear_attention or attn.chunk}}
  "attn.write"(%x, %x) : (tensor<?x?x?x16xf32>, tensor<?x?x?x16xf32>) -> ()
  return
}

// -----

func.func @attention(%x: tensor<?x?x?x16xf32>) {
  // expected-error @below {{'attn.erase' belongs inside attn.linear_attention or attn.chunk}}
  "attn.erase"(%x) ({
  ^bb0(%y: f32, %b: index, %h: index, %t: index, %d: index):
    "attn.yield"(%y) : (f32) -> ()
  }) {reads = "decayed"} : (tensor<?x?x?x16xf32>) -> ()
  return
}

// -----

func.func @attention(%q: tensor<?x?x?x16xf32>, %k: tensor<?x?x?x16xf32>, %v: tensor<?x?x?x8xf32>, %state: tensor<?x?x16x8xf32>) {
  // expected-error @below {{'attn.linear_attention' has `starts` of its segments as its initial_state}}
  %o = "attn.linear_attention"(%q, %k, %v, %state) ({
  ^bb0:
  }) {heads = 2 : i64, direction = "forward", channels = "none", state = "kv", starts, outputs = [], operandSegmentSizes = array<i32: 1, 1, 1, 0, 1, 0, 0>, resultSegmentSizes = array<i32: 1, 0, 0, 0, 0>}
    : (tensor<?x?x?x16xf32>, tensor<?x?x?x16xf32>, tensor<?x?x?x8xf32>, tensor<?x?x16x8xf32>) -> tensor<?x?x?x8xf32>
  return
}

// -----

func.func @attention(%q: tensor<?x?x?x16xf32>, %k: tensor<?x?x?x16xf32>, %v: tensor<?x?x?x8xf32>) {
  // expected-error @below {{'attn.linear_attention' has states `entering` its intervals where it makes states, and not with `crossing`}}
  %o = "attn.linear_attention"(%q, %k, %v) ({
  ^bb0:
  }) {heads = 2 : i64, direction = "forward", channels = "none", state = "kv", entering, outputs = [], operandSegmentSizes = array<i32: 1, 1, 1, 0, 0, 0, 0>, resultSegmentSizes = array<i32: 1, 0, 0, 0, 0>}
    : (tensor<?x?x?x16xf32>, tensor<?x?x?x16xf32>, tensor<?x?x?x8xf32>) -> tensor<?x?x?x8xf32>
  return
}

// -----

func.func @attention(%q: tensor<?x?x?x16xf32>, %k: tensor<?x?x?x16xf32>, %v: tensor<?x?x?x8xf32>) {
  // expected-error @below {{'attn.linear_attention' has an 'attn.remove' where 'attn.erase' has a key to remove}}
  %o = "attn.linear_attention"(%q, %k, %v) ({
    "attn.erase"(%k) ({
    ^bb0(%x: f32, %b: index, %h: index, %t: index, %d: index):
      "attn.yield"(%x) : (f32) -> ()
    }) {reads = "decayed"} : (tensor<?x?x?x16xf32>) -> ()
    "attn.remove"() ({
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
    "attn.erase"(%k, %k) ({
    ^bb0(%x: f32, %b: index, %h: index, %t: index, %d: index):
      "attn.yield"(%x) : (f32) -> ()
    }) {reads = "decayed"} : (tensor<?x?x?x16xf32>, tensor<?x?x?x16xf32>) -> ()
    // expected-error @below {{'attn.remove' takes (x, b, h, t, d), got (score, index, index, index)}}
    "attn.remove"() ({
    ^bb0(%x: f32, %b: index, %h: index, %t: index):
      "attn.yield"(%x) : (f32) -> ()
    }) : () -> ()
  }) {heads = 2 : i64, direction = "forward", channels = "none", state = "kv", outputs = [], operandSegmentSizes = array<i32: 1, 1, 1, 0, 0, 0, 0>, resultSegmentSizes = array<i32: 1, 0, 0, 0, 0>}
    : (tensor<?x?x?x16xf32>, tensor<?x?x?x16xf32>, tensor<?x?x?x8xf32>) -> tensor<?x?x?x8xf32>
  return
}
