// Loops over whole blocks go along lists of blocks of many queries and several keys; others are a mask there.
// RUN: attn-opt %s -p 'attn-online-rewrite,attn-tile{whole=true}' --split-input-file --verify-diagnostics

!t = tensor<?x?x?x8xf32>
func.func @pairs(%q: !t, %k: !t, %list: tensor<?xi32>, %ranges: tensor<?x?x?x?xi64>) -> !t {
  // expected-error @below {{attn-tile-pairs: with `whole`, 'attn.key_lists' have blocks of a multiple of 16 queries, and of several keys; give a mask that reads a table instead}}
  %weights = "attn.pairs"() ({
    "attn.product"(%q, %k) : (!t, !t) -> ()
    "attn.key_lists"(%list, %ranges, %list, %list, %ranges) {block = array<i64: 16, 1, 32>} : (tensor<?xi32>, tensor<?x?x?x?xi64>, tensor<?xi32>, tensor<?xi32>, tensor<?x?x?x?xi64>) -> ()
    "attn.pair"() ({
    ^bb0(%x: f32, %b: index, %h: index, %q_idx: index, %kv_idx: index):
      "attn.yield"(%x) : (f32) -> ()
    }) : () -> ()
  }) : () -> none
  %dk = "attn.key_sum"(%weights, %q) {weights = array<i64: 0>} : (none, !t) -> !t
  return %dk : !t
}

// -----

!t = tensor<?x?x?x8xf32>
func.func @rows(%q: !t, %k: !t, %list: tensor<?xi32>, %ranges: tensor<?x?x?x?xi64>) -> !t {
  // expected-error @below {{attn-tile-rows: 'attn.key_lists' are for loops without `whole`; give a mask that reads a table instead}}
  %o = "attn.attention"(%q, %k, %k) ({
    "attn.key_lists"(%list, %ranges, %list, %list, %ranges) {block = array<i64: 16, 64, 64>} : (tensor<?xi32>, tensor<?x?x?x?xi64>, tensor<?xi32>, tensor<?xi32>, tensor<?x?x?x?xi64>) -> ()
    "attn.row"() ({
    ^bb0(%s: f32, %b: index, %h: index, %q_idx: index):
      "attn.yield"(%s) : (f32) -> ()
    }) : () -> ()
  }) {outputs = []} : (!t, !t, !t) -> !t
  return %o : !t
}
