// Largest elements of the two rows that a thread has of a tile.
#pragma once

namespace attn {

// As integers, numbers that are not negative are ordered as they are as floats, and an instruction takes the largest of three; where a row has
// negative ones only, it is done again. NaN is the largest.
template <int N> ATTN_DEVICE void largest_of_thread(const float (&x)[N], float (&largest)[2]) {
  int top[4] = {static_cast<int>(0x80000000), static_cast<int>(0x80000000), static_cast<int>(0x80000000), static_cast<int>(0x80000000)};
#pragma unroll
  for (int c = 0; c < N; c += 2) top[c / 2 % 4] = __vimax3_s32(top[c / 2 % 4], __float_as_int(x[c]), __float_as_int(x[c + 1]));
  top[0] = max(top[0], top[2]), top[1] = max(top[1], top[3]);
  largest[0] = __int_as_float(top[0]), largest[1] = __int_as_float(top[1]);
  if ((top[0] | top[1]) < 0) {
    largest[0] = largest[1] = -3.40282347e+38f;
#pragma unroll
    for (int c = 0; c < N; ++c) asm("max.NaN.f32 %0, %0, %1;" : "+f"(largest[c / 2 % 2]) : "f"(x[c]));
  }
}

}  // namespace attn
