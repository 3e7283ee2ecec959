// Device helpers of scans over chunks (linear attention): numbers in words, factors of rows.
#pragma once

namespace attn {

// The two 16-bit numbers of a word.
ATTN_DEVICE float2 unpack_bf16(uint32_t word) { return make_float2(__uint_as_float(word << 16), __uint_as_float(word & 0xffff0000u)); }
ATTN_DEVICE float2 unpack_f16(uint32_t word) {
  __half2 pair;
  memcpy(&pair, &word, sizeof(pair));
  return __half22float2(pair);
}

// What packing two numbers leaves out; of f16, 2^11 times as large as it is.
ATTN_DEVICE uint32_t pack_residual_bf16(uint32_t packed, float low, float high) {
  const float2 rounded = unpack_bf16(packed);
  return pack_bf16(low - rounded.x, high - rounded.y);
}
ATTN_DEVICE uint32_t pack_residual_f16(uint32_t packed, float low, float high) {
  const float2 rounded = unpack_f16(packed);
  return pack_f16((low - rounded.x) * 2048.0f, (high - rounded.y) * 2048.0f);
}

// The sum of the lanes' x up to this one.
ATTN_DEVICE float sum_of_lanes_before(float x) {
  const int lane = threadIdx.x % 32;
#pragma unroll
  for (int distance = 1; distance < 32; distance *= 2) {
    const float other = __shfl_up_sync(0xffffffffu, x, distance);
    if (lane >= distance) x += other;
  }
  return x;
}

// The first 2 * kHalf numbers of each lane, summed over two lanes that differ in one bit: each keeps kHalf of the sums.
template <int kHalf> ATTN_DEVICE void share_sums(float (&x)[16]) {
  const bool upper = threadIdx.x & kHalf * 2;
#pragma unroll
  for (int i = 0; i < kHalf; ++i) {
    const float keep = upper ? x[i + kHalf] : x[i], give = upper ? x[i] : x[i + kHalf];
    x[i] = keep + __shfl_xor_sync(0xffffffffu, give, kHalf * 2);
  }
}

// 16 numbers of each lane, summed over the 8 lanes that differ in bits 2 to 4: the lane gets the sums of the numbers `place_of_sum()` and
// the next one.
ATTN_DEVICE float2 sum_over_rows(float (&x)[16]) {
  share_sums<8>(x);
  share_sums<4>(x);
  share_sums<2>(x);
  return make_float2(x[0], x[1]);
}
ATTN_DEVICE int place_of_sum() {
  const int lane = threadIdx.x % 32;
  return (lane & 16 ? 8 : 0) + (lane & 8 ? 4 : 0) + (lane & 4 ? 2 : 0);
}

} // namespace attn
