
namespace attn {

// The largest elements of the two rows that a thread and its three neighbours hold. As integers, numbers that are not negative are ordered as
// they are as floats, and an instruction takes the largest of three; where some row has negative numbers only it is done again.
template <int N> ATTN_DEVICE void largest_in_rows(const float (&x)[N], float (&largest)[2]) {
  int top[2] = {static_cast<int>(0x80000000), static_cast<int>(0x80000000)};
#pragma unroll
  for (int c = 0; c < N; c += 2) top[c / 2 % 2] = __vimax3_s32(top[c / 2 % 2], __float_as_int(x[c]), __float_as_int(x[c + 1]));
#pragma unroll
  for (int h = 0; h < 2; ++h) {
    top[h] = max(top[h], __shfl_xor_sync(0xffffffffu, top[h], 1));
    top[h] = max(top[h], __shfl_xor_sync(0xffffffffu, top[h], 2));
    largest[h] = __int_as_float(top[h]);
  }
  if (__any_sync(0xffffffffu, (top[0] | top[1]) < 0)) {
    largest[0] = largest[1] = -3.40282347e+38f;
#pragma unroll
    for (int c = 0; c < N; ++c) largest[c / 2 % 2] = fmaxf(largest[c / 2 % 2], x[c]);
#pragma unroll
    for (int h = 0; h < 2; ++h) largest[h] = quad_max(largest[h]);
  }
}

// Smallest and largest of integers in global memory; a converged warp looks at them together.
struct Range {
  long long lowest = 0x7fffffffffffffffll, highest = -lowest - 1;

  template <typename T> ATTN_DEVICE void scan(const T *from, long long stride, int begin, int end) {
    for (int i = begin + static_cast<int>(threadIdx.x % 32); i < end; i += 32) {
      const long long value = static_cast<long long>(from[i * stride]);
      lowest = min(lowest, value), highest = max(highest, value);
    }
  }
  ATTN_DEVICE void combine() {
#pragma unroll
    for (int distance = 16; distance; distance /= 2) {
      lowest = min(lowest, __shfl_xor_sync(0xffffffffu, lowest, distance));
      highest = max(highest, __shfl_xor_sync(0xffffffffu, highest, distance));
    }
  }
};

} // namespace attn
