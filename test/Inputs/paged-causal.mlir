// Packed sequences, keys in pages: softmax with one slope a head, causal from the bottom right of each sequence, and lse.
func.func @attention(%q: tensor<?x?x?x16xf32>, %k: tensor<?x?x?x16xf32>, %v: tensor<?x?x?x8xf32>, %q_begins: tensor<?xi32>, %q_lengths: tensor<?xi32>, %k_begins: tensor<?xi32>, %k_lengths: tensor<?xi32>, %block_table: tensor<?x?xi32>, %slopes: tensor<?xf32>) -> (tensor<?x?x?x8xf32>, tensor<?x?x?xf32>) {
  %o, %lse = "attn.attention"(%q, %k, %v) ({
    "attn.sequences"(%q_begins, %q_lengths) {of = "query"} : (tensor<?xi32>, tensor<?xi32>) -> ()
    "attn.sequences"(%k_begins, %k_lengths) {of = "key"} : (tensor<?xi32>, tensor<?xi32>) -> ()
    "attn.pages"(%block_table) : (tensor<?x?xi32>) -> ()
    "attn.query"() ({
    ^bb0(%x: f32, %b: index, %h: index, %q_idx: index, %d: index):
      %slope = tensor.extract %slopes[%h] : tensor<?xf32>
      %y = arith.mulf %x, %slope : f32
      "attn.yield"(%y) : (f32) -> ()
    }) : () -> ()
    "attn.score"() ({
    ^bb0(%s: f32, %b: index, %h: index, %q_idx: index, %kv_idx: index):
      %slope = tensor.extract %slopes[%h] : tensor<?xf32>
      %distance = arith.subi %kv_idx, %q_idx : index
      %wide = arith.index_cast %distance : index to i64
      %float = arith.sitofp %wide : i64 to f32
      %bias = arith.mulf %slope, %float : f32
      %t = arith.addf %s, %bias : f32
      "attn.yield"(%t) : (f32) -> ()
    }) : () -> ()
    "attn.mask"() ({
    ^bb0(%b: index, %h: index, %q_idx: index, %kv_idx: index):
      %narrow_k = tensor.extract %k_lengths[%b] : tensor<?xi32>
      %kv_len = arith.index_cast %narrow_k : i32 to index
      %narrow_q = tensor.extract %q_lengths[%b] : tensor<?xi32>
      %q_len = arith.index_cast %narrow_q : i32 to index
      %shift = arith.subi %kv_len, %q_len : index
      %last = arith.addi %q_idx, %shift : index
      %seen = arith.cmpi sge, %last, %kv_idx : index
      "attn.yield"(%seen) : (i1) -> ()
    }) : () -> ()
    "attn.row"() ({
    ^bb0(%s: f32, %b: index, %h: index, %q_idx: index):
      %m = "attn.reduce"(%s) {kind = "max"} : (f32) -> f32
      %d = arith.subf %s, %m : f32
      %e = math.exp %d : f32
      %l = "attn.reduce"(%e) {kind = "sum"} : (f32) -> f32
      %p = arith.divf %e, %l : f32
      %log = math.log %l : f32
      %lse = arith.addf %m, %log : f32
      "attn.yield"(%p, %lse) : (f32, f32) -> ()
    }) : () -> ()
  }) {outputs = ["lse"]} : (tensor<?x?x?x16xf32>, tensor<?x?x?x16xf32>, tensor<?x?x?x8xf32>) -> (tensor<?x?x?x8xf32>, tensor<?x?x?xf32>)
  return %o, %lse : tensor<?x?x?x8xf32>, tensor<?x?x?xf32>
}
