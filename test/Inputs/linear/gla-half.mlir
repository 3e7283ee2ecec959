// GLA in 16 bits, from a state to a state; decays and states have 32 bits.
func.func @attention(%q: tensor<?x?x?x128xbf16>, %k: tensor<?x?x?x128xbf16>, %v: tensor<?x?x?x128xbf16>, %decay: tensor<?x?x?x128xf32>, %initial_state: tensor<?x?x128x128xf32>) -> (tensor<?x?x?x128xbf16>, tensor<?x?x128x128xf32>) {
  %o, %final_state = "attn.linear_attention"(%q, %k, %v, %decay, %initial_state) ({
    "attn.query"() ({
    ^bb0(%x: f32, %b: index, %h: index, %t: index, %d: index):
      %scale = arith.constant 0.125 : f32
      %y = arith.mulf %x, %scale : f32
      "attn.yield"(%y) : (f32) -> ()
    }) : () -> ()
  }) {heads = 2 : i64, direction = "forward", channels = "key", state = "kv", outputs = ["final_state"], operandSegmentSizes = array<i32: 1, 1, 1, 1, 1, 0, 0>, resultSegmentSizes = array<i32: 1, 1, 0, 0, 0>}
    : (tensor<?x?x?x128xbf16>, tensor<?x?x?x128xbf16>, tensor<?x?x?x128xbf16>, tensor<?x?x?x128xf32>, tensor<?x?x128x128xf32>) -> (tensor<?x?x?x128xbf16>, tensor<?x?x128x128xf32>)
  return %o, %final_state : tensor<?x?x?x128xbf16>, tensor<?x?x128x128xf32>
}
