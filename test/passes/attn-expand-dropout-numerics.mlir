// What is kept depends on positions alone, whatever the stage: a row is dropped from after it was normalised, and lse knows nothing of it.
// RUN: attn-run %s --after-each -p 'attn-simplify,attn-resolve-masks,attn-online-rewrite,attn-guard-empty-rows,attn-tile{block-q=16 block-kv=8},attn-choose-kept,attn-expand-dropout' | FileCheck %s

// CHECK:     PASS
// CHECK-NOT: FAIL
!t = tensor<?x?x?x8xf32>
func.func @attention(%q: !t, %k: !t, %v: !t, %seed: index, %offset: index, %scale: f32) -> (!t, tensor<?x?x?xf32>) {
  %c1 = arith.constant 1 : index
  %drop = arith.constant 1288490189 : index
  %heads = tensor.dim %q, %c1 : !t
  %o, %lse = "attn.attention"(%q, %k, %v) ({
    "attn.score"() ({
    ^bb0(%s: f32, %b: index, %h: index, %q_idx: index, %kv_idx: index):
      %zero = arith.constant 0.0 : f32
      %one = arith.constant 1.0 : f32
      %is_kept = "attn.kept"(%seed, %offset, %drop, %heads, %b, %h, %q_idx, %kv_idx) : (index, index, index, index, index, index, index, index) -> i1
      %kept = arith.select %is_kept, %one, %zero : f32
      "attn.yield"(%s, %kept) : (f32, f32) -> ()
    }) : () -> ()
    "attn.mask"() ({
    ^bb0(%b: index, %h: index, %q_idx: index, %kv_idx: index):
      %keep = arith.cmpi sgt, %q_idx, %kv_idx : index
      "attn.yield"(%keep) : (i1) -> ()
    }) : () -> ()
    "attn.row"() ({
    ^bb0(%s: f32, %kept: f32, %b: index, %h: index, %q_idx: index):
      %max = "attn.reduce"(%s) {kind = "max"} : (f32) -> f32
      %d = arith.subf %s, %max : f32
      %e = math.exp %d : f32
      %sum = "attn.reduce"(%e) {kind = "sum"} : (f32) -> f32
      %p = arith.divf %e, %sum : f32
      %dropped = arith.mulf %p, %kept : f32
      %scaled = arith.mulf %dropped, %scale : f32
      %log = math.log %sum : f32
      %lse = arith.addf %max, %log : f32
      "attn.yield"(%scaled, %lse) : (f32, f32) -> ()
    }) : () -> ()
  }) {outputs = ["lse"]} : (!t, !t, !t) -> (!t, tensor<?x?x?xf32>)
  return %o, %lse : !t, tensor<?x?x?xf32>
}
