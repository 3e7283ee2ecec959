#pragma once
namespace attn {

// Tiles of 8-bit elements that TMA has brought, widened to 16 bits on their way to the tiles that wgmma reads: by warps of the producer, whose
// threads take 16 bytes at a time. f16 has all numbers of both types, and bf16 has those of f16 that come of them.

constexpr int kWideners = 3; // warps

struct E4M3 {};
struct E5M2 {};
// Two numbers of 8 bits as two of f16.
ATTN_DEVICE uint32_t widened_pair(unsigned short pair, E4M3) {
  uint32_t wide;
  asm("cvt.rn.f16x2.e4m3x2 %0, %1;" : "=r"(wide) : "h"(pair));
  return wide;
}
ATTN_DEVICE uint32_t widened_pair(unsigned short pair, E5M2) {
  uint32_t wide;
  asm("cvt.rn.f16x2.e5m2x2 %0, %1;" : "=r"(wide) : "h"(pair));
  return wide;
}
ATTN_DEVICE uint32_t half_pair(uint32_t wide, __half) { return wide; }
ATTN_DEVICE uint32_t half_pair(uint32_t wide, __nv_bfloat16) {
  const float2 pair = __half22float2(reinterpret_cast<const __half2 &>(wide));
  return pack_bf16(pair.x, pair.y);
}
// Sixteen numbers to two chunks of a row; lanes of odd panels write the second one first, so that eight lanes share no banks.
template <typename Half, typename Byte> ATTN_DEVICE void store_widened(uint32_t row_at, int row, int first, const uint32_t (&words)[4]) {
  uint32_t wide[8];
#pragma unroll
  for (int i = 0; i < 8; ++i)
    wide[i] = half_pair(widened_pair(static_cast<unsigned short>(words[i / 2] >> 16 * (i % 2)), Byte()), Half());
  const bool odd = first / 64 % 2;
#pragma unroll
  for (int part = 0; part < 2; ++part) {
    const bool second = odd != (part == 1);
    const uint32_t chunk = first % 64 / 8 + second;
    asm volatile("st.shared.v4.b32 [%0], {%1, %2, %3, %4};" ::"r"(row_at + ((chunk ^ (row & 7)) << 4)), "r"(second ? wide[4] : wide[0]),
                 "r"(second ? wide[5] : wide[1]), "r"(second ? wide[6] : wide[2]), "r"(second ? wide[7] : wide[3])
                 : "memory");
  }
}
// The share of thread `thread` of all wideners. `from`: boxes of `Width` bytes of all rows, one after another, which hold `Columns`; `to`: panels
// of 64 columns, swizzled as TMA would. `kAhead` loads are under way. Rows from `there` on, and columns that there are not, become zeros, whatever lies there.
template <int Rows, int Columns, int Width, int kAhead, typename Half, typename Byte>
ATTN_DEVICE void widen_tile(uint32_t from, uint32_t to, int there, int thread) {
  constexpr int kParts = (Columns + 63) / 64 * 4, kAll = Rows * kParts, kThreads = 32 * kWideners;
#pragma unroll 1
  for (int begin = thread; begin < kAll; begin += kThreads * kAhead) {
    uint32_t bytes[kAhead][4];
#pragma unroll
    for (int i = 0; i < kAhead; ++i) {
      const int n = begin + kThreads * i, row = n / kParts, first = n % kParts * 16;
      const uint32_t at = from + first / Width * (Rows * Width) + row * Width + first % Width;
      bytes[i][0] = bytes[i][1] = bytes[i][2] = bytes[i][3] = 0;
      if (n < kAll && row < there && first < (Columns + 15) / 16 * 16)
        asm volatile("ld.shared.v4.b32 {%0, %1, %2, %3}, [%4];"
                     : "=r"(bytes[i][0]), "=r"(bytes[i][1]), "=r"(bytes[i][2]), "=r"(bytes[i][3]) : "r"(at) : "memory");
    }
#pragma unroll
    for (int i = 0; i < kAhead; ++i) {
      const int n = begin + kThreads * i, row = n / kParts, first = n % kParts * 16;
      if (n < kAll) store_widened<Half, Byte>(to + first / 64 * (Rows * 128) + row * 128, row, first, bytes[i]);
    }
  }
}

} // namespace attn
