// RUN: attn-opt %s --split-input-file --verify-diagnostics

func.func @f(%acc: tensor<?x?x?x8xbf16>, %sum: tensor<?x?x?xf32>, %parts: index) -> tensor<?x?x?x8xf32> {
  // expected-error @below {{'attn.combine' takes the accumulators as [B, H, S, D] of f32 or f64, got tensor<?x?x?x8xbf16>}}
  %o = "attn.combine"(%acc, %parts) ({
    "attn.carried"(%sum) : (tensor<?x?x?xf32>) -> ()
    "attn.init"() ({
    ^bb0(%b: index, %h: index, %q_idx: index):
      %zero = arith.constant 0.0 : f32
      "attn.yield"(%zero) : (f32) -> ()
    }) : () -> ()
    "attn.merge"() ({
    ^bb0(%x: f32, %y: f32):
      "attn.yield"(%x, %x, %y) : (f32, f32, f32) -> ()
    }) : () -> ()
    "attn.finalize"() ({
    ^bb0(%x: f32, %b: index, %h: index, %q_idx: index, %l: f32):
      "attn.yield"(%x) : (f32) -> ()
    }) : () -> ()
  }) {outputs = [], accumulators = 1 : i64} : (tensor<?x?x?x8xbf16>, index) -> tensor<?x?x?x8xf32>
  return %o : tensor<?x?x?x8xf32>
}

// -----

func.func @f(%acc: tensor<?x?x?x8xf32>, %sum: tensor<?x?x?xf32>, %parts: index) -> tensor<?x?x?x4xf32> {
  // expected-error @below {{'attn.combine' produces o as [B, H, S, D] of floats with the columns of the accumulators, got tensor<?x?x?x4xf32>}}
  %o = "attn.combine"(%acc, %parts) ({
    "attn.carried"(%sum) : (tensor<?x?x?xf32>) -> ()
    "attn.init"() ({
    ^bb0(%b: index, %h: index, %q_idx: index):
      %zero = arith.constant 0.0 : f32
      "attn.yield"(%zero) : (f32) -> ()
    }) : () -> ()
    "attn.merge"() ({
    ^bb0(%x: f32, %y: f32):
      "attn.yield"(%x, %x, %y) : (f32, f32, f32) -> ()
    }) : () -> ()
    "attn.finalize"() ({
    ^bb0(%x: f32, %b: index, %h: index, %q_idx: index, %l: f32):
      "attn.yield"(%x) : (f32) -> ()
    }) : () -> ()
  }) {outputs = [], accumulators = 1 : i64} : (tensor<?x?x?x8xf32>, index) -> tensor<?x?x?x4xf32>
  return %o : tensor<?x?x?x4xf32>
}

// -----

func.func @f(%acc: tensor<?x?x?x8xf32>, %sum: tensor<?x?x?xf32>, %parts: index) -> tensor<?x?x?x8xf32> {
  // expected-error @below {{'attn.combine' merges one accumulator, got 2}}
  %o = "attn.combine"(%acc, %parts) ({
    "attn.carried"(%sum) : (tensor<?x?x?xf32>) -> ()
    "attn.init"() ({
    ^bb0(%b: index, %h: index, %q_idx: index):
      %zero = arith.constant 0.0 : f32
      "attn.yield"(%zero) : (f32) -> ()
    }) : () -> ()
    "attn.merge"() ({
    ^bb0(%x: f32, %y: f32):
      "attn.yield"(%x, %x, %y) : (f32, f32, f32) -> ()
    }) : () -> ()
    "attn.finalize"() ({
    ^bb0(%x: f32, %b: index, %h: index, %q_idx: index, %l: f32):
      "attn.yield"(%x) : (f32) -> ()
    }) : () -> ()
  }) {outputs = [], accumulators = 2 : i64} : (tensor<?x?x?x8xf32>, index) -> tensor<?x?x?x8xf32>
  return %o : tensor<?x?x?x8xf32>
}

// -----

func.func @f(%acc: tensor<?x?x?x8xf32>, %sum: tensor<?x?x?xf32>, %parts: index) -> tensor<?x?x?x8xf32> {
  // expected-error @below {{'attn.combine' names 1 row outputs but produces 0}}
  %o = "attn.combine"(%acc, %parts) ({
    "attn.carried"(%sum) : (tensor<?x?x?xf32>) -> ()
    "attn.init"() ({
    ^bb0(%b: index, %h: index, %q_idx: index):
      %zero = arith.constant 0.0 : f32
      "attn.yield"(%zero) : (f32) -> ()
    }) : () -> ()
    "attn.merge"() ({
    ^bb0(%x: f32, %y: f32):
      "attn.yield"(%x, %x, %y) : (f32, f32, f32) -> ()
    }) : () -> ()
    "attn.finalize"() ({
    ^bb0(%x: f32, %b: index, %h: index, %q_idx: index, %l: f32):
      "attn.yield"(%x) : (f32) -> ()
    }) : () -> ()
  }) {outputs = ["lse"], accumulators = 1 : i64} : (tensor<?x?x?x8xf32>, index) -> tensor<?x?x?x8xf32>
  return %o : tensor<?x?x?x8xf32>
}

// -----

func.func @f(%acc: tensor<?x?x?x8xf32>, %sum: tensor<?x?x?xf32>, %parts: index) -> tensor<?x?x?x8xf32> {
  // expected-error @below {{'attn.combine' carries the 1 states of 'attn.init', got 0}}
  %o = "attn.combine"(%acc, %parts) ({
    "attn.init"() ({
    ^bb0(%b: index, %h: index, %q_idx: index):
      %zero = arith.constant 0.0 : f32
      "attn.yield"(%zero) : (f32) -> ()
    }) : () -> ()
    "attn.merge"() ({
    ^bb0(%x: f32, %y: f32):
      "attn.yield"(%x, %x, %y) : (f32, f32, f32) -> ()
    }) : () -> ()
    "attn.finalize"() ({
    ^bb0(%x: f32, %b: index, %h: index, %q_idx: index, %l: f32):
      "attn.yield"(%x) : (f32) -> ()
    }) : () -> ()
  }) {outputs = [], accumulators = 1 : i64} : (tensor<?x?x?x8xf32>, index) -> tensor<?x?x?x8xf32>
  return %o : tensor<?x?x?x8xf32>
}

// -----

func.func @f(%acc: tensor<?x?x?x8xf32>, %sum: tensor<?x?x?xf32>, %parts: index) -> tensor<?x?x?x8xf32> {
  // expected-error @below {{'attn.combine' merges twice 1 states into 1 and 2 scales, got 2 and 2}}
  %o = "attn.combine"(%acc, %parts) ({
    "attn.carried"(%sum) : (tensor<?x?x?xf32>) -> ()
    "attn.init"() ({
    ^bb0(%b: index, %h: index, %q_idx: index):
      %zero = arith.constant 0.0 : f32
      "attn.yield"(%zero) : (f32) -> ()
    }) : () -> ()
    "attn.merge"() ({
    ^bb0(%x: f32, %y: f32):
      "attn.yield"(%x, %x) : (f32, f32) -> ()
    }) : () -> ()
    "attn.finalize"() ({
    ^bb0(%x: f32, %b: index, %h: index, %q_idx: index, %l: f32):
      "attn.yield"(%x) : (f32) -> ()
    }) : () -> ()
  }) {outputs = [], accumulators = 1 : i64} : (tensor<?x?x?x8xf32>, index) -> tensor<?x?x?x8xf32>
  return %o : tensor<?x?x?x8xf32>
}

// -----

func.func @f(%acc: tensor<?x?x?x8xf32>, %sum: tensor<?x?x?xf32>, %parts: index) -> tensor<?x?x?x8xf32> {
  // expected-error @below {{'attn.combine' ends in 1 values of 4 and 1, got 2 of 5}}
  %o = "attn.combine"(%acc, %parts) ({
    "attn.carried"(%sum) : (tensor<?x?x?xf32>) -> ()
    "attn.init"() ({
    ^bb0(%b: index, %h: index, %q_idx: index):
      %zero = arith.constant 0.0 : f32
      "attn.yield"(%zero) : (f32) -> ()
    }) : () -> ()
    "attn.merge"() ({
    ^bb0(%x: f32, %y: f32):
      "attn.yield"(%x, %x, %y) : (f32, f32, f32) -> ()
    }) : () -> ()
    "attn.finalize"() ({
    ^bb0(%x: f32, %b: index, %h: index, %q_idx: index, %l: f32):
      "attn.yield"(%x, %l) : (f32, f32) -> ()
    }) : () -> ()
  }) {outputs = [], accumulators = 1 : i64} : (tensor<?x?x?x8xf32>, index) -> tensor<?x?x?x8xf32>
  return %o : tensor<?x?x?x8xf32>
}

// -----

func.func @f(%acc: tensor<?x?x?x8xf32>, %sum: tensor<?x?x?xbf16>, %parts: index) -> tensor<?x?x?x8xf32> {
  %o = "attn.combine"(%acc, %parts) ({
    // expected-error @below {{'attn.carried' takes [B, H, S] of f32 or f64, got tensor<?x?x?xbf16>}}
    "attn.carried"(%sum) : (tensor<?x?x?xbf16>) -> ()
    "attn.init"() ({
    ^bb0(%b: index, %h: index, %q_idx: index):
      %zero = arith.constant 0.0 : f32
      "attn.yield"(%zero) : (f32) -> ()
    }) : () -> ()
    "attn.merge"() ({
    ^bb0(%x: f32, %y: f32):
      "attn.yield"(%x, %x, %y) : (f32, f32, f32) -> ()
    }) : () -> ()
    "attn.finalize"() ({
    ^bb0(%x: f32, %b: index, %h: index, %q_idx: index, %l: f32):
      "attn.yield"(%x) : (f32) -> ()
    }) : () -> ()
  }) {outputs = [], accumulators = 1 : i64} : (tensor<?x?x?x8xf32>, index) -> tensor<?x?x?x8xf32>
  return %o : tensor<?x?x?x8xf32>
}

// -----

func.func @f(%parts: index) {
  // expected-error @below {{'attn.parts' belongs inside attn.online}}
  "attn.parts"(%parts, %parts) : (index, index) -> ()
  return
}

// -----

func.func @f(%sum: tensor<?x?x?xf32>) {
  // expected-error @below {{'attn.carried' belongs inside attn.combine}}
  "attn.carried"(%sum) : (tensor<?x?x?xf32>) -> ()
  return
}
