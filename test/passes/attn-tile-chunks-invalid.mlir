// RUN: attn-opt %s -p attn-tile --split-input-file --verify-diagnostics

!t = tensor<?x?x?x4xf32>

func.func @attention(%q: !t, %k: !t, %v: !t) -> !t {
  // expected-error @below {{attn-tile-chunks: 'attn.linear_attention' is not in chunked form; run attn-chunk-rewrite first}}
  %o = "attn.linear_attention"(%q, %k, %v) ({
  ^bb0:
  }) {heads = 2 : i64, direction = "forward", channels = "none", state = "kv", outputs = [], operandSegmentSizes = array<i32: 1, 1, 1, 0, 0, 0, 0>, resultSegmentSizes = array<i32: 1, 0, 0, 0, 0>} : (!t, !t, !t) -> !t
  return %o : !t
}

// -----

!t = tensor<?x?x?x4xf32>

func.func @attention(%x: !t, %like: tensor<?x?xf32>) -> !t {
  // expected-error @below {{attn-tile-sums: sums heads like a tensor [B, Hl, T, ...], got tensor<?x?xf32>}}
  %o = "attn.head_sum"(%x, %like) : (!t, tensor<?x?xf32>) -> !t
  return %o : !t
}

// -----

!t = tensor<?x?x?x4xf32>

func.func @attention(%q: !t, %k: !t, %v: !t) -> !t attributes {tile.blocks = array<i64: 16, 3>} {
  // expected-error @below {{attn-tile-chunks: blocks of 3 columns do not divide v's 4}}
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
    ^bb0(%prefix_t: f32, %prefix_s: f32):
      "attn.yield"(%prefix_s) : (f32) -> ()
    }) : () -> ()
  }) {heads = 2 : i64, direction = "forward", channels = "none", state = "kv", outputs = [], chunk = 16 : i64, operandSegmentSizes = array<i32: 1, 1, 1, 0, 0, 0, 0>, resultSegmentSizes = array<i32: 1, 0, 0, 0, 0>} : (!t, !t, !t) -> !t
  return %o : !t
}

// -----

// What the whole state passes on cannot be added up by programs that have columns of it.

!t = tensor<?x?x?x4xf32>
!g = tensor<?x?x?xf32>

func.func @gradient(%q: !t, %k: !t, %v: !t, %g: !g, %a: !g, %s: !t) -> !g attributes {tile.blocks = array<i64: 16, 2>} {
  // expected-error @below {{attn-tile-chunks: a scan that adds up the gradient of the decays, or shares states, works on all columns of v}}
  %o, %b, %e = "attn.chunk"(%q, %k, %v, %g, %v) ({
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
      "attn.yield"(%total) : (f32) -> ()
    }) : () -> ()
    "attn.decay_mask"() ({
    ^bb0(%prefix_t: f32, %prefix_s: f32):
      "attn.yield"(%prefix_s) : (f32) -> ()
    }) : () -> ()
  }) {heads = 2 : i64, crossing, direction = "backward", channels = "none", state = "vk", outputs = ["products", "states"], interval = 16 : i64, chunk = 16 : i64,
      operandSegmentSizes = array<i32: 1, 1, 1, 1, 0, 1, 0>, resultSegmentSizes = array<i32: 1, 0, 1, 1, 0>} : (!t, !t, !t, !g, !t) -> (!t, !g, !t)
  %d = "attn.decay_gradient"(%a, %b, %s, %e) {crossing, interval = 16 : i64, rows = 4 : i64} : (!g, !g, !t, !t) -> !g
  return %d : !g
}
