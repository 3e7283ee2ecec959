func.func @attention(%q: tensor<?x?x?x64xf32>, %k: tensor<?x?x?x64xf32>, %v: tensor<?x?x?x64xf32>) -> (tensor<?x?x?x64xf32>, tensor<?x?x?xf32>) {
  %o, %std = "attn.attention"(%q, %k, %v) ({
    "attn.score"() ({
    ^bb0(%score: f32, %b: index, %h: index, %q_idx: index, %kv_idx: index):
      %scale = arith.constant 0.125 : f32
      %scaled = arith.mulf %score, %scale : f32
      "attn.yield"(%scaled) : (f32) -> ()
    }) : () -> ()
    "attn.row"() ({
    ^bb0(%s: f32, %b: index, %h: index, %q_idx: index):
      %one = arith.constant 1.0 : f32
      %n = "attn.reduce"(%one) {kind = "sum"} : (f32) -> f32
      %total = "attn.reduce"(%s) {kind = "sum"} : (f32) -> f32
      %mean = arith.divf %total, %n : f32
      %centred = arith.subf %s, %mean : f32
      %square = arith.mulf %centred, %centred : f32
      %squares = "attn.reduce"(%square) {kind = "sum"} : (f32) -> f32
      %variance = arith.divf %squares, %n : f32
      %shifted = arith.addf %variance, %one : f32
      %std = math.sqrt %shifted : f32
      %t = arith.divf %s, %std : f32
      %m = "attn.reduce"(%t) {kind = "max"} : (f32) -> f32
      %d = arith.subf %t, %m : f32
      %e = math.exp %d : f32
      %l = "attn.reduce"(%e) {kind = "sum"} : (f32) -> f32
      %p = arith.divf %e, %l : f32
      "attn.yield"(%p, %std) : (f32, f32) -> ()
    }) : () -> ()
  }) {outputs = ["std"]} : (tensor<?x?x?x64xf32>, tensor<?x?x?x64xf32>, tensor<?x?x?x64xf32>) -> (tensor<?x?x?x64xf32>, tensor<?x?x?xf32>)
  return %o, %std : tensor<?x?x?x64xf32>, tensor<?x?x?xf32>
}
