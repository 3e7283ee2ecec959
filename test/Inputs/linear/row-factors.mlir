// Rows of q, k and v have factors: products, a quotient, of what is captured and of the decay.
func.func @attention(%q: tensor<?x?x?x16xf32>, %k: tensor<?x?x?x16xf32>, %v: tensor<?x?x?x8xf32>, %decay: tensor<?x?x?xf32>, %f: tensor<?x?xf32>) -> tensor<?x?x?x8xf32> {
  %o = "attn.linear_attention"(%q, %k, %v, %decay) ({
    "attn.query"() ({
    ^bb0(%x: f32, %b: index, %h: index, %t: index, %d: index):
      %half = arith.constant 0.5 : f32
      %e = tensor.extract %f[%h, %t] : tensor<?x?xf32>
      %y = arith.mulf %e, %x : f32
      %z = arith.mulf %y, %half : f32
      "attn.yield"(%z) : (f32) -> ()
    }) : () -> ()
    "attn.key"() ({
    ^bb0(%x: f32, %b: index, %h: index, %t: index, %d: index):
      %two = arith.constant 2.0 : f32
      %e = tensor.extract %f[%h, %t] : tensor<?x?xf32>
      %square = arith.mulf %e, %e : f32
      %more = arith.addf %square, %two : f32
      %y = arith.divf %x, %more : f32
      %z = arith.negf %y : f32
      "attn.yield"(%z) : (f32) -> ()
    }) : () -> ()
    "attn.value"() ({
    ^bb0(%x: f32, %b: index, %h: index, %t: index, %d: index):
      %dt = tensor.extract %decay[%b, %h, %t] : tensor<?x?x?xf32>
      %y = arith.mulf %x, %dt : f32
      "attn.yield"(%y) : (f32) -> ()
    }) : () -> ()
  }) {heads = 2 : i64, direction = "forward", channels = "none", state = "kv", outputs = [], operandSegmentSizes = array<i32: 1, 1, 1, 1, 0, 0, 0>, resultSegmentSizes = array<i32: 1, 0, 0, 0, 0>}
    : (tensor<?x?x?x16xf32>, tensor<?x?x?x16xf32>, tensor<?x?x?x8xf32>, tensor<?x?x?xf32>) -> tensor<?x?x?x8xf32>
  return %o : tensor<?x?x?x8xf32>
}
