func.func @attention(%q: tensor<?x?x?x64xf32>, %k: tensor<?x?x?x64xf32>, %v: tensor<?x?x?x32xf32>, %slopes: tensor<?xf32>)
    -> (tensor<?x?x?x32xf32>) {
  %o = "attn.attention"(%q, %k, %v) ({
    "attn.score"() ({
    ^bb0(%x: f32, %b: index, %h: index, %q_idx: index, %kv_idx: index):
      %scale = arith.constant 0.125 : f32
      %s0 = arith.mulf %x, %scale : f32
      %slope = tensor.extract %slopes[%h] : tensor<?xf32>
      %distance = arith.subi %kv_idx, %q_idx : index
      %distance_int = arith.index_cast %distance : index to i64
      %d = arith.sitofp %distance_int : i64 to f32
      %bias = arith.mulf %slope, %d : f32
      %s = arith.addf %s0, %bias : f32
      "attn.yield"(%s) : (f32) -> ()
    }) : () -> ()
    "attn.mask"() ({
    ^bb0(%b: index, %h: index, %q_idx: index, %kv_idx: index):
      %keep = arith.cmpi sge, %q_idx, %kv_idx : index
      "attn.yield"(%keep) : (i1) -> ()
    }) : () -> ()
    "attn.row"() ({
    ^bb0(%s: f32, %b: index, %h: index, %q_idx: index):
      %m = "attn.reduce"(%s) {kind = "max"} : (f32) -> f32
      %shifted = arith.subf %s, %m : f32
      %e = math.exp %shifted : f32
      %l = "attn.reduce"(%e) {kind = "sum"} : (f32) -> f32
      %p = arith.divf %e, %l : f32
      "attn.yield"(%p) : (f32) -> ()
    }) : () -> ()
  }) {outputs = []} : (tensor<?x?x?x64xf32>, tensor<?x?x?x64xf32>, tensor<?x?x?x32xf32>) -> (tensor<?x?x?x32xf32>)
  return %o : tensor<?x?x?x32xf32>
}
func.func @attention_fwd(%q: tensor<?x?x?x64xf32>, %k: tensor<?x?x?x64xf32>, %v: tensor<?x?x?x32xf32>, %slopes: tensor<?xf32>)
    -> (tensor<?x?x?x32xf32>, tensor<?x?x?xf32>, tensor<?x?x?xf32>) {
  %o:3 = "attn.attention"(%q, %k, %v) ({
    "attn.score"() ({
    ^bb0(%x: f32, %b: index, %h: index, %q_idx: index, %kv_idx: index):
      %scale = arith.constant 0.125 : f32
      %s0 = arith.mulf %x, %scale : f32
      %slope = tensor.extract %slopes[%h] : tensor<?xf32>
      %distance = arith.subi %kv_idx, %q_idx : index
      %distance_int = arith.index_cast %distance : index to i64
      %d = arith.sitofp %distance_int : i64 to f32
      %bias = arith.mulf %slope, %d : f32
      %s = arith.addf %s0, %bias : f32
      "attn.yield"(%s) : (f32) -> ()
    }) : () -> ()
    "attn.mask"() ({
    ^bb0(%b: index, %h: index, %q_idx: index, %kv_idx: index):
      %keep = arith.cmpi sge, %q_idx, %kv_idx : index
      "attn.yield"(%keep) : (i1) -> ()
    }) : () -> ()
    "attn.row"() ({
    ^bb0(%s: f32, %b: index, %h: index, %q_idx: index):
      %m = "attn.reduce"(%s) {kind = "max"} : (f32) -> f32
      %shifted = arith.subf %s, %m : f32
      %e = math.exp %shifted : f32
      %l = "attn.reduce"(%e) {kind = "sum"} : (f32) -> f32
      %p = arith.divf %e, %l : f32
      "attn.yield"(%p, %m, %l) : (f32, f32, f32) -> ()
    }) : () -> ()
  }) {outputs = ["saved_m", "saved_l"]} : (tensor<?x?x?x64xf32>, tensor<?x?x?x64xf32>, tensor<?x?x?x32xf32>) -> (tensor<?x?x?x32xf32>, tensor<?x?x?xf32>, tensor<?x?x?xf32>)
  return %o#0, %o#1, %o#2 : tensor<?x?x?x32xf32>, tensor<?x?x?xf32>, tensor<?x?x?xf32>
}
