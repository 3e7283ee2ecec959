// GLA: every channel of the keys has its own log decay; from a state to a state.
func.func @attention(%q: tensor<?x?x?x16xf32>, %k: tensor<?x?x?x16xf32>, %v: tensor<?x?x?x8xf32>, %decay: tensor<?x?x?x16xf32>, %initial_state: tensor<?x?x16x8xf32>) -> (tensor<?x?x?x8xf32>, tensor<?x?x16x8xf32>) {
  %o, %final_state = "attn.linear_attention"(%q, %k, %v, %decay, %initial_state) ({
  ^bb0:
  }) {heads = 2 : i64, direction = "forward", channels = "key", state = "kv", outputs = ["final_state"], operandSegmentSizes = array<i32: 1, 1, 1, 1, 1, 0, 0>, resultSegmentSizes = array<i32: 1, 1, 0, 0, 0>}
    : (tensor<?x?x?x16xf32>, tensor<?x?x?x16xf32>, tensor<?x?x?x8xf32>, tensor<?x?x?x16xf32>, tensor<?x?x16x8xf32>) -> (tensor<?x?x?x8xf32>, tensor<?x?x16x8xf32>)
  return %o, %final_state : tensor<?x?x?x8xf32>, tensor<?x?x16x8xf32>
}
