// Lists of keys of an attention and of the weights of pairs.
// RUN: attn-opt %s | attn-opt | FileCheck %s

// CHECK:       func.func @attention
// CHECK:       "attn.key_lists"(%{{.*}}, %{{.*}}, %{{.*}}, %{{.*}}, %{{.*}}) {block = array<i64: 16, 64, 32>}
func.func @attention(%q: tensor<?x?x?x8xf32>, %k: tensor<?x?x?x8xf32>, %v: tensor<?x?x?x8xf32>, %list: tensor<?xi32>, %ranges: tensor<?x?x?x?xi64>, %back: tensor<?xi32>, %kept: tensor<?xi32>, %back_ranges: tensor<?x?x?x?xi64>) -> tensor<?x?x?x8xf32> {
  %o = "attn.attention"(%q, %k, %v) ({
    "attn.key_lists"(%list, %ranges, %back, %kept, %back_ranges) {block = array<i64: 16, 64, 32>} : (tensor<?xi32>, tensor<?x?x?x?xi64>, tensor<?xi32>, tensor<?xi32>, tensor<?x?x?x?xi64>) -> ()
    "attn.row"() ({
    ^bb0(%s: f32, %b: index, %h: index, %q_idx: index):
      %total = "attn.reduce"(%s) {kind = "sum"} : (f32) -> f32
      %p = arith.divf %s, %total : f32
      "attn.yield"(%p) : (f32) -> ()
    }) : () -> ()
  }) {outputs = []} : (tensor<?x?x?x8xf32>, tensor<?x?x?x8xf32>, tensor<?x?x?x8xf32>) -> tensor<?x?x?x8xf32>
  return %o : tensor<?x?x?x8xf32>
}

// CHECK:       func.func @pairs
// CHECK:       "attn.key_lists"(%{{.*}}) {block = array<i64: 3, 1, 32>}
func.func @pairs(%q: tensor<?x?x?x8xf32>, %k: tensor<?x?x?x8xf32>, %list: tensor<?xi32>, %ranges: tensor<?x?x?x?xi64>, %back: tensor<?xi32>, %kept: tensor<?xi32>, %back_ranges: tensor<?x?x?x?xi64>) -> tensor<?x?x?x8xf32> {
  %weights = "attn.pairs"() ({
    "attn.product"(%q, %k) : (tensor<?x?x?x8xf32>, tensor<?x?x?x8xf32>) -> ()
    "attn.key_lists"(%list, %ranges, %back, %kept, %back_ranges) {block = array<i64: 3, 1, 32>} : (tensor<?xi32>, tensor<?x?x?x?xi64>, tensor<?xi32>, tensor<?xi32>, tensor<?x?x?x?xi64>) -> ()
    "attn.pair"() ({
    ^bb0(%x: f32, %b: index, %h: index, %q_idx: index, %kv_idx: index):
      "attn.yield"(%x) : (f32) -> ()
    }) : () -> ()
  }) : () -> none
  %dk = "attn.key_sum"(%weights, %q) {weights = array<i64: 0>} : (none, tensor<?x?x?x8xf32>) -> tensor<?x?x?x8xf32>
  return %dk : tensor<?x?x?x8xf32>
}
