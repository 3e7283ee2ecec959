func.func @attention(%q: tensor<?x?x?x64xf32>, %k: tensor<?x?x?x64xf32>, %v: tensor<?x?x?x64xf32>, %decay: tensor<?xf32>) -> (tensor<?x?x?x64xf32>) {
  %o = "attn.attention"(%q, %k, %v) ({
    "attn.score"() ({
    ^bb0(%score: f32, %b: index, %h: index, %q_idx: index, %kv_idx: index):
      %scale = arith.constant 0.125 : f32
      %scaled = arith.mulf %score, %scale : f32
      %rel = arith.subi %q_idx, %kv_idx : index
      %rel_i64 = arith.index_cast %rel : index to i64
      %rel_f = arith.sitofp %rel_i64 : i64 to f32
      %log_decay = tensor.extract %decay[%h] : tensor<?xf32>
      %abs_decay = math.absf %log_decay : f32
      %negative = arith.negf %abs_decay : f32
      %exponent = arith.mulf %negative, %rel_f : f32
      %factor = math.exp %exponent : f32
      %decayed = arith.mulf %scaled, %factor : f32
      "attn.yield"(%decayed) : (f32) -> ()
    }) : () -> ()
    "attn.mask"() ({
    ^bb0(%b: index, %h: index, %q_idx: index, %kv_idx: index):
      %present = arith.cmpi sge, %q_idx, %kv_idx : index
      "attn.yield"(%present) : (i1) -> ()
    }) : () -> ()
    "attn.row"() ({
    ^bb0(%s: f32, %b: index, %h: index, %q_idx: index):
      %a = math.absf %s : f32
      %total = "attn.reduce"(%a) {kind = "sum"} : (f32) -> f32
      %detached = "attn.detach"(%total) : (f32) -> f32
      %one = arith.constant 1.0 : f32
      %l = arith.maximumf %detached, %one : f32
      %p = arith.divf %s, %l : f32
      "attn.yield"(%p) : (f32) -> ()
    }) : () -> ()
  }) {outputs = []} : (tensor<?x?x?x64xf32>, tensor<?x?x?x64xf32>, tensor<?x?x?x64xf32>) -> tensor<?x?x?x64xf32>
  return %o : tensor<?x?x?x64xf32>
}
