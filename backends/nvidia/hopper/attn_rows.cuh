
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

// Whether some thread of the warp holds a 16-bit number that is not below the one with the bits `Limit` (NaN is not). None is negative.
template <uint32_t Limit, int N> ATTN_DEVICE bool any_reaches(const uint32_t (&packed)[N]) {
  uint32_t top[2] = {0, 0};
#pragma unroll
  for (int c = 0; c < N; c += 2) top[c / 2 % 2] = __vimax3_u16x2(top[c / 2 % 2], packed[c], packed[c + 1]);
  return __any_sync(0xffffffffu, ((__vmaxu2(top[0], top[1]) + (0x8000 - Limit) * 0x10001) & 0x80008000u) != 0);
}

template <bool BFloat> ATTN_DEVICE void multiply_16x8(float *sum, const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
  if constexpr (BFloat)
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
                 : "+f"(sum[0]), "+f"(sum[1]), "+f"(sum[2]), "+f"(sum[3]) : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
  else
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
                 : "+f"(sum[0]), "+f"(sum[1]), "+f"(sum[2]), "+f"(sum[3]) : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

// What wgmma makes of the 64 query rows at `queries` and the keys at `keys`, both K-major with `Depth` columns: this warp's 16 rows of it,
// computed by the warp alone.
template <int Depth, bool BFloat, int N>
ATTN_DEVICE void scores_of_warp(float (&scores)[N], uint32_t queries, uint32_t query_atom, uint32_t keys, uint32_t key_atom) {
  const int thread = thread_again(), lane = thread % 32, low = lane % 8;
  queries += (thread / 32 % 4 * 16 + lane % 16) * 128;
  keys += (lane / 16 * 8 + low) * 128;
#pragma unroll
  for (int c = 0; c < N; ++c) scores[c] = 0.0f;
#pragma unroll 1
  for (int k = 0; k < Depth / 16; ++k) {
    uint32_t a[4], b[4];
    load_matrices(queries + k / 4 * query_atom + ((k % 4 * 2 + lane / 16) ^ low) * 16, a);
    const uint32_t at = keys + k / 4 * key_atom + ((k % 4 * 2 + lane / 8 % 2) ^ low) * 16;
#pragma unroll
    for (int n = 0; n < N / 4; n += 2) { // 16 keys
      load_matrices(at + n * 8 * 128, b);
      multiply_16x8<BFloat>(scores + 4 * n, a, b[0], b[1]);
      multiply_16x8<BFloat>(scores + 4 * n + 4, a, b[2], b[3]);
    }
  }
}

// Sums over the eight lanes that have a column: of eight numbers a lane each, a lane keeps one, that of its own place among the eight, in the
// first of N / 8 numbers. Seven exchanges, not 24.
template <int N> ATTN_DEVICE void sum_of_lanes(float (&x)[N], int lane) {
#pragma unroll
  for (int group = 0; group < N / 8; ++group) {
    float *part = x + 8 * group;
#pragma unroll
    for (int distance = 16, count = 4; count; distance /= 2, count /= 2) {
#pragma unroll
      for (int i = 0; i < count; ++i) {
        const float given = lane & distance ? part[i] : part[count + i], kept = lane & distance ? part[count + i] : part[i];
        part[i] = kept + __shfl_xor_sync(0xffffffffu, given, distance);
      }
    }
    x[group] = part[0];
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
