// What a backward pass of the delta rule goes through: another key is removed than is written, and is read behind the first writer.
func.func @attention(%q: tensor<?x?x?x16xf32>, %k: tensor<?x?x?x16xf32>, %v: tensor<?x?x?x8xf32>, %decay: tensor<?x?x?xf32>, %initial_state: tensor<?x?x16x8xf32>, %erase_key: tensor<?x?x?x16xf32>, %removed: tensor<?x?x?x16xf32>) -> (tensor<?x?x?x8xf32>, tensor<?x?x16x8xf32>) {
  %o, %final_state = "attn.linear_attention"(%q, %k, %v, %decay, %initial_state) ({
    "attn.erase"(%erase_key, %removed) ({
    ^bb0(%x: f32, %b: index, %h: index, %t: index, %d: index):
      "attn.yield"(%x) : (f32) -> ()
    }) {reads = "written"} : (tensor<?x?x?x16xf32>, tensor<?x?x?x16xf32>) -> ()
  }) {heads = 2 : i64, direction = "backward", channels = "none", state = "kv", output = "written", outputs = ["final_state"], operandSegmentSizes = array<i32: 1, 1, 1, 1, 1, 0, 0>, resultSegmentSizes = array<i32: 1, 1, 0, 0, 0>}
    : (tensor<?x?x?x16xf32>, tensor<?x?x?x16xf32>, tensor<?x?x?x8xf32>, tensor<?x?x?xf32>, tensor<?x?x16x8xf32>) -> (tensor<?x?x?x8xf32>, tensor<?x?x16x8xf32>)
  return %o, %final_state : tensor<?x?x?x8xf32>, tensor<?x?x16x8xf32>
}
