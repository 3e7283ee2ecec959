#pragma once
namespace attn {

// Sums along the diagonals of the weights that a warpgroup has left in shared memory: 64 rows of keys, `Queries` columns in swizzle atoms of 64,
// rows of 128 bytes whose chunks of 16 are permuted. A table of differences gets one addition a diagonal, not one a pair.

ATTN_DEVICE float band_element(uint32_t from, __half) {
  unsigned short bits;
  asm volatile("ld.shared.b16 %0, [%1];" : "=h"(bits) : "r"(from) : "memory");
  return __half2float(reinterpret_cast<const __half &>(bits));
}
ATTN_DEVICE float band_element(uint32_t from, __nv_bfloat16) {
  unsigned short bits;
  asm volatile("ld.shared.b16 %0, [%1];" : "=h"(bits) : "r"(from) : "memory");
  return __uint_as_float(static_cast<unsigned>(bits) << 16);
}
// The sum of the elements whose key less query is `diagonal`. All lanes of a warp read one row of keys at a time: neighbouring columns.
template <int Queries, int Atom, typename Half> ATTN_DEVICE float diagonal_sum(uint32_t rows, int diagonal, int lane) {
  float sum = 0.0f;
  const int least = diagonal - lane, first = max(0, least) & ~7, last = min(64, Queries + least + 31);
#pragma unroll 1
  for (int key = first; key < last; key += 8) {
#pragma unroll
    for (int k = 0; k < 8; ++k) {
      const int query = key + k - diagonal;
      const uint32_t at = rows + (key + k) * 128 + query / 64 * Atom + ((query % 64 * 2) ^ (k * 16));
      if (query >= 0 && query < Queries) sum += band_element(at, Half());
    }
  }
  return sum;
}
// The sum of what a thread has packed.
template <int N> ATTN_DEVICE float packed_sum(const uint32_t (&pairs)[N], __half) {
  float sum = 0.0f;
#pragma unroll
  for (int n = 0; n < N; ++n) {
    const float2 both = __half22float2(reinterpret_cast<const __half2 &>(pairs[n]));
    sum += both.x + both.y;
  }
  return sum;
}
template <int N> ATTN_DEVICE float packed_sum(const uint32_t (&pairs)[N], __nv_bfloat16) {
  float sum = 0.0f;
#pragma unroll
  for (int n = 0; n < N; ++n) sum += __uint_as_float(pairs[n] << 16) + __uint_as_float(pairs[n] & 0xffff0000u);
  return sum;
}
ATTN_DEVICE float band_warp_sum(float value) {
#pragma unroll
  for (int distance = 16; distance > 0; distance /= 2) value += __shfl_xor_sync(0xffffffffu, value, distance);
  return value;
}
// Whether something holds for all threads of a warpgroup, which meet at a named barrier.
ATTN_DEVICE bool holds_for_all(bool is, int barrier) {
  int all;
  asm volatile("{\n.reg .pred p, q;\nsetp.ne.s32 p, %1, 0;\nbarrier.cta.red.and.pred q, %2, 128, p;\nselp.s32 %0, 1, 0, q;\n}"
               : "=r"(all)
               : "r"(static_cast<int>(is)), "r"(barrier)
               : "memory");
  return all != 0;
}
// A number of each lane goes to its place, unless that is -1: at once where all lanes have one place.
ATTN_DEVICE void add_places(float *to, long long place, float value) {
  const long long first = __shfl_sync(0xffffffffu, place, 0);
  if (__all_sync(0xffffffffu, place == first)) {
    value = band_warp_sum(value);
    if (threadIdx.x % 32 == 0 && first >= 0) add_global(to + first, value);
  } else if (place >= 0) {
    add_global(to + place, value);
  }
}

} // namespace attn
