func.func @attention(%q: tensor<?x?x?x64xf32>, %k: tensor<?x?x?x64xf32>, %v: tensor<?x?x?x64xf32>) -> (tensor<?x?x?x64xf32>, tensor<?x?x?xf32>) {
  %c2 = arith.constant 2 : index
  %skv = tensor.dim %k, %c2 : tensor<?x?x?x64xf32>
  %o, %lse = "attn.online"(%q, %k, %v) ({
    "attn.score"() ({
    ^bb0(%score: f32, %b: index, %h: index, %q_idx: index, %kv_idx: index):
      %scale = arith.constant 0.125 : f32
      %0 = arith.mulf %score, %scale : f32
      "attn.yield"(%0) : (f32) -> ()
    }) : () -> ()
    "attn.mask"() ({
    ^bb0(%b: index, %h: index, %q_idx: index, %kv_idx: index):
      %0 = arith.cmpi sge, %q_idx, %kv_idx : index
      "attn.yield"(%0) : (i1) -> ()
    }) : () -> ()
    "attn.bounds"() ({
    ^bb0(%b: index, %h: index, %q_begin: index, %q_end: index):
      %c0 = arith.constant 0 : index
      %c1 = arith.constant 1 : index
      %0 = arith.addi %q_begin, %c1 : index
      %full_end = arith.minsi %0, %skv : index
      %end = arith.minsi %q_end, %skv : index
      "attn.yield"(%c0, %c0, %full_end, %end) : (index, index, index, index) -> ()
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
    "attn.merge"() ({
    ^bb0(%m_a: f32, %l_a: f32, %m_b: f32, %l_b: f32):
      %m = arith.maximumf %m_a, %m_b : f32
      %da = arith.subf %m_a, %m : f32
      %a = math.exp %da : f32
      %db = arith.subf %m_b, %m : f32
      %b = math.exp %db : f32
      %la = arith.mulf %l_a, %a : f32
      %lb = arith.mulf %l_b, %b : f32
      %l = arith.addf %la, %lb : f32
      "attn.yield"(%m, %l, %a, %b) : (f32, f32, f32, f32) -> ()
    }) : () -> ()
    "attn.finalize"() ({
    ^bb0(%acc: f32, %b: index, %h: index, %q_idx: index, %m: f32, %l: f32):
      %o = arith.divf %acc, %l : f32
      %log_l = math.log %l : f32
      %lse = arith.addf %m, %log_l : f32
      "attn.yield"(%o, %lse) : (f32, f32) -> ()
    }) : () -> ()
  }) {outputs = ["lse"], accumulators = 1 : i64, rows_nonempty = true} : (tensor<?x?x?x64xf32>, tensor<?x?x?x64xf32>, tensor<?x?x?x64xf32>) -> (tensor<?x?x?x64xf32>, tensor<?x?x?xf32>)
  return %o, %lse : tensor<?x?x?x64xf32>, tensor<?x?x?xf32>
}
