func.func @attention(%q: tensor<?x?x?x64xf32>, %k: tensor<?x?x?x64xf32>, %v: tensor<?x?x?x64xf32>) -> (tensor<?x?x?x64xf32>, tensor<?x?x?xf32>) {
  %o, %mean = "attn.attention"(%q, %k, %v) ({
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
      %one = arith.constant 1.0 : f32
      %n = "attn.reduce"(%one) {kind = "sum"} : (f32) -> f32
      %total = "attn.reduce"(%s) {kind = "sum"} : (f32) -> f32
      %mean = arith.divf %total, %n : f32
      %square = arith.mulf %s, %s : f32
      %squares = "attn.reduce"(%square) {kind = "sum"} : (f32) -> f32
      %mean_square = arith.divf %squares, %n : f32
      %mean_2 = arith.mulf %mean, %mean : f32
      %variance = arith.subf %mean_square, %mean_2 : f32
      %eps = arith.constant 1.0e-5 : f32
      %shifted = arith.addf %variance, %eps : f32
      %rstd = math.rsqrt %shifted : f32
      %centred = arith.subf %s, %mean : f32
      %normal = arith.mulf %centred, %rstd : f32
      %p = arith.divf %normal, %n : f32
      "attn.yield"(%p, %mean) : (f32, f32) -> ()
    }) : () -> ()
  }) {outputs = ["mean"]} : (tensor<?x?x?x64xf32>, tensor<?x?x?x64xf32>, tensor<?x?x?x64xf32>) -> (tensor<?x?x?x64xf32>, tensor<?x?x?xf32>)
  return %o, %mean : tensor<?x?x?x64xf32>, tensor<?x?x?xf32>
}
