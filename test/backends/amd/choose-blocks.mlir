// Block sizes follow the head dimensions; choices on a function come first.
// RUN: attn-opt %s -p 'attn-online-rewrite,amd-choose-blocks' --split-input-file --verify-diagnostics | FileCheck %s

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
