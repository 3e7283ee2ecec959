// Retention: one log decay for each head, captured; there is no decay operand.
func.func @attention(%q: tensor<?x?x?x16xf32>, %k: tensor<?x?x?x16xf32>, %v: tensor<?x?x?x8xf32>, %log_gamma: tensor<?xf32>) -> tensor<?x?x?x8xf32> {
  %o = "attn.linear_attention"(%q, %k, %v) ({
    "attn.decay"() ({
    ^bb0(%g: f32, %b: index, %h: index, %t: index, %d: index):
      %y = tensor.extract %log_gamma[%h] : tensor<?xf32>
      "attn.yield"(%y) : (f32) -> ()
    }) : () -> ()
  }) {heads = 2 : i64, direction = "forward", channels = "none", state = "kv", outputs = [], operandSegmentSizes = array<i32: 1, 1, 1, 0, 0, 0, 0>, resultSegmentSizes = array<i32: 1, 0, 0, 0, 0>}
    : (tensor<?x?x?x16xf32>, tensor<?x?x?x16xf32>, tensor<?x?x?x8xf32>) -> tensor<?x?x?x8xf32>
  return %o : tensor<?x?x?x8xf32>
}
