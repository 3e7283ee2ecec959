// The gated delta rule in 16 bits, with columns that matrix instructions multiply; otherwise as gated-delta.mlir.
func.func @attention(%q: tensor<?x?x?x64xbf16>, %k: tensor<?x?x?x64xbf16>, %v: tensor<?x?x?x64xbf16>, %decay: tensor<?x?x?xf32>, %initial_state: tensor<?x?x64x64xf32>, %beta: tensor<?x?x?xf32>) -> (tensor<?x?x?x64xbf16>, tensor<?x?x64x64xf32>) {
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
    "attn.erase"(%k) ({
    ^bb0(%x: f32, %b: index, %h: index, %t: index, %d: index):
      %share = tensor.extract %beta[%b, %h, %t] : tensor<?x?x?xf32>
      %e = arith.mulf %x, %share : f32
      "attn.yield"(%e) : (f32) -> ()
    }) {reads = "decayed"} : (tensor<?x?x?x64xbf16>) -> ()
  }) {heads = 2 : i64, direction = "forward", channels = "none", state = "kv", outputs = ["final_state"], operandSegmentSizes = array<i32: 1, 1, 1, 1, 1, 0, 0>, resultSegmentSizes = array<i32: 1, 1, 0, 0, 0>}
    : (tensor<?x?x?x64xbf16>, tensor<?x?x?x64xbf16>, tensor<?x?x?x64xbf16>, tensor<?x?x?xf32>, tensor<?x?x64x64xf32>) -> (tensor<?x?x?x64xbf16>, tensor<?x?x64x64xf32>)
  return %o, %final_state : tensor<?x?x?x64xbf16>, tensor<?x?x64x64xf32>
}
