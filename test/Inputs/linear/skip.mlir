// Mamba-2 with a skip: log decay dt A, values times dt, and D x for each head.
func.func @attention(%q: tensor<?x?x?x16xf32>, %k: tensor<?x?x?x16xf32>, %v: tensor<?x?x?x8xf32>, %decay: tensor<?x?x?xf32>, %a: tensor<?xf32>, %skip: tensor<?xf32>) -> tensor<?x?x?x8xf32> {
  %o = "attn.linear_attention"(%q, %k, %v, %decay) ({
    "attn.value"() ({
    ^bb0(%x: f32, %b: index, %h: index, %t: index, %d: index):
      %dt = tensor.extract %decay[%b, %h, %t] : tensor<?x?x?xf32>
      %y = arith.mulf %x, %dt : f32
      "attn.yield"(%y) : (f32) -> ()
    }) : () -> ()
    "attn.decay"() ({
    ^bb0(%g: f32, %b: index, %h: index, %t: index, %d: index):
      %a_h = tensor.extract %a[%h] : tensor<?xf32>
      %y = arith.mulf %g, %a_h : f32
      "attn.yield"(%y) : (f32) -> ()
    }) : () -> ()
    "attn.skip"() ({
    ^bb0(%b: index, %h: index, %t: index):
      %d_h = tensor.extract %skip[%h] : tensor<?xf32>
      "attn.yield"(%d_h) : (f32) -> ()
    }) : () -> ()
  }) {heads = 2 : i64, direction = "forward", channels = "none", state = "kv", outputs = [], operandSegmentSizes = array<i32: 1, 1, 1, 1, 0, 0, 0>, resultSegmentSizes = array<i32: 1, 0, 0, 0, 0>}
    : (tensor<?x?x?x16xf32>, tensor<?x?x?x16xf32>, tensor<?x?x?x8xf32>, tensor<?x?x?xf32>) -> tensor<?x?x?x8xf32>
  return %o : tensor<?x?x?x8xf32>
}
