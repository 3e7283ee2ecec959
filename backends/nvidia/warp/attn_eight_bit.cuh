// 8-bit elements: rounding, products of single warps, places in swizzled tiles of one byte an element.
#pragma once

namespace attn {

// Four numbers in a register: of one asm, the second instruction adds its pair to that of the first.
ATTN_DEVICE uint32_t pack_e4m3(float a, float b, float c, float d) {
  uint32_t four;
  asm("{\n.reg .b16 low, high;\ncvt.rn.satfinite.e4m3x2.f32 low, %2, %1;\ncvt.rn.satfinite.e4m3x2.f32 high, %4, %3;\n"
      "mov.b32 %0, {low, high};\n}" : "=r"(four) : "f"(a), "f"(b), "f"(c), "f"(d));
  return four;
}
ATTN_DEVICE uint32_t pack_e5m2(float a, float b, float c, float d) {
  uint32_t four;
  asm("{\n.reg .b16 low, high;\ncvt.rn.satfinite.e5m2x2.f32 low, %2, %1;\ncvt.rn.satfinite.e5m2x2.f32 high, %4, %3;\n"
      "mov.b32 %0, {low, high};\n}" : "=r"(four) : "f"(a), "f"(b), "f"(c), "f"(d));
  return four;
}
// Beside blocks of 192 keys, what several steps of such a product need at once spills.
struct F8E4M3FN {
  static constexpr int unrolled = 1;
};
struct F8E5M2 {
  static constexpr int unrolled = 1;
};
// sum += a b for 16 x 32 elements of a in registers and 32 x 8 of b: pairs of bytes are where 16-bit elements are.
ATTN_DEVICE void mma_16816(F8E4M3FN, float *sum, const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
  asm("mma.sync.aligned.m16n8k32.row.col.f32.e4m3.e4m3.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
      : "+f"(sum[0]), "+f"(sum[1]), "+f"(sum[2]), "+f"(sum[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}
ATTN_DEVICE void mma_16816(F8E5M2, float *sum, const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
  asm("mma.sync.aligned.m16n8k32.row.col.f32.e5m2.e5m2.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
      : "+f"(sum[0]), "+f"(sum[1]), "+f"(sum[2]), "+f"(sum[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}
// The place of a byte in a tile whose chunks of 16 bytes are permuted in rows of 32, 64 or 128.
template <int RowBytes> ATTN_DEVICE uint32_t swizzle(uint32_t offset) { return offset ^ ((offset >> 3) & (RowBytes - 16)); }

}  // namespace attn
