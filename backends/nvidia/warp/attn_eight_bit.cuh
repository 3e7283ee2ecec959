// 8-bit elements: rounding of pairs, places in swizzled tiles of one byte an element, descriptors of such tiles.
#pragma once

namespace attn {

ATTN_DEVICE uint32_t pack_e4m3(float low, float high) {
  uint16_t pair;
  asm("cvt.rn.satfinite.e4m3x2.f32 %0, %1, %2;" : "=h"(pair) : "f"(high), "f"(low));
  return pair;
}
ATTN_DEVICE uint32_t pack_e5m2(float low, float high) {
  uint16_t pair;
  asm("cvt.rn.satfinite.e5m2x2.f32 %0, %1, %2;" : "=h"(pair) : "f"(high), "f"(low));
  return pair;
}
// A register of two pairs: the instructions that round them write its halves.
ATTN_DEVICE uint32_t join_pairs(uint32_t low, uint32_t high) {
  uint32_t both;
  asm("mov.b32 %0, {%1, %2};" : "=r"(both) : "h"((uint16_t)low), "h"((uint16_t)high));
  return both;
}
// The place of a byte in a tile whose chunks of 16 bytes are permuted in rows of 64 or 128.
template <int RowBytes> ATTN_DEVICE uint32_t swizzle(uint32_t offset) { return offset ^ ((offset >> 3) & (RowBytes - 16)); }
// A K-major operand in rows of 64 bytes, swizzled over as many.
ATTN_DEVICE uint64_t k_major_64(uint32_t address) { return descriptor_at(address, (1ull << 16) | (32ull << 32) | (2ull << 62)); }

}  // namespace attn
