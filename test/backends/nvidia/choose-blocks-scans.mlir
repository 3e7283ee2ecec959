// Chunk scans: columns of v follow the sizes of the state; what was chosen also sets the positions of a chunk.
// RUN: attn-opt %s -p 'attn-chunk-rewrite,nvidia-choose-blocks' --split-input-file --verify-diagnostics | FileCheck %s

!t = tensor<?x?x?x128xf16>

// CHECK-LABEL: func.func @rule({{.*}} attributes {tile.blocks = array<i64: 64, 128>}
// CHECK:       chunk = 64 : i64
func.func @rule(%q: !t, %k: !t, %v: !t) -> !t {
  %o = "attn.linear_attention"(%q, %k, %v) ({
  ^bb0:
  }) {heads = 2 : i64, direction = "forward", channels = "none", state = "kv", outputs = [], operandSegmentSizes = array<i32: 1, 1, 1, 0, 0, 0, 0>, resultSegmentSizes = array<i32: 1, 0, 0, 0, 0>} : (!t, !t, !t) -> !t
  return %o : !t
}

// -----

!t = tensor<?x?x?x128xf16>

module attributes {nvidia.tuned = {"attention" = {block_kv = 64, block_q = 32, emitter = "tilelang"}}} {
  // CHECK-LABEL: func.func @attention({{.*}} attributes {tile.blocks = array<i64: 32, 64>, tile.choices = {emitter = "tilelang"}}
  // CHECK:       chunk = 32 : i64
  func.func @attention(%q: !t, %k: !t, %v: !t) -> !t {
    %o = "attn.linear_attention"(%q, %k, %v) ({
  ^bb0:
    }) {heads = 2 : i64, direction = "forward", channels = "none", state = "kv", outputs = [], operandSegmentSizes = array<i32: 1, 1, 1, 0, 0, 0, 0>, resultSegmentSizes = array<i32: 1, 0, 0, 0, 0>} : (!t, !t, !t) -> !t
    return %o : !t
  }
}

// -----

!t = tensor<?x?x?x128xf16>

func.func @states(%q: !t, %k: !t, %v: !t) -> (!t, tensor<?x?x?x128xf32>) attributes {tile.choices = {block_q = 128}} {
  // expected-error@+1 {{nvidia-choose-blocks: chunks of 128 positions do not end where states are stored, every 64}}
  %o, %states = "attn.linear_attention"(%q, %k, %v) ({
  ^bb0:
  }) {heads = 2 : i64, direction = "forward", channels = "none", state = "kv", outputs = ["states"], interval = 64 : i64, operandSegmentSizes = array<i32: 1, 1, 1, 0, 0, 0, 0>, resultSegmentSizes = array<i32: 1, 0, 0, 1, 0>} : (!t, !t, !t) -> (!t, tensor<?x?x?x128xf32>)
  return %o, %states : !t, tensor<?x?x?x128xf32>
}

// -----

// The pieces of f32 tiles take three times the memory of a 16-bit tile: large states have smaller blocks and chunks.
!t = tensor<?x?x?x128xf32>
!u = tensor<?x?x?x512xf32>

// CHECK-LABEL: func.func @pieces({{.*}} attributes {tile.blocks = array<i64: 64, 128>}
func.func @pieces(%q: !t, %k: !t, %v: !t) -> !t {
  %o = "attn.linear_attention"(%q, %k, %v) ({
  ^bb0:
  }) {heads = 2 : i64, direction = "forward", channels = "none", state = "kv", outputs = [], operandSegmentSizes = array<i32: 1, 1, 1, 0, 0, 0, 0>, resultSegmentSizes = array<i32: 1, 0, 0, 0, 0>} : (!t, !t, !t) -> !t
  return %o : !t
}

// CHECK-LABEL: func.func @large({{.*}} attributes {tile.blocks = array<i64: 32, 32>}
// CHECK:       chunk = 32 : i64
func.func @large(%q: !u, %k: !u, %v: !u) -> !u {
  %o = "attn.linear_attention"(%q, %k, %v) ({
  ^bb0:
  }) {heads = 2 : i64, direction = "forward", channels = "none", state = "kv", outputs = [], operandSegmentSizes = array<i32: 1, 1, 1, 0, 0, 0, 0>, resultSegmentSizes = array<i32: 1, 0, 0, 0, 0>} : (!u, !u, !u) -> !u
  return %o : !u
}
