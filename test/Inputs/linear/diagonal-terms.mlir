// A scan as the gradient of k needs it in bf16: what multiplies rows stands behind all sums, own terms are apart from products.
func.func @attention(%q: tensor<?x?x?x8xf32>, %k: tensor<?x?x?x8xf32>, %v: tensor<?x?x?x16xf32>, %decay: tensor<?x?x?xf32>, %factor: tensor<?x?x?x16xf32>, %dt: tensor<?x?x?xf32>) -> (tensor<?x?x?x16xf32>, tensor<?x?x?xf32>, tensor<?x?x?x8xf32>, tensor<?x?x?xf32>) {
  %o, %products, %states, %own = "attn.linear_attention"(%q, %k, %v, %decay, %factor) ({
    "attn.value"() ({
    ^bb0(%x: f32, %b: index, %h: index, %t: index, %d: index):
      %half = arith.constant 0.5 : f32
      %y = arith.mulf %x, %half : f32
      "attn.yield"(%y) : (f32) -> ()
    }) : () -> ()
    "attn.result"() ({
    ^bb0(%x: f32, %b: index, %h: index, %t: index, %d: index):
      %e = tensor.extract %dt[%b, %h, %t] : tensor<?x?x?xf32>
      %y = arith.mulf %x, %e : f32
      "attn.yield"(%y) : (f32) -> ()
    }) : () -> ()
  }) {heads = 1 : i64, direction = "backward", channels = "none", state = "vk", outputs = ["products", "states", "diagonal"], interval = 16 : i64, operandSegmentSizes = array<i32: 1, 1, 1, 1, 0, 1, 0>, resultSegmentSizes = array<i32: 1, 0, 1, 1, 1>}
    : (tensor<?x?x?x8xf32>, tensor<?x?x?x8xf32>, tensor<?x?x?x16xf32>, tensor<?x?x?xf32>, tensor<?x?x?x16xf32>) -> (tensor<?x?x?x16xf32>, tensor<?x?x?xf32>, tensor<?x?x?x8xf32>, tensor<?x?x?xf32>)
  return %o, %products, %states, %own : tensor<?x?x?x16xf32>, tensor<?x?x?xf32>, tensor<?x?x?x8xf32>, tensor<?x?x?xf32>
}
