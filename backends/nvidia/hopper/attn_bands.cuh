#pragma once
namespace attn {

// Sums along the diagonals of weights: a table of differences gets one addition for each diagonal of a warp, not one a pair.

ATTN_DEVICE float2 band_pair(uint32_t pair, __half) { return __half22float2(reinterpret_cast<const __half2 &>(pair)); }
ATTN_DEVICE float2 band_pair(uint32_t pair, __nv_bfloat16) { return make_float2(__uint_as_float(pair << 16), __uint_as_float(pair & 0xffff0000u)); }
// Sums along the diagonals of the 16 keys and 8 C queries that a warp has packed: of keys lane / 4 and 8 more, and pairs of queries
// 8 c + lane % 4 * 2. Elements of a thread that are 8 keys and 8 queries apart are of one diagonal. Lanes of a pair of queries turn by how far
// it is from the first one, so that lane / 4 tells the diagonal, up to a multiple of 8, and the four of them share the sums.
// Then sums[i] is that of diagonal (key less query) lane / 4 + 8 (band_number<C>(lane) + i - C), for i below N / 4.
template <int C> ATTN_DEVICE int band_number(int lane) { return (lane / 2 % 2 * 2 + lane % 2) * ((C + 5) / 4); }
template <int C, int N, typename Half> ATTN_DEVICE void band_sums(const uint32_t (&pairs)[2 * C], float (&sums)[N], int lane) {
  float of[2][C + 1];
#pragma unroll
  for (int k = 0; k <= C; ++k) {
    const float2 near = k < C ? band_pair(pairs[2 * (k < C ? C - 1 - k : 0)], Half()) : make_float2(0.0f, 0.0f);
    const float2 far = k > 0 ? band_pair(pairs[2 * (k > 0 ? C - k : 0) + 1], Half()) : make_float2(0.0f, 0.0f);
    of[0][k] = near.x + far.x, of[1][k] = near.y + far.y;
  }
#pragma unroll
  for (int n = 0; n < N; ++n) sums[n] = 0.0f;
#pragma unroll
  for (int e = 0; e < 2; ++e) {
    const int turned = lane / 4 + lane % 4 * 2 + e;
    float before = 0.0f;
#pragma unroll
    for (int k = 0; k <= C + 1; ++k) {
      const float own = k <= C ? __shfl_sync(0xffffffffu, of[e][k <= C ? k : 0], turned % 8 * 4 + lane % 4) : 0.0f;
      sums[k] += turned >= 8 ? own : before;
      before = own;
    }
  }
#pragma unroll
  for (int distance = 2, count = N / 2; distance; distance /= 2, count /= 2) {
#pragma unroll
    for (int i = 0; i < count; ++i) {
      const float given = lane & distance ? sums[i] : sums[count + i], kept = lane & distance ? sums[count + i] : sums[i];
      sums[i] = kept + __shfl_xor_sync(0xffffffffu, given, distance);
    }
  }
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
