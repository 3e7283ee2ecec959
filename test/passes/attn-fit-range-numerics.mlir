// Weights times a power of two, and accumulators divided by it, give what they gave before; merged parts, too.
// RUN: attn-run %s -p 'attn-simplify,attn-online-rewrite,attn-fit-range,attn-guard-empty-rows' | FileCheck %s
// RUN: attn-run %s -p 'attn-pipeline' | FileCheck %s
// CHECK: PASS

func.func @attention(%q: tensor<?x?x?x8xf8E4M3FN>, %k: tensor<?x?x?x8xf8E4M3FN>, %v: tensor<?x?x?x8xf8E4M3FN>, %scale: tensor<?xf32>) -> tensor<?x?x?x8xbf16> {
  %o = "attn.attention"(%q, %k, %v) ({
    "attn.row"() ({
    ^bb0(%s: f32, %b: index, %h: index, %q_idx: index):
      %m = "attn.reduce"(%s) {kind = "max"} : (f32) -> f32
      %d = arith.subf %s, %m : f32
      %e = math.exp %d : f32
      %l = "attn.reduce"(%e) {kind = "sum"} : (f32) -> f32
      %n = arith.divf %e, %l : f32
      %factor = tensor.extract %scale[%h] : tensor<?xf32>
      %p = arith.mulf %n, %factor : f32
      "attn.yield"(%p) : (f32) -> ()
    }) : () -> ()
  }) {outputs = []} : (tensor<?x?x?x8xf8E4M3FN>, tensor<?x?x?x8xf8E4M3FN>, tensor<?x?x?x8xf8E4M3FN>) -> tensor<?x?x?x8xbf16>
  return %o : tensor<?x?x?x8xbf16>
}
