// RUN: attn-opt %s -p 'attn-tile{block-q=16 block-kv=32},canonicalize,cse,tile-schedule{target=cpu}' --split-input-file | FileCheck %s

// Pairs: keys lie along lanes for products, and are read in place as rows where sums over keys need them; so are queries. The
// weights take the buffer of the scores.

!t = tensor<?x?x?x8xf32>

// CHECK-LABEL: func.func @f32(
// CHECK:         "tile.load"({{.*}}) {buffer = [0], layout = ["lanes"]} {{.*}} -> tensor<16x8xf32>
// CHECK:         "tile.load"({{.*}}) {buffer = [-1], layout = ["memory"]} {{.*}} -> tensor<?x8xf32>
// CHECK:         "tile.fill"({{.*}}) {{{.*}}buffer = [1], layout = ["lanes"]}
// CHECK:         "tile.load"({{.*}}) {buffer = [-1], layout = ["memory"]} {{.*}} -> tensor<?x8xf32>
// CHECK:         "tile.dot"({{.*}}) {buffer = [2], layout = ["lanes"]
// CHECK:         buffer = [2], layout = ["lanes"], reductions = []
// CHECK:         "tile.dot_add"({{.*}}) {buffer = [1], layout = ["lanes"]
func.func @f32(%q: !t, %k: !t) -> (!t, !t) {
  %w = "attn.pairs"() ({
    "attn.product"(%q, %k) : (!t, !t) -> ()
    "attn.pair"() ({
    ^bb0(%x: f32, %b: index, %h: index, %q_idx: index, %kv_idx: index):
      "attn.yield"(%x) : (f32) -> ()
    }) : () -> ()
  }) : () -> none
  %dq = "attn.query_sum"(%w, %k) {weights = array<i64: 0>} : (none, !t) -> !t
  %dk = "attn.key_sum"(%w, %q) {weights = array<i64: 0>} : (none, !t) -> !t
  return %dq, %dk : !t, !t
}

// -----

// Rows of another type than the sums are converted into buffers.

!t = tensor<?x?x?x8xf16>

// CHECK-LABEL: func.func @f16(
// CHECK:         "tile.load"({{.*}}) {buffer = [0], layout = ["lanes"]} {{.*}} -> tensor<16x8xf16>
// CHECK:         "tile.load"({{.*}}) {buffer = [1], layout = ["rows"]} {{.*}} -> tensor<?x8xf16>
func.func @f16(%q: !t, %k: !t) -> tensor<?x?x?x8xf32> {
  %w = "attn.pairs"() ({
    "attn.product"(%q, %k) : (!t, !t) -> ()
    "attn.pair"() ({
    ^bb0(%x: f32, %b: index, %h: index, %q_idx: index, %kv_idx: index):
      "attn.yield"(%x) : (f32) -> ()
    }) : () -> ()
  }) : () -> none
  %dq = "attn.query_sum"(%w, %k) {weights = array<i64: 0>} : (none, !t) -> tensor<?x?x?x8xf32>
  return %dq : tensor<?x?x?x8xf32>
}
