// Block sizes follow the head dimensions; choices on a function come first.
// RUN: attn-opt %s -p 'attn-online-rewrite,attn-chunk-rewrite,amd-choose-blocks' --split-input-file --verify-diagnostics | FileCheck %s

!t = tensor<?x?x?x64xf16>
!u = tensor<?x?x?x128xf16>

// CHECK-LABEL: func.func @narrow({{.*}} attributes {tile.blocks = array<i64: 128, 128>}
func.func @narrow(%q: !t, %k: !t, %v: !t) -> !t {
  %o = "attn.attention"(%q, %k, %v) ({
    "attn.row"() ({
    ^bb0(%s: f32, %b: index, %h: index, %q_idx: index):
      "attn.yield"(%s) : (f32) -> ()
    }) : () -> ()
  }) {outputs = []} : (!t, !t, !t) -> !t
  return %o : !t
}

// CHECK-LABEL: func.func @chosen({{.*}} attributes {tile.blocks = array<i64: 64, 64>, tile.choices = {block_q = 64 : i64}}
func.func @chosen(%q: !u, %k: !u, %v: !u) -> !u attributes {tile.choices = {block_q = 64 : i64}} {
  %o = "attn.attention"(%q, %k, %v) ({
    "attn.row"() ({
    ^bb0(%s: f32, %b: index, %h: index, %q_idx: index):
      "attn.yield"(%s) : (f32) -> ()
    }) : () -> ()
  }) {outputs = []} : (!u, !u, !u) -> !u
  return %o : !u
}

// CHECK-LABEL: func.func @no_kernel()
// CHECK-NOT: tile.blocks
func.func @no_kernel() {
  return
}

// -----

!t = tensor<?x?x?x64xf16>

// expected-error@+1 {{amd-choose-blocks: block sizes must be positive numbers, got none and 128}}
func.func @word(%q: !t, %k: !t, %v: !t) -> !t attributes {tile.choices = {block_q = "none"}} {
  %o = "attn.attention"(%q, %k, %v) ({
    "attn.row"() ({
    ^bb0(%s: f32, %b: index, %h: index, %q_idx: index):
      "attn.yield"(%s) : (f32) -> ()
    }) : () -> ()
  }) {outputs = []} : (!t, !t, !t) -> !t
  return %o : !t
}

// -----

// Of f32, tiles of a chunk are twice as large; values whose columns have no usual block are cut into equal parts.

!q = tensor<?x?x?x128xf32>
!v = tensor<?x?x?x100xf32>
!k = tensor<?x?x?x512xf32>

// CHECK-LABEL: func.func @wide({{.*}} attributes {tile.blocks = array<i64: 32, 50>}
// CHECK:         chunk = 32 : i64
func.func @wide(%q: !q, %k: !q, %v: !v, %g: tensor<?x?x?xf32>) -> !v {
  %o = "attn.linear_attention"(%q, %k, %v, %g) ({
  ^bb0:
  }) {heads = 2 : i64, direction = "forward", channels = "none", state = "kv", outputs = [],
      operandSegmentSizes = array<i32: 1, 1, 1, 1, 0, 0, 0>, resultSegmentSizes = array<i32: 1, 0, 0, 0, 0>} : (!q, !q, !v, tensor<?x?x?xf32>) -> !v
  return %o : !v
}

// CHECK-LABEL: func.func @largest({{.*}} attributes {tile.blocks = array<i64: 16, 32>}
func.func @largest(%q: !k, %k: !k, %v: !k, %g: tensor<?x?x?xf32>) -> !k {
  %o = "attn.linear_attention"(%q, %k, %v, %g) ({
  ^bb0:
  }) {heads = 2 : i64, direction = "forward", channels = "none", state = "kv", outputs = [],
      operandSegmentSizes = array<i32: 1, 1, 1, 1, 0, 0, 0>, resultSegmentSizes = array<i32: 1, 0, 0, 0, 0>} : (!k, !k, !k, tensor<?x?x?xf32>) -> !k
  return %o : !k
}
