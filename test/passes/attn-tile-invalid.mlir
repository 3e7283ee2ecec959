// RUN: attn-opt %s -p 'attn-tile-rows' --split-input-file --verify-diagnostics
// RUN: not attn-opt %inputs/online-causal-softmax.mlir -p 'attn-tile-rows{block-q=0}' 2>&1 | FileCheck %s --check-prefix=SIZE

// SIZE: attn-tile-rows: block sizes must be positive, got 0 and 64

func.func @attention(%q: tensor<?x?x?x8xf32>) -> tensor<?x?x?x8xf32> {
  // expected-error @below {{attn-tile-rows: 'attn.attention' is not in online form; run attn-online-rewrite first}}
  %o = "attn.attention"(%q, %q, %q) ({
    "attn.row"() ({
    ^bb0(%s: f32, %b: index, %h: index, %q_idx: index):
      "attn.yield"(%s) : (f32) -> ()
    }) : () -> ()
  }) {outputs = []} : (tensor<?x?x?x8xf32>, tensor<?x?x?x8xf32>, tensor<?x?x?x8xf32>) -> tensor<?x?x?x8xf32>
  return %o : tensor<?x?x?x8xf32>
}

// -----

// Nothing to tile.
func.func @other(%x: f32) -> f32 {
  return %x : f32
}

// -----

func.func @attention(%q: tensor<?x?x?x8xf32>) -> tensor<?x?x?x8xf32> {
  %o = "attn.online"(%q, %q, %q) ({
    "attn.init"() ({
    ^bb0(%b: index, %h: index, %q_idx: index):
      "attn.yield"() : () -> ()
    }) : () -> ()
    "attn.step"() ({
    ^bb0(%s: f32, %b: index, %h: index, %q_idx: index):
      "attn.yield"(%s, %s) : (f32, f32) -> ()
    }) : () -> ()
    "attn.finalize"() ({
    ^bb0(%acc: f32, %b: index, %h: index, %q_idx: index):
      "attn.yield"(%acc) : (f32) -> ()
    }) : () -> ()
  }) {accumulators = 1 : i64, outputs = []} : (tensor<?x?x?x8xf32>, tensor<?x?x?x8xf32>, tensor<?x?x?x8xf32>) -> tensor<?x?x?x8xf32>
  // expected-error @below {{attn-tile-rows: the function of an attention returns outputs of it, and nothing else}}
  return %q : tensor<?x?x?x8xf32>
}

// -----

func.func @attention(%q: tensor<?x?x?x8xf32>, %w: tensor<?x?x?x8xf16>) -> tensor<?x?x?x8xf32> {
  %o = "attn.online"(%q, %q, %q) ({
    // expected-error @below {{attn-tile-rows: sums tensors of one element type, v's f32, got f16}}
    "attn.term"(%w) {output = 1 : i64} : (tensor<?x?x?x8xf16>) -> ()
    "attn.init"() ({
    ^bb0(%b: index, %h: index, %q_idx: index):
      "attn.yield"() : () -> ()
    }) : () -> ()
    "attn.step"() ({
    ^bb0(%s: f32, %b: index, %h: index, %q_idx: index):
      "attn.yield"(%s, %s) : (f32, f32) -> ()
    }) : () -> ()
    "attn.finalize"() ({
    ^bb0(%acc: f32, %b: index, %h: index, %q_idx: index):
      "attn.yield"(%acc, %acc) : (f32, f32) -> ()
    }) : () -> ()
  }) {accumulators = 1 : i64, outputs = []} : (tensor<?x?x?x8xf32>, tensor<?x?x?x8xf32>, tensor<?x?x?x8xf32>) -> tensor<?x?x?x8xf32>
  return %o : tensor<?x?x?x8xf32>
}
