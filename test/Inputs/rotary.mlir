func.func @attention(%q: tensor<?x?x?x8xf32>, %k: tensor<?x?x?x8xf32>, %v: tensor<?x?x?x4xf32>, %cos: tensor<?x?xf32>, %sin: tensor<?x?xf32>) -> tensor<?x?x?x4xf32> {
  %o = "attn.attention"(%q, %k, %v) ({
    "attn.query"() ({
    ^bb0(%x: f32, %partner: f32, %b: index, %h: index, %q_idx: index, %d: index):
      %c4 = arith.constant 4 : index
      %c = arith.remsi %d, %c4 : index
      %cos_d = tensor.extract %cos[%q_idx, %c] : tensor<?x?xf32>
      %sin_d = tensor.extract %sin[%q_idx, %c] : tensor<?x?xf32>
      %first = arith.cmpi slt, %d, %c4 : index
      %minus = arith.negf %partner : f32
      %turned = arith.select %first, %minus, %partner : f32
      %0 = arith.mulf %x, %cos_d : f32
      %1 = arith.mulf %turned, %sin_d : f32
      %y = arith.addf %0, %1 : f32
      "attn.yield"(%y) : (f32) -> ()
    }) {partner = "half", channels = 8 : i64} : () -> ()
    "attn.key"() ({
    ^bb0(%x: f32, %partner: f32, %b: index, %h_kv: index, %kv_idx: index, %d: index):
      %c2 = arith.constant 2 : index
      %c = arith.divsi %d, %c2 : index
      %cos_d = tensor.extract %cos[%kv_idx, %c] : tensor<?x?xf32>
      %0 = arith.mulf %x, %cos_d : f32
      %y = arith.addf %0, %partner : f32
      "attn.yield"(%y) : (f32) -> ()
    }) {partner = "interleaved", channels = 6 : i64} : () -> ()
    "attn.row"() ({
    ^bb0(%s: f32, %b: index, %h: index, %q_idx: index):
      %m = "attn.reduce"(%s) {kind = "max"} : (f32) -> f32
      %d = arith.subf %s, %m : f32
      %e = math.exp %d : f32
      %l = "attn.reduce"(%e) {kind = "sum"} : (f32) -> f32
      %p = arith.divf %e, %l : f32
      "attn.yield"(%p) : (f32) -> ()
    }) : () -> ()
  }) {outputs = []} : (tensor<?x?x?x8xf32>, tensor<?x?x?x8xf32>, tensor<?x?x?x4xf32>) -> tensor<?x?x?x4xf32>
  return %o : tensor<?x?x?x4xf32>
}
