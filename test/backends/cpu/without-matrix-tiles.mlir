// RUN: env ATTN_MLIR_CPU=amx attn-translate %s --to cpu-kernel | FileCheck %s
// RUN: env ATTN_MLIR_CPU=avx512 attn-translate %s --to cpu-kernel | FileCheck %s --check-prefix=ELSEWHERE

// A machine with matrix tiles says why a kernel does not use them: 40 columns are not whole tiles.
// CHECK-LABEL: func.func @attention(
// CHECK-SAME:    tile.without_tiles = "matrix tiles take columns in whole 32s: there are 40 of which a product sums up"
// CHECK-NOT:     tiles}
// CHECK:         layout = ["row_pairs"]

// ELSEWHERE-LABEL: func.func @attention(
// ELSEWHERE-NOT:     without_tiles
// ELSEWHERE:         layout = ["row_pairs"]
func.func @attention(%q: tensor<?x?x?x40xbf16>, %k: tensor<?x?x?x40xbf16>, %v: tensor<?x?x?x40xbf16>) -> tensor<?x?x?x40xbf16> {
  %o = "attn.attention"(%q, %k, %v) ({
    "attn.score"() ({
    ^bb0(%score: f32, %b: index, %h: index, %q_idx: index, %kv_idx: index):
      "attn.yield"(%score) : (f32) -> ()
    }) : () -> ()
    "attn.row"() ({
    ^bb0(%s: f32, %b: index, %h: index, %q_idx: index):
      %w = math.exp %s : f32
      "attn.yield"(%w) : (f32) -> ()
    }) : () -> ()
  }) {outputs = []} : (tensor<?x?x?x40xbf16>, tensor<?x?x?x40xbf16>, tensor<?x?x?x40xbf16>) -> tensor<?x?x?x40xbf16>
  return %o : tensor<?x?x?x40xbf16>
}
