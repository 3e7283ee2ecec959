// What a loop over tiles loads gets a second stage where memory is left; rings of inner loops keep theirs.
// RUN: attn-opt %s --split-input-file -p 'nvidia-warp' | FileCheck %s

!t = tensor<?x?x?x64xf16>

// CHECK: "warp.alloc"() : () -> memref<2x{{[0-9]+}}x64xf16, #warp.shared<128 : i64>>
// CHECK-NEXT: "warp.mbarrier"() : () -> !warp.barrier<2 : i64, 1 : i64>
// CHECK: "warp.alloc"() : () -> memref<4x128x64xf16, #warp.shared<128 : i64>>
// CHECK: "warp.stage"(%{{.*}}) {stages = 2 : i64}
// CHECK-NOT: "warp-pipeline-tiles" =
// CHECK: sym_name = "softmax"
func.func @softmax(%q: !t, %k: !t, %v: !t) -> !t {
  %o = "attn.attention"(%q, %k, %v) ({
    "attn.row"() ({
    ^bb0(%s: f32, %b: index, %h: index, %q_idx: index):
      %m = "attn.reduce"(%s) {kind = "max"} : (f32) -> f32
      %d = arith.subf %s, %m : f32
      %e = math.exp %d : f32
      %l = "attn.reduce"(%e) {kind = "sum"} : (f32) -> f32
      %p = arith.divf %e, %l : f32
      "attn.yield"(%p) : (f32) -> ()
    }) : () -> ()
  }) {outputs = []} : (!t, !t, !t) -> !t
  return %o : !t
}

// -----

!wide = tensor<?x?x?x128xf16>

// CHECK: "warp-pipeline-tiles" = "two stages of what tiles load take up to
func.func @softmax(%q: !wide, %k: !wide, %v: !wide) -> !wide {
  %o = "attn.attention"(%q, %k, %v) ({
    "attn.row"() ({
    ^bb0(%s: f32, %b: index, %h: index, %q_idx: index):
      %m = "attn.reduce"(%s) {kind = "max"} : (f32) -> f32
      %d = arith.subf %s, %m : f32
      %e = math.exp %d : f32
      %l = "attn.reduce"(%e) {kind = "sum"} : (f32) -> f32
      %p = arith.divf %e, %l : f32
      "attn.yield"(%p) : (f32) -> ()
    }) : () -> ()
  }) {outputs = []} : (!wide, !wide, !wide) -> !wide
  return %o : !wide
}
