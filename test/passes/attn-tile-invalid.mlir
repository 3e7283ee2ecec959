// RUN: attn-opt %s -p 'attn-tile' --split-input-file --verify-diagnostics
// RUN: not attn-opt %inputs/online-causal-softmax.mlir -p 'attn-tile{block-q=0}' 2>&1 | FileCheck %s --check-prefix=SIZE

// SIZE: attn-tile: block sizes must be positive, got 0 and 64

func.func @attention(%q: tensor<?x?x?x8xf32>) -> tensor<?x?x?x8xf32> {
  // expected-error @below {{attn-tile: 'attn.attention' is not in online form; run attn-online-rewrite first}}
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
