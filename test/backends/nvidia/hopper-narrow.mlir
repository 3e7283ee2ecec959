// Narrow heads on Hopper: whole blocks keep the old maximum as long as no weight gets too large, and a column of ones beside the values
// sums the weights.
// RUN: attn-opt %s -p nvidia-kernel | FileCheck %s --check-prefix=PLAN
// RUN: attn-translate %s --to cuda | FileCheck %s
// RUN: attn-run %s -p nvidia-kernel

!t = tensor<?x?x?x64xf16>

// PLAN:      flow = "flat"
// PLAN-SAME: lazy_rescale = 1 : i64
// PLAN-SAME: sums = "product"

// CHECK:     store_shared_int4({{.*}}, block, head, batch, 1);
// CHECK:     attn::store_shared_int(shared + kOnes + 4 * n, 0x3c003c00);
// CHECK:     for (;; ++iteration) {
// CHECK:       attn::mn_major_beside({{.*}}, shared + kOnes);
// CHECK-NEXT:  attn::wgmma_m64n72k16_rs_f16_tb(o{{.*}}, packed[0]
// CHECK:       const bool exact = last || kind & 65536;
// CHECK:       if (exact) {
// CHECK:         attn::largest_in_rows(
// CHECK-NOT:     row_sum
// CHECK:       else {
// CHECK-NOT:     largest_in_rows
// CHECK:         exp2f(
// CHECK-NOT:     largest_in_rows
// CHECK:         attn::wgmma_wait<0>();
// CHECK:         packed[c] = attn::pack_f16(
// CHECK:         if (attn::any_reaches<0x7400>(packed)) {
// CHECK:           attn::scores_of_warp<64, false>(s,
// CHECK:           attn::largest_in_rows(s,
// CHECK:           attn::rescale(
// CHECK:       attn::warp_arrive(shared + kK{{.*}}Free
func.func @attention(%q: !t, %k: !t, %v: !t) -> !t attributes {tile.choices = {emitter = "hopper"}} {
  %o = "attn.attention"(%q, %k, %v) ({
    "attn.mask"() ({
    ^bb0(%b: index, %h: index, %q_idx: index, %kv_idx: index):
      %present = arith.cmpi sge, %q_idx, %kv_idx : index
      "attn.yield"(%present) : (i1) -> ()
    }) : () -> ()
    "attn.row"() ({
    ^bb0(%s: f32, %b: index, %h: index, %q_idx: index):
      %m = "attn.reduce"(%s) {kind = "max"} : (f32) -> f32
      %d = arith.subf %s, %m : f32
      %e = math.exp %d : f32
      %l = "attn.reduce"(%e) {kind = "sum"} : (f32) -> f32
      %p = arith.divf %e, %l : f32
      "attn.yield"(%p) : (f32) -> ()
    }) : () -> ()
  }) {outputs = []} : (!t, !t, !t) -> !t
  return %o : !t
}
