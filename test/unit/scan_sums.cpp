// Products in double precision, rounded once for each instruction.
#include "scan_sums.h"

#include <string.h>

template <class To, class From> static To bits_of(From x) {
  static_assert(sizeof(To) == sizeof(From));
  To y;
  memcpy(&y, &x, sizeof y);
  return y;
}
static float number(bool f16, unsigned short bits) { return f16 ? (float)bits_of<_Float16>(bits) : bits_of<float>((uint32_t)bits << 16); }
static float half_of(bool f16, uint32_t both, int which) { return number(f16, (unsigned short)(both >> 16 * which)); }

void mma_sums(bool f16, float *sum, const uint32_t (*slots)[6], int lane) {
  for (int e = 0; e < 4; ++e) {
    double total = sum[e];
    for (int k = 0; k < 16; ++k) {
      const int from = k % 8 / 2, far = k / 8;
      const float x = half_of(f16, slots[lane / 4 * 4 + from][2 * far + e / 2], k % 2);
      const float y = half_of(f16, slots[(2 * (lane % 4) + e % 2) * 4 + from][4 + far], k % 2);
      total += (double)x * y;
    }
    sum[e] = (float)total;
  }
}

static float factor_at(bool f16, const unsigned char *memory, uint64_t from, bool turned, int k, int n) {
  const uint32_t atom = (uint32_t)(from >> 32 & 0xffff) * 16, stride = (uint32_t)(from >> 48 & 0xfff) * 512, swizzle = (uint32_t)(from >> 60);
  const int row = turned ? k : n, column = turned ? n : k, row_bytes = 128 / swizzle;
  uint32_t at = (uint32_t)from + row / 8 * stride + row % 8 * row_bytes + column % 64 * 2 + (turned ? column / 64 * atom : 0);
  at ^= (at >> 7 & (8 / swizzle - 1)) << 4;
  return number(f16, *(const unsigned short *)(memory + at));
}

void wgmma_sums(
    bool f16, bool turned, int accumulate, float *d, int count, const uint32_t (*slots)[4], int lane, const unsigned char *memory, uint64_t b) {
  double rows[2][16];
  for (int r = 0; r < 2; ++r)
    for (int k = 0; k < 16; ++k) rows[r][k] = half_of(f16, slots[lane / 4 * 4 + k % 8 / 2][2 * (k / 8) + r], k % 2);
  for (int e = 0; e < count; ++e) {
    double total = accumulate ? d[e] : 0.0;
    for (int k = 0; k < 16; ++k) total += rows[e / 2 % 2][k] * factor_at(f16, memory, b, turned, k, e / 4 * 8 + 2 * (lane % 4) + e % 2);
    d[e] = (float)total;
  }
}

void wgmma_shared_sums(bool f16, int accumulate, float *d, int count, int warp, int lane, const unsigned char *memory, uint64_t a, uint64_t b) {
  for (int e = 0; e < count; ++e) {
    const int row = 16 * warp + 8 * (e / 2 % 2) + lane / 4, column = e / 4 * 8 + 2 * (lane % 4) + e % 2;
    double total = accumulate ? d[e] : 0.0;
    for (int k = 0; k < 16; ++k) total += (double)factor_at(f16, memory, a, false, k, row) * factor_at(f16, memory, b, false, k, column);
    d[e] = (float)total;
  }
}
