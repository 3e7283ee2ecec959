func.func @attention(%q: tensor<?x?x?x8xf32>, %k: tensor<?x?x?x8xf32>, %v: tensor<?x?x?x4xf32>, %slopes: tensor<?xf32>) -> (tensor<?x?x?x4xf32>, tensor<?x?x?xf32>) {
  %o, %lse = "attn.online"(%q, %k, %v) ({
    "attn.score"() ({
    ^bb0(%x: f32, %b: index, %h: index, %q_idx: index, %kv_idx: index):
      %slope = tensor.extract %slopes[%h] : tensor<?xf32>
      %s = arith.mulf %x, %slope : f32
      "attn.yield"(%s) : (f32) -> ()
    }) : () -> ()
    "attn.mask"() ({
    ^bb0(%b: index, %h: index, %q_idx: index, %kv_idx: index):
      %keep = arith.cmpi sge, %q_idx, %kv_idx : index
      "attn.yield"(%keep) : (i1) -> ()
    }) : () -> ()
    "attn.init"() ({
    ^bb0(%b: index, %h: index, %q_idx: index):
      %m = arith.constant -3.40282347E+38 : f32
      %l = arith.constant 0.0 : f32
      "attn.yield"(%m, %l) : (f32, f32) -> ()
    }) : () -> ()
    "attn.step"() ({
    ^bb0(%s: f32, %b: index, %h: index, %q_idx: index, %m: f32, %l: f32):
      %block_max = "attn.reduce"(%s) {kind = "max"} : (f32) -> f32
      %m_new = arith.maximumf %m, %block_max : f32
      %d = arith.subf %s, %m_new : f32
      %e = math.exp %d : f32
      %block_sum = "attn.reduce"(%e) {kind = "sum"} : (f32) -> f32
      %dm = arith.subf %m, %m_new : f32
      %rescale = math.exp %dm : f32
      %l_scaled = arith.mulf %l, %rescale : f32
      %l_new = arith.addf %l_scaled, %block_sum : f32
      "attn.yield"(%m_new, %l_new, %e, %rescale) : (f32, f32, f32, f32) -> ()
    }) : () -> ()
    "attn.finalize"() ({
    ^bb0(%acc: f32, %b: index, %h: index, %q_idx: index, %m: f32, %l: f32):
      %o = arith.divf %acc, %l : f32
      %log_l = math.log %l : f32
      %lse = arith.addf %m, %log_l : f32
      "attn.yield"(%o, %lse) : (f32, f32) -> ()
    }) : () -> ()
  }) {outputs = ["lse"], accumulators = 1 : i64} : (tensor<?x?x?x8xf32>, tensor<?x?x?x8xf32>, tensor<?x?x?x4xf32>) -> (tensor<?x?x?x4xf32>, tensor<?x?x?xf32>)
  return %o, %lse : tensor<?x?x?x4xf32>, tensor<?x?x?xf32>
}
func.func @attention_weight(%s: f32, %b: index, %h: index, %q_idx: index, %kv_idx: index, %lse: f32, %q: tensor<?x?x?x8xf32>,
    %k: tensor<?x?x?x8xf32>, %v: tensor<?x?x?x4xf32>, %slopes: tensor<?xf32>) -> f32 {
  %d = arith.subf %s, %lse : f32
  %p = math.exp %d : f32
  return %p : f32
}
func.func @attention_dscore(%dp: f32, %p: f32, %b: index, %h: index, %q_idx: index, %kv_idx: index, %doosum: f32, %lse: f32,
    %q: tensor<?x?x?x8xf32>, %k: tensor<?x?x?x8xf32>, %v: tensor<?x?x?x4xf32>, %slopes: tensor<?xf32>) -> f32 {
  %centred = arith.subf %dp, %doosum : f32
  %ds = arith.mulf %centred, %p : f32
  return %ds : f32
}
