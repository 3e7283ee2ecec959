// On sm_80 the emitter is chosen with the blocks: "warp" where its passes form a kernel in them, else the reason and other blocks.
// RUN: attn-opt %s -p 'attn-simplify,attn-online-rewrite,attn-guard-empty-rows,nvidia-choose-blocks' --split-input-file | FileCheck %s

!t = tensor<?x?x?x64xf16>

// CHECK-LABEL: func.func @formed({{.*}} attributes {tile.blocks = array<i64: 128, 64>, tile.choices = {arch = "sm_80", emitter = "warp"}}
func.func @formed(%q: !t, %k: !t, %v: !t) -> !t attributes {tile.choices = {arch = "sm_80"}} {
  %o = "attn.attention"(%q, %k, %v) ({
    "attn.row"() ({
    ^bb0(%s: f32, %b: index, %h: index, %q_idx: index):
      "attn.yield"(%s) : (f32) -> ()
    }) : () -> ()
  }) {outputs = []} : (!t, !t, !t) -> !t
  return %o : !t
}

// -----

!t = tensor<?x?x?x96xf16>

// CHECK-LABEL: func.func @left({{.*}} tile.choices = {arch = "sm_80", {{.*}}unformed = "q, k and v have 96 columns, not 64, 128, 192, 256"}}
func.func @left(%q: !t, %k: !t, %v: !t) -> !t attributes {tile.choices = {arch = "sm_80"}} {
  %o = "attn.attention"(%q, %k, %v) ({
    "attn.row"() ({
    ^bb0(%s: f32, %b: index, %h: index, %q_idx: index):
      "attn.yield"(%s) : (f32) -> ()
    }) : () -> ()
  }) {outputs = []} : (!t, !t, !t) -> !t
  return %o : !t
}

// -----

!t = tensor<?x?x?x64xf16>

// Who chose blocks has chosen them for TileLang.
// CHECK-LABEL: func.func @chosen({{.*}} attributes {tile.blocks = array<i64: 64, 32>, tile.choices = {arch = "sm_80", block_kv = 32 : i64, block_q = 64 : i64}}
func.func @chosen(%q: !t, %k: !t, %v: !t) -> !t attributes {tile.choices = {arch = "sm_80", block_q = 64, block_kv = 32}} {
  %o = "attn.attention"(%q, %k, %v) ({
    "attn.row"() ({
    ^bb0(%s: f32, %b: index, %h: index, %q_idx: index):
      "attn.yield"(%s) : (f32) -> ()
    }) : () -> ()
  }) {outputs = []} : (!t, !t, !t) -> !t
  return %o : !t
}

// CHECK-LABEL: func.func @asked({{.*}} emitter = "tilelang"
// CHECK-NOT: unformed
func.func @asked(%q: !t, %k: !t, %v: !t) -> !t attributes {tile.choices = {arch = "sm_80", emitter = "tilelang"}} {
  %o = "attn.attention"(%q, %k, %v) ({
    "attn.row"() ({
    ^bb0(%s: f32, %b: index, %h: index, %q_idx: index):
      "attn.yield"(%s) : (f32) -> ()
    }) : () -> ()
  }) {outputs = []} : (!t, !t, !t) -> !t
  return %o : !t
}
