// What a tuner found for a kernel stands in the module, by the kernel's name; without it nothing changes.
// RUN: attn-opt %s -p 'attn-online-rewrite,attn-chunk-rewrite{chunk=32},cpu-choose-blocks' --split-input-file --verify-diagnostics | FileCheck %s

!t = tensor<?x?x?x64xf32>

module attributes {cpu.tuned = {"attention" = {block_kv = 128, block_q = 64, threads = 3}}} {
  // CHECK-LABEL: func.func @attention({{.*}} attributes {tile.blocks = array<i64: 64, 128>, tile.choices = {threads = 3 : i64}}
  func.func @attention(%q: !t, %k: !t, %v: !t) -> !t {
    %o = "attn.attention"(%q, %k, %v) ({
      "attn.row"() ({
      ^bb0(%s: f32, %b: index, %h: index, %q_idx: index):
        "attn.yield"(%s) : (f32) -> ()
      }) : () -> ()
    }) {outputs = []} : (!t, !t, !t) -> !t
    return %o : !t
  }
  // CHECK-LABEL: func.func @other
  // CHECK-NOT:   tile.blocks
  func.func @other(%q: !t, %k: !t, %v: !t) -> !t {
    %o = "attn.attention"(%q, %k, %v) ({
      "attn.row"() ({
      ^bb0(%s: f32, %b: index, %h: index, %q_idx: index):
        "attn.yield"(%s) : (f32) -> ()
      }) : () -> ()
    }) {outputs = []} : (!t, !t, !t) -> !t
    return %o : !t
  }
}

// -----

!t = tensor<?x?x?x64xf32>

module attributes {cpu.tuned = {"attention" = {block_q = 48}}} {
  // expected-error@+1 {{cpu-choose-blocks: rows: 48, but vectors hold}}
  func.func @attention(%q: !t, %k: !t, %v: !t) -> !t {
    %o = "attn.attention"(%q, %k, %v) ({
      "attn.row"() ({
      ^bb0(%s: f32, %b: index, %h: index, %q_idx: index):
        "attn.yield"(%s) : (f32) -> ()
      }) : () -> ()
    }) {outputs = []} : (!t, !t, !t) -> !t
    return %o : !t
  }
}

// -----

// expected-error@+1 {{cpu-choose-blocks: 'cpu.tuned' holds choices by the names of kernels, got 3}}
module attributes {cpu.tuned = 3} {
}
