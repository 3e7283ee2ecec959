func.func @attention_bwd(%q: tensor<?x?x?x64xf32>, %k: tensor<?x?x?x64xf32>, %v: tensor<?x?x?x32xf32>, %slopes: tensor<?xf32>,
    %o: tensor<?x?x?x32xf32>, %m: tensor<?x?x?xf32>, %l: tensor<?x?x?xf32>, %do: tensor<?x?x?x32xf32>)
    -> (tensor<?x?x?x64xf32>, tensor<?x?x?x64xf32>, tensor<?x?x?x32xf32>, tensor<?xf32>) {
  %delta = "attn.row_dot"(%do, %o) : (tensor<?x?x?x32xf32>, tensor<?x?x?x32xf32>) -> tensor<?x?x?xf32>
  %w = "attn.pairs"() ({
    "attn.product"(%q, %k) : (tensor<?x?x?x64xf32>, tensor<?x?x?x64xf32>) -> ()
    "attn.product"(%do, %v) : (tensor<?x?x?x32xf32>, tensor<?x?x?x32xf32>) -> ()
    "attn.mask"() ({
    ^bb0(%b: index, %h: index, %q_idx: index, %kv_idx: index):
      %keep = arith.cmpi sge, %q_idx, %kv_idx : index
      "attn.yield"(%keep) : (i1) -> ()
    }) : () -> ()
    "attn.pair"() ({
    ^bb0(%x: f32, %dp: f32, %b: index, %h: index, %q_idx: index, %kv_idx: index):
      %scale = arith.constant 0.125 : f32
      %s0 = arith.mulf %x, %scale : f32
      %slope = tensor.extract %slopes[%h] : tensor<?xf32>
      %distance = arith.subi %kv_idx, %q_idx : index
      %distance_int = arith.index_cast %distance : index to i64
      %d = arith.sitofp %distance_int : i64 to f32
      %bias = arith.mulf %slope, %d : f32
      %s = arith.addf %s0, %bias : f32
      %row_max = tensor.extract %m[%b, %h, %q_idx] : tensor<?x?x?xf32>
      %row_sum = tensor.extract %l[%b, %h, %q_idx] : tensor<?x?x?xf32>
      %row_delta = tensor.extract %delta[%b, %h, %q_idx] : tensor<?x?x?xf32>
      %shifted = arith.subf %s, %row_max : f32
      %e = math.exp %shifted : f32
      %p = arith.divf %e, %row_sum : f32
      %centred = arith.subf %dp, %row_delta : f32
      %ds = arith.mulf %p, %centred : f32
      %dx = arith.mulf %ds, %scale : f32
      %dslope = arith.mulf %ds, %d : f32
      "attn.yield"(%dx, %p, %dslope) : (f32, f32, f32) -> ()
    }) : () -> ()
  }) : () -> none
  %dq = "attn.query_sum"(%w, %k) {weights = array<i64: 0>} : (none, tensor<?x?x?x64xf32>) -> tensor<?x?x?x64xf32>
  %dk = "attn.key_sum"(%w, %q) {weights = array<i64: 0>} : (none, tensor<?x?x?x64xf32>) -> tensor<?x?x?x64xf32>
  %dv = "attn.key_sum"(%w, %do) {weights = array<i64: 1>} : (none, tensor<?x?x?x32xf32>) -> tensor<?x?x?x32xf32>
  %dslopes = "attn.scatter"(%w, %slopes) ({
  ^bb0(%b: index, %h: index, %q_idx: index, %kv_idx: index):
    "attn.yield"(%h) : (index) -> ()
  }) {weight = 2} : (none, tensor<?xf32>) -> tensor<?xf32>
  return %dq, %dk, %dv, %dslopes : tensor<?x?x?x64xf32>, tensor<?x?x?x64xf32>, tensor<?x?x?x32xf32>, tensor<?xf32>
}
