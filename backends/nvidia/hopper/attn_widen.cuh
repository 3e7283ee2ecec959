#pragma once
namespace attn {

// Tiles of 8-bit elements that TMA has brought, widened to 16 bits on their way to the tiles that wgmma reads: by warps of the producer, whose
// threads take 16 bytes at a time. f16 has all numbers of both types, and bf16 has those of f16 that come of them.

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
// Four words of a row as sixteen numbers, in two chunks, which have places beside each other, if they are `wanted`.
template <typename Half, typename Byte> ATTN_DEVICE void store_widened(uint32_t at, const uint32_t (&words)[4], bool wanted) {
  uint32_t wide[8];
#pragma unroll
  for (int i = 0; i < 8; ++i)
    wide[i] = half_pair(widened_pair(static_cast<unsigned short>(words[i / 2] >> 16 * (i % 2)), Byte()), Half());
#pragma unroll
  for (int part = 0; part < 2; ++part)
    // A predicate, so that all rounds of a thread stay one piece of code.
    asm volatile("{\n.reg .pred p;\nsetp.ne.s32 p, %5, 0;\n@p st.shared.v4.b32 [%0], {%1, %2, %3, %4};\n}" ::"r"(at ^ (part << 4)),
                 "r"(wide[4 * part]), "r"(wide[4 * part + 1]), "r"(wide[4 * part + 2]), "r"(wide[4 * part + 3]), "r"(int(wanted))
                 : "memory");
}
// What warp `warp` of `Warps` does of a tile. `from`: boxes of `Width` bytes of all rows, one after another, which hold `Columns`; `to`: atoms of
// 64 columns, swizzled as TMA would. Columns that there are not become zeros, with `Cut` rows from `there` on, too, whatever lies there.
// A warp takes 8 rows of an atom at a time: so the place of a lane in them is always the same, and eight lanes that store share no banks.
template <int Rows, int Columns, int Width, int Warps, int Ahead, bool Cut, typename Half, typename Byte>
ATTN_DEVICE void widen_tile(uint32_t from, uint32_t to, int there, int warp, int lane) {
  constexpr int kAtoms = (Columns + 63) / 64, kUnits = kAtoms * (Rows / 8), kOfBox = Width >= Columns ? kAtoms : Width / 64;
  const int row = lane / 4, first = lane % 4 * 16;
  from += row * Width + first;
  to += row * 128 + ((lane % 4 * 2 ^ row) << 4);
#pragma unroll 1
  for (int begin = warp; begin < kUnits; begin += Warps * Ahead) {
    uint32_t words[Ahead][4];
#pragma unroll
    for (int i = 0; i < Ahead; ++i) {
      const unsigned unit = min(begin + Warps * i, kUnits - 1), atom = unit % kAtoms, rows = unit / kAtoms * 8;
      const uint32_t at = from + rows * Width + atom / kOfBox * (Rows * Width) + atom % kOfBox * 64;
      words[i][0] = words[i][1] = words[i][2] = words[i][3] = 0;
      if ((!Cut || int(rows) + row < there) && (Columns % 64 == 0 || int(atom) * 64 + first < Columns))
        asm volatile("ld.shared.v4.b32 {%0, %1, %2, %3}, [%4];"
                     : "=r"(words[i][0]), "=r"(words[i][1]), "=r"(words[i][2]), "=r"(words[i][3]) : "r"(at) : "memory");
    }
#pragma unroll
    for (int i = 0; i < Ahead; ++i) {
      const unsigned unit = begin + Warps * i, atom = unit % kAtoms, rows = unit / kAtoms * 8;
      store_widened<Half, Byte>(to + atom * (Rows * 128) + rows * 128, words[i], unit < kUnits);
    }
  }
}

} // namespace attn
