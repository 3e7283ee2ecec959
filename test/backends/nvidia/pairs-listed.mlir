// Over lists of keys a tile has 64 keys, one warpgroup: two thread blocks share a multiprocessor, each with half of its registers and memory.
// RUN: attn-translate %s --to cuda | FileCheck %s

// CHECK:       extern "C" __global__ void __launch_bounds__(256, 2) pairs(
// CHECK:       if (warpgroup == 1) {
// CHECK-NEXT:    attn::fewer_registers<24>();
// CHECK:       for (int query0 = {{.*}}; query0 += 1) {
// CHECK:       attn::more_registers<232>();
!t = tensor<?x?x?x128xf16>
!n = tensor<?xi32>
!r = tensor<?x?x?x?xi64>
func.func @pairs(%q: !t, %k: !t, %v: !t, %do: !t, %back: !n, %ranges: !r) -> (tensor<?x?x?x128xf32>, tensor<?x?x?x128xf32>) {
  %weights = "attn.pairs"() ({
    "attn.product"(%q, %k) : (!t, !t) -> ()
    "attn.product"(%do, %v) : (!t, !t) -> ()
    "attn.key_lists"(%back, %ranges, %back, %back, %ranges) {block = array<i64: 64, 64, 64>} : (!n, !r, !n, !n, !r) -> ()
    "attn.pair"() ({
    ^bb0(%x: f32, %dp: f32, %b: index, %h: index, %q_idx: index, %kv_idx: index):
      %p = math.exp %x : f32
      %ds = arith.mulf %p, %dp : f32
      "attn.yield"(%p, %ds) : (f32, f32) -> ()
    }) : () -> ()
  }) : () -> none
  %dv = "attn.key_sum"(%weights, %do) {weights = array<i64: 0>} : (none, !t) -> tensor<?x?x?x128xf32>
  %dk = "attn.key_sum"(%weights, %q) {weights = array<i64: 1>} : (none, !t) -> tensor<?x?x?x128xf32>
  return %dv, %dk : tensor<?x?x?x128xf32>, tensor<?x?x?x128xf32>
}
