// Targets whose loops run over whole blocks take a mask in place of lists.
// RUN: attn-opt %s -p 'attn-tile{whole=true}' --verify-diagnostics

func.func @pairs(%q: tensor<?x?x?x8xf32>, %k: tensor<?x?x?x8xf32>, %list: tensor<?xi32>, %ranges: tensor<?x?x?x?xi64>) -> tensor<?x?x?x8xf32> {
  // expected-error @below {{attn-tile-pairs: 'attn.key_lists' are for loops without `whole`; give a mask that reads a table instead}}
  %weights = "attn.pairs"() ({
    "attn.product"(%q, %k) : (tensor<?x?x?x8xf32>, tensor<?x?x?x8xf32>) -> ()
    "attn.key_lists"(%list, %ranges, %list, %list, %ranges) {block = array<i64: 3, 1, 32>} : (tensor<?xi32>, tensor<?x?x?x?xi64>, tensor<?xi32>, tensor<?xi32>, tensor<?x?x?x?xi64>) -> ()
    "attn.pair"() ({
    ^bb0(%x: f32, %b: index, %h: index, %q_idx: index, %kv_idx: index):
      "attn.yield"(%x) : (f32) -> ()
    }) : () -> ()
  }) : () -> none
  %dk = "attn.key_sum"(%weights, %q) {weights = array<i64: 0>} : (none, tensor<?x?x?x8xf32>) -> tensor<?x?x?x8xf32>
  return %dk : tensor<?x?x?x8xf32>
}
