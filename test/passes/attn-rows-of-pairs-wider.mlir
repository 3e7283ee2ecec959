// Sums over keys of more columns than `wider` are attentions, but for those of lists of keys, which kernels over keys follow.
// RUN: attn-opt %inputs/softmax-f16.mlir -p 'attn-differentiate{functions=bwd wrt=q only=true},attn-rows-of-pairs{wider=31},attn-simplify' | FileCheck %s
// RUN: attn-opt %inputs/softmax-f16.mlir -p 'attn-differentiate{functions=bwd wrt=q only=true},attn-rows-of-pairs{wider=32},attn-simplify' | FileCheck %s --check-prefix=PAIRS
// RUN: attn-opt %inputs/softmax-f16.mlir -p 'attn-differentiate{functions=bwd wrt=q+k only=true},attn-rows-of-pairs{wider=31},attn-simplify' | FileCheck %s --check-prefix=PAIRS
// RUN: attn-opt %s -p 'attn-rows-of-pairs{wider=4}' | FileCheck %s --check-prefix=PAIRS
// RUN: attn-opt %s -p 'attn-rows-of-pairs{all=true}' | FileCheck %s --check-prefix=PAIRS
// RUN: attn-run %inputs/softmax-f16.mlir --wrt=q -p 'attn-simplify,attn-differentiate{functions=fwd+bwd wrt=q},attn-rows-of-pairs{wider=31},attn-simplify' | FileCheck %s --check-prefix=NUMBERS

// CHECK-NOT:     attn.pairs
// CHECK:         %[[DQ:.*]] = "attn.attention"(%{{.*}}, %[[K:.*]], %[[K]]) ({
// CHECK:           "attn.mask"
// CHECK:         return %[[DQ]] : tensor<?x?x?x32xf16>
// PAIRS-NOT:     attn.attention
// PAIRS:         "attn.pairs"
// PAIRS-NOT:     attn.attention
// NUMBERS:       PASS
!q = tensor<?x?x?x8xf16>
!n = tensor<?xi32>
!r = tensor<?x?x?x?xi64>
func.func @listed(%q: !q, %k: !q, %list: !n, %ranges: !r, %back: !n, %kept: !n, %back_ranges: !r) -> tensor<?x?x?x8xf32> {
  %weights = "attn.pairs"() ({
    "attn.product"(%q, %k) : (!q, !q) -> ()
    "attn.key_lists"(%list, %ranges, %back, %kept, %back_ranges) {block = array<i64: 64, 64, 32>} : (!n, !r, !n, !n, !r) -> ()
    "attn.pair"() ({
    ^bb0(%x: f32, %b: index, %h: index, %q_idx: index, %kv_idx: index):
      "attn.yield"(%x) : (f32) -> ()
    }) : () -> ()
  }) : () -> none
  %dq = "attn.query_sum"(%weights, %k) {weights = array<i64: 0>} : (none, !q) -> tensor<?x?x?x8xf32>
  return %dq : tensor<?x?x?x8xf32>
}
