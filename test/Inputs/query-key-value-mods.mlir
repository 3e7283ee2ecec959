func.func @attention(%q: tensor<?x?x?x64xf32>, %k: tensor<?x?x?x64xf32>, %v: tensor<?x?x?x64xf32>, %gain: tensor<?x?xf32>, %factor: f32) -> (tensor<?x?x?x64xf32>, tensor<?x?x?xf32>) {
  %o, %lse = "attn.attention"(%q, %k, %v) ({
    "attn.query"() ({
    ^bb0(%x: f32, %b: index, %h: index, %q_idx: index, %d: index):
      %g = tensor.extract %gain[%h, %d] : tensor<?x?xf32>
      %y = arith.mulf %x, %g : f32
      "attn.yield"(%y) : (f32) -> ()
    }) : () -> ()
    "attn.key"() ({
    ^bb0(%x: f32, %b: index, %h_kv: index, %kv_idx: index, %d: index):
      %y = arith.mulf %x, %factor : f32
      "attn.yield"(%y) : (f32) -> ()
    }) : () -> ()
    "attn.value"() ({
    ^bb0(%x: f32, %b: index, %h_kv: index, %kv_idx: index, %d: index):
      %tanh = math.tanh %x : f32
      %kv_i64 = arith.index_cast %kv_idx : index to i64
      %kv_f = arith.sitofp %kv_i64 : i64 to f32
      %one = arith.constant 1.0 : f32
      %n = arith.addf %kv_f, %one : f32
      %y = arith.divf %tanh, %n : f32
      "attn.yield"(%y) : (f32) -> ()
    }) : () -> ()
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
      "attn.yield"(%p, %lse) : (f32, f32) -> ()
    }) : () -> ()
  }) {outputs = ["lse"]} : (tensor<?x?x?x64xf32>, tensor<?x?x?x64xf32>, tensor<?x?x?x64xf32>) -> (tensor<?x?x?x64xf32>, tensor<?x?x?xf32>)
  return %o, %lse : tensor<?x?x?x64xf32>, tensor<?x?x?xf32>
}
