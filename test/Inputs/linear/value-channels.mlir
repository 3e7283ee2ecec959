// A scan with a decay for every channel of the values, as the gradient of q needs it where keys have such decays.
func.func @attention(%q: tensor<?x?x?x8xf32>, %k: tensor<?x?x?x8xf32>, %v: tensor<?x?x?x16xf32>, %decay: tensor<?x?x?x16xf32>, %initial_state: tensor<?x?x16x8xf32>, %factor: tensor<?x?x?x16xf32>) -> (tensor<?x?x?x16xf32>, tensor<?x?x?x16xf32>, tensor<?x?x?x8xf32>) {
  %o, %products, %states = "attn.linear_attention"(%q, %k, %v, %decay, %initial_state, %factor) ({
  ^bb0:
  }) {heads = 0 : i64, direction = "forward", channels = "value", state = "vk", outputs = ["products", "states"], interval = 16 : i64, operandSegmentSizes = array<i32: 1, 1, 1, 1, 1, 1, 0>, resultSegmentSizes = array<i32: 1, 0, 1, 1, 0>}
    : (tensor<?x?x?x8xf32>, tensor<?x?x?x8xf32>, tensor<?x?x?x16xf32>, tensor<?x?x?x16xf32>, tensor<?x?x16x8xf32>, tensor<?x?x?x16xf32>) -> (tensor<?x?x?x16xf32>, tensor<?x?x?x16xf32>, tensor<?x?x?x8xf32>)
  return %o, %products, %states : tensor<?x?x?x16xf32>, tensor<?x?x?x16xf32>, tensor<?x?x?x8xf32>
}
