// What makes dk of a delta rule: two writers of one state, the second of which a position does not read of itself.
func.func @attention(%q: tensor<?x?x?x16xf32>, %k: tensor<?x?x?x16xf32>, %v: tensor<?x?x?x8xf32>, %decay: tensor<?x?x?x8xf32>, %initial_state: tensor<?x?x8x16xf32>, %written: tensor<?x?x?x16xf32>, %value: tensor<?x?x?x8xf32>) -> (tensor<?x?x?x8xf32>, tensor<?x?x8x16xf32>) {
  %o, %final_state = "attn.linear_attention"(%q, %k, %v, %decay, %initial_state) ({
    "attn.write"(%written, %value) : (tensor<?x?x?x16xf32>, tensor<?x?x?x8xf32>) -> ()
  }) {heads = 2 : i64, direction = "backward", channels = "value", state = "vk", output = "written", outputs = ["final_state"], operandSegmentSizes = array<i32: 1, 1, 1, 1, 1, 0, 0>, resultSegmentSizes = array<i32: 1, 1, 0, 0, 0>}
    : (tensor<?x?x?x16xf32>, tensor<?x?x?x16xf32>, tensor<?x?x?x8xf32>, tensor<?x?x?x8xf32>, tensor<?x?x8x16xf32>) -> (tensor<?x?x?x8xf32>, tensor<?x?x8x16xf32>)
  return %o, %final_state : tensor<?x?x?x8xf32>, tensor<?x?x8x16xf32>
}
