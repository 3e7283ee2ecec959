// A kernel over rows for AMD GPUs: what of a step goes where, and the next block on its way while this one is multiplied.
// RUN: attn-opt %s -p amd-kernel | FileCheck %s --check-prefix=PLAN
// RUN: attn-translate %s --to hip | FileCheck %s
// RUN: attn-run %s -p amd-kernel

!t = tensor<?x?x?x64xf16>

// PLAN-LABEL: func.func @attention(
// PLAN-SAME:    tile.kernel = {block_kv = 128 : i64, block_q = 128 : i64}, tile.scale_log2 = 12 : i64
// PLAN-SAME:    tile.schedule = {arch = "gfx90a", emitter = "mfma", in_turn = 0 : i64, reverse = 1 : i64, waves = 2 : i64}

// CHECK:       #include "attn_amd.h"
// CHECK-NOT:   __CUDA_ARCH__
// CHECK-LABEL: ATTN_KERNEL(256, 2) attention(
// CHECK-NEXT:    __half *__restrict__ q,
// CHECK:         __shared__ __attribute__((aligned(16))) unsigned char memory[32768];
// Blocks of rows with most keys first.
// CHECK-NEXT:    const int block = blocks - 1 -

// Queries stay in registers.
// CHECK:         attn::Bits4 [[Q:q_[0-9]+]][4];
// CHECK:         attn::load_eight<8, 64, 64>(rows,

// Whole blocks: keys as they are, values transposed; then the next block is asked for.
// CHECK:         const auto fetch = [&](int next)
// CHECK:         fetch(
// CHECK:         for (int at = begin; at < end; at += 128) {
// CHECK-NEXT:      attn::barrier();
// CHECK:           attn::keep_eight<8>(memory + 0,
// CHECK:           attn::keep_transposed<16>(memory + 16384,
// CHECK:           attn::barrier();
// CHECK-NEXT:      fetch(at + 128 < end ?
// CHECK:           attn::product_f16<4, 4, 8>(s, memory + 0, [[Q]]);
// CHECK-NOT:       inside
// The reference is 2^12 below the maximum: the hardware takes small f16 weights as zeros.
// CHECK:           row_max - 8.317766f
// CHECK:           const attn::Float2 [[WEIGHT:weight[_0-9]*]] = exp2f(fmaf(attn::pair_of(s[n], c), 1.442695f,
// CHECK:           row_sum += [[WEIGHT]];
// CHECK:           attn::rescale(sum,
// CHECK-NEXT:      attn::product_f16<2, 8, 16>(sum, memory + 16384, weight);

// Blocks that the mask or the end of the sequence cuts.
// CHECK:         for (int at_2 = begin_2; at_2 < end_2; at_2 += 128) {
// CHECK:           const bool inside

// CHECK:         attn::store_row<8, 64>((unsigned short *)&o[
func.func @attention(%q: !t, %k: !t, %v: !t) -> (!t, tensor<?x?x?xf32>) {
  %o, %lse = "attn.attention"(%q, %k, %v) ({
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
      %log_l = math.log %l : f32
      %lse = arith.addf %m, %log_l : f32
      "attn.yield"(%p, %lse) : (f32, f32) -> ()
    }) : () -> ()
  }) {outputs = ["lse"]} : (!t, !t, !t) -> (!t, tensor<?x?x?xf32>)
  return %o, %lse : !t, tensor<?x?x?xf32>
}
