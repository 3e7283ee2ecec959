#pragma once
namespace attn {

// Rows of keys that lie apart from each other, brought by the warps of the producer, 8 lanes of which copy 128 bytes of a row: copies of single
// rows by TMA take as long as those of 16. The chunks of a row are permuted as TMA's 128-byte swizzle does.

constexpr int kGatherers = 4; // warps

// 16 bytes, or zeros.
ATTN_DEVICE void gather_chunk(uint32_t to, const void *from, bool there) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(to), "l"(from), "r"(there ? 16 : 0) : "memory");
}
// Where a row is: its page, negative if there is none, and its place in it.
ATTN_DEVICE void gather_tell(uint32_t message, int row, int page, int place) {
  asm volatile("st.shared.v2.s32 [%0], {%1, %2};" ::"r"(message + row * 8), "r"(page), "r"(place) : "memory");
}
// The share of one warp in the rows that a message tells of; each lane arrives when its copies are done.
template <int Rows, int Columns, typename Element>
ATTN_DEVICE void gather_rows(const Element *from, long long page_stride, long long row_stride, uint32_t message, uint32_t to, uint32_t barrier,
                             int gatherer, int lane) {
  const int chunk = lane % 8;
#pragma unroll
  for (int i = 0; i < Rows / (4 * kGatherers); ++i) {
    const int row = (i * kGatherers + gatherer) * 4 + lane / 8;
    int page, place;
    asm volatile("ld.shared.v2.s32 {%0, %1}, [%2];" : "=r"(page), "=r"(place) : "r"(message + row * 8) : "memory");
    const Element *at = from + (page < 0 ? 0 : page * page_stride + place * row_stride) + chunk * 8;
    const uint32_t address = to + row * 128 + ((chunk ^ (row & 7)) << 4);
#pragma unroll
    for (int panel = 0; panel < (Columns + 63) / 64; ++panel) {
      const bool there = page >= 0 && panel * 64 + chunk * 8 < Columns;
      gather_chunk(address + panel * Rows * 128, there ? at + panel * 64 : from, there);
    }
  }
  asm volatile("cp.async.mbarrier.arrive.noinc.shared::cta.b64 [%0];" ::"r"(barrier) : "memory");
}

// ---- rows of 8 bits, widened to 16 ------------------------------------------------------------------------------------------------------

struct E4M3 {};
struct E5M2 {};
// Two numbers of 8 bits as two of f16, which has them all.
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
// As `gather_rows`, of a tensor of 8 bits, which has at least one row. A lane has all of its loads, or eight, under way before it stores what
// they brought: so rows that there are not are read, too, at another place, and zeros are stored.
template <int Rows, int Columns, typename Half, typename Byte>
ATTN_DEVICE void widen_rows(const unsigned char *from, long long page_stride, long long row_stride, uint32_t message, uint32_t to,
                            uint32_t barrier, int gatherer, int lane) {
  constexpr int kParts = Columns / 16, kCopies = Rows * kParts, kThreads = 32 * kGatherers, kRounds = (kCopies + kThreads - 1) / kThreads;
  constexpr int kAhead = kRounds < 8 ? kRounds : 8;
#pragma unroll 1
  for (int begin = 32 * gatherer + lane; begin < kCopies; begin += kThreads * kAhead) {
    uint32_t bytes[kAhead][4], there = 0;
#pragma unroll
    for (int i = 0; i < kAhead; ++i) {
      const int n = min(begin + kThreads * i, kCopies - 1);
      int page, place;
      asm volatile("ld.shared.v2.s32 {%0, %1}, [%2];" : "=r"(page), "=r"(place) : "r"(message + n / kParts * 8) : "memory");
      const unsigned char *at = from + n % kParts * 16;
      if (page >= 0) at += page * page_stride + place * row_stride, there |= 1u << i;
      asm volatile("ld.global.nc.v4.u32 {%0, %1, %2, %3}, [%4];"
                   : "=r"(bytes[i][0]), "=r"(bytes[i][1]), "=r"(bytes[i][2]), "=r"(bytes[i][3]) : "l"(at));
    }
#pragma unroll
    for (int i = 0; i < kAhead; ++i) {
      const int n = begin + kThreads * i, row = n / kParts, first = n % kParts * 16;
#pragma unroll
      for (int word = 0; word < 4; ++word) bytes[i][word] = there >> i & 1 ? bytes[i][word] : 0;
      if (n < kCopies) store_widened<Half, Byte>(to + first / 64 * (Rows * 128) + row * 128, row, first, bytes[i]);
    }
  }
  fence_proxy_async(); // wgmma reads what was written
  barrier_arrive(barrier);
}

} // namespace attn
