// A scan from the last position to the first, as the gradient of k needs it: transposed states, products with a factor, states at boundaries.
func.func @attention(%q: tensor<?x?x?x8xf32>, %k: tensor<?x?x?x8xf32>, %v: tensor<?x?x?x16xf32>, %decay: tensor<?x?x?xf32>, %initial_state: tensor<?x?x16x8xf32>, %factor: tensor<?x?x?x16xf32>) -> (tensor<?x?x?x16xf32>, tensor<?x?x16x8xf32>, tensor<?x?x?xf32>, tensor<?x?x?x8xf32>) {
  %o, %final_state, %products, %states = "attn.linear_attention"(%q, %k, %v, %decay, %initial_state, %factor) ({
  ^bb0:
  }) {heads = 1 : i64, direction = "backward", channels = "none", state = "vk", outputs = ["final_state", "products", "states"], interval = 16 : i64, operandSegmentSizes = array<i32: 1, 1, 1, 1, 1, 1, 0>, resultSegmentSizes = array<i32: 1, 1, 1, 1, 0>}
    : (tensor<?x?x?x8xf32>, tensor<?x?x?x8xf32>, tensor<?x?x?x16xf32>, tensor<?x?x?xf32>, tensor<?x?x16x8xf32>, tensor<?x?x?x16xf32>) -> (tensor<?x?x?x16xf32>, tensor<?x?x16x8xf32>, tensor<?x?x?xf32>, tensor<?x?x?x8xf32>)
  return %o, %final_state, %products, %states : tensor<?x?x?x16xf32>, tensor<?x?x16x8xf32>, tensor<?x?x?xf32>, tensor<?x?x?x8xf32>
}
