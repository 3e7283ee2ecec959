// Weights of products in f16, and their factors. A part of attn_amd.h.
#pragma once

namespace attn {

// ---- weights in f16
//
// The matrix instruction of gfx90a takes f16 below 2^-14 as zero. Where nothing tells how large weights are, those of a wave have a factor, a
// power of two, which their sums have, too: as large as it can be while weights stay below 2^15. It only becomes smaller.

constexpr float kFirstScale = 0x1p60f;

ATTN_DEVICE float wave_max(float x) {
#pragma unroll
  for (int step = 1; step < 64; step *= 2) x = __builtin_fmaxf(x, from_lane(x, (thread() & 63) ^ step));
  return x;
}
template <int Parts> ATTN_DEVICE void multiply(Float16x (&tile)[Parts], float factor) {
#pragma unroll
  for (int n = 0; n < Parts; ++n) tile[n] *= factor;
}
template <int Parts, int... Sums>
ATTN_DEVICE void fit_scale(float &scale, bool exists, const Float16x (&weights)[Parts], Float16x (&...sums)[Sums]) {
  float largest = 0.0f;
#pragma unroll
  for (int n = 0; n < Parts; ++n)
#pragma unroll
    for (int r = 0; r < 16; ++r) largest = __builtin_fmaxf(largest, __builtin_fabsf(weights[n][r]));
  largest = exists ? largest : 0.0f;
  if (!any(largest * scale > 32768.0f)) return;
  const int exponent = bits<int>(wave_max(largest)) >> 23;  // of 2^(exponent - 127)
  const float fitting = exponent == 255 ? scale : bits<float>((exponent < 14 ? 254 : 268 - exponent) << 23);
  const float factor = fitting / scale;
  (multiply(sums, factor), ...);
  scale = fitting;
}
// Gives two sums the smaller one of their factors.
template <int A, int B> ATTN_DEVICE void share_scale(float &scale, Float16x (&sum)[A], float &other_scale, Float16x (&other)[B]) {
  if (!any(scale != other_scale)) return;
  const float both = __builtin_fminf(scale, other_scale);
  multiply(sum, both / scale);
  multiply(other, both / other_scale);
  scale = other_scale = both;
}
// Rounds weights: raised by 3/8 of a unit in the last place, they are cut evenly, up and down.
template <int Words, int Parts> ATTN_DEVICE void pack_scaled(Bits4 (&words)[Words], const Float16x (&weights)[Parts], float scale) {
  const float raised = scale * 1.00036621f;
#pragma unroll
  for (int n = 0; n < Parts; ++n)
#pragma unroll
    for (int c = 0; c < 16; c += 2) {
      const Float2 pair = Float2{weights[n][c], weights[n][c + 1]} * raised;
      words[2 * n + c / 8][c / 2 % 4] = pack_f16(pair.x, pair.y);
    }
}
template <int Parts> ATTN_DEVICE void settle(Float16x (&sum)[Parts], float &scale) {
  multiply(sum, 1.0f / scale);
  scale = 1.0f;
}
// Sums over the keys of four waves, whose weights have factors of their own.
ATTN_DEVICE void product_of_waves(Float16x &to, const unsigned char *tile, const Bits4 (&b)[8], const float *factors) {
  const int lane = thread() & 63, half = lane >> 5, row = permuted_row(lane & 31);
#pragma unroll
  for (int wave = 0; wave < 4; ++wave) {
    Float16x part = (Float16x)(0.0f);
#pragma unroll
    for (int g = 0; g < 2; ++g)
      multiply_f16(part, *(const Bits4 *)chunk_at<16>((unsigned char *)tile, row, wave * 4 + 2 * half + g), b[2 * wave + g]);
    to += part * factors[wave];
  }
}

}  // namespace attn
