// A recurrence that removes another key than it writes, as RWKV-7 does, with decays of key channels.
func.func @attention(%q: tensor<?x?x?x16xf32>, %k: tensor<?x?x?x16xf32>, %v: tensor<?x?x?x8xf32>, %decay: tensor<?x?x?x16xf32>, %initial_state: tensor<?x?x16x8xf32>, %erase_key: tensor<?x?x?x16xf32>, %removed: tensor<?x?x?x16xf32>, %beta: tensor<?x?x?xf32>) -> (tensor<?x?x?x8xf32>, tensor<?x?x16x8xf32>) {
  %o, %final_state = "attn.linear_attention"(%q, %k, %v, %decay, %initial_state) ({
    "attn.query"() ({
    ^bb0(%x: f32, %b: index, %h: index, %t: index, %d: index):
      %scale = arith.constant 0.25 : f32
      %scaled = arith.mulf %x, %scale : f32
      "attn.yield"(%scaled) : (f32) -> ()
    }) : () -> ()
    "attn.value"() ({
    ^bb0(%x: f32, %b: index, %h: index, %t: index, %d: index):
      %share = tensor.extract %beta[%b, %h, %t] : tensor<?x?x?xf32>
      %y = arith.mulf %x, %share : f32
      "attn.yield"(%y) : (f32) -> ()
    }) : () -> ()
    "attn.erase"(%erase_key, %removed) ({
    ^bb0(%x: f32, %b: index, %h: index, %t: index, %d: index):
      %share = tensor.extract %beta[%b, %h, %t] : tensor<?x?x?xf32>
      %e = arith.mulf %x, %share : f32
      "attn.yield"(%e) : (f32) -> ()
    }) {reads = "decayed"} : (tensor<?x?x?x16xf32>, tensor<?x?x?x16xf32>) -> ()
  }) {heads = 2 : i64, direction = "forward", channels = "key", state = "kv", outputs = ["final_state"], operandSegmentSizes = array<i32: 1, 1, 1, 1, 1, 0, 0>, resultSegmentSizes = array<i32: 1, 1, 0, 0, 0>}
    : (tensor<?x?x?x16xf32>, tensor<?x?x?x16xf32>, tensor<?x?x?x8xf32>, tensor<?x?x?x16xf32>, tensor<?x?x16x8xf32>) -> (tensor<?x?x?x8xf32>, tensor<?x?x16x8xf32>)
  return %o, %final_state : tensor<?x?x?x8xf32>, tensor<?x?x16x8xf32>
}
