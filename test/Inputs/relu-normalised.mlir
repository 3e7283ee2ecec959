func.func @attention(%q: tensor<?x?x?x64xf32>, %k: tensor<?x?x?x64xf32>, %v: tensor<?x?x?x64xf32>) -> (tensor<?x?x?x64xf32>, tensor<?x?x?xf32>) {
  %o, %total = "attn.attention"(%q, %k, %v) ({
    "attn.score"() ({
    ^bb0(%score: f32, %b: index, %h: index, %q_idx: index, %kv_idx: index):
      %scale = arith.constant 0.125 : f32
      %scaled = arith.mulf %score, %scale : f32
      "attn.yield"(%scaled) : (f32) -> ()
    }) : () -> ()
    "attn.mask"() ({
    ^bb0(%b: index, %h: index, %q_idx: index, %kv_idx: index):
      %present = arith.cmpi sge, %q_idx, %kv_idx : index
      "attn.yield"(%present) : (i1) -> ()
    }) : () -> ()
    "attn.row"() ({
    ^bb0(%s: f32, %b: index, %h: index, %q_idx: index):
      %zero = arith.constant 0.0 : f32
      %r = arith.maximumf %s, %zero : f32
      %total = "attn.reduce"(%r) {kind = "sum"} : (f32) -> f32
      %eps = arith.constant 1.0e-6 : f32
      %l = arith.addf %total, %eps : f32
      %p = arith.divf %r, %l : f32
      "attn.yield"(%p, %total) : (f32, f32) -> ()
    }) : () -> ()
  }) {outputs = ["total"]} : (tensor<?x?x?x64xf32>, tensor<?x?x?x64xf32>, tensor<?x?x?x64xf32>) -> (tensor<?x?x?x64xf32>, tensor<?x?x?xf32>)
  return %o, %total : tensor<?x?x?x64xf32>, tensor<?x?x?xf32>
}
