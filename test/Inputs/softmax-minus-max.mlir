func.func @attention(%q: tensor<?x?x?x64xf32>, %k: tensor<?x?x?x64xf32>, %v: tensor<?x?x?x64xf32>) -> (tensor<?x?x?x64xf32>, tensor<?x?x?xf32>) {
  %o, %lse = "attn.attention"(%q, %k, %v) ({
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
      %m = "attn.reduce"(%s) {kind = "max"} : (f32) -> f32
      %d = arith.subf %s, %m : f32
      %e = math.exp %d : f32
      %l = "attn.reduce"(%e) {kind = "sum"} : (f32) -> f32
      %p = arith.divf %e, %l : f32
      %log_l = math.log %l : f32
      %lse = arith.addf %m, %log_l : f32
      %centred = arith.subf %p, %m : f32
      "attn.yield"(%centred, %lse) : (f32, f32) -> ()
    }) : () -> ()
  }) {outputs = ["lse"]} : (tensor<?x?x?x64xf32>, tensor<?x?x?x64xf32>, tensor<?x?x?x64xf32>) -> (tensor<?x?x?x64xf32>, tensor<?x?x?xf32>)
  return %o, %lse : tensor<?x?x?x64xf32>, tensor<?x?x?xf32>
}
