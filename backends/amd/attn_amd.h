// What printed kernels for AMD GPUs (gfx90a, gfx942) are made of: clang's builtins under short names, and scalar functions in f32.
// With ATTN_AMD_EMULATED the builtins come from the CPU emulation of tests; everything after that is the same text for both.
#pragma once

#ifdef ATTN_AMD_EMULATED
#include "attn_amd_emulated.h"
#else
#define __device__ __attribute__((device))
#define __shared__ __attribute__((shared))
#define __forceinline__ inline __attribute__((always_inline))
#define ATTN_KERNEL(threads, waves)                                                            \
  extern "C" __attribute__((global)) __attribute__((amdgpu_flat_work_group_size(threads, threads), \
                                                    amdgpu_waves_per_eu(waves))) void
namespace attn {
static __device__ __forceinline__ void atomic_add(float *address, float x) {
  [[clang::atomic(no_remote_memory, no_fine_grained_memory, ignore_denormal_mode)]] {
    __hip_atomic_fetch_add(address, x, __ATOMIC_RELAXED, __HIP_MEMORY_SCOPE_AGENT);
  }
}
// The number itself; what is made of it is computed again, not kept.
static __device__ __forceinline__ int opaque(int x) {
  asm volatile("" : "+v"(x));
  return x;
}
}  // namespace attn
#endif

#define ATTN_DEVICE static __device__ __forceinline__

typedef _Float16 __half;
typedef __bf16 __hip_bfloat16;

#define INFINITY __builtin_inff()
#define NAN __builtin_nanf("")

namespace attn {

typedef _Float16 Half2 __attribute__((ext_vector_type(2)));
typedef _Float16 Half4 __attribute__((ext_vector_type(4)));
typedef short Short4 __attribute__((ext_vector_type(4)));
typedef float Float2 __attribute__((ext_vector_type(2)));
typedef float Float4 __attribute__((ext_vector_type(4)));
typedef float Float16x __attribute__((ext_vector_type(16)));
typedef unsigned Bits2 __attribute__((ext_vector_type(2)));
typedef unsigned Bits4 __attribute__((ext_vector_type(4)));

template <typename To, typename From> ATTN_DEVICE To bits(From x) { return __builtin_bit_cast(To, x); }

// ---- threads

#ifdef ATTN_RECOMPUTE  // what follows from the number of the thread is computed where it is needed: there are no registers to keep it
ATTN_DEVICE int thread() { return opaque(__builtin_amdgcn_workitem_id_x()); }
#else
ATTN_DEVICE int thread() { return __builtin_amdgcn_workitem_id_x(); }
#endif
ATTN_DEVICE int uniform(int x) { return __builtin_amdgcn_readfirstlane(x); }
ATTN_DEVICE long long uniform(long long x) { return (long long)uniform((int)(x >> 32)) << 32 | (unsigned)uniform((int)x); }

// All threads of the block have come here, and what they wrote to shared memory can be read.
ATTN_DEVICE void barrier() {
  __builtin_amdgcn_fence(__ATOMIC_RELEASE, "workgroup");
  __builtin_amdgcn_s_barrier();
  __builtin_amdgcn_fence(__ATOMIC_ACQUIRE, "workgroup");
}

// Whether the condition holds in some lane of the wave.
ATTN_DEVICE bool any(bool condition) { return __builtin_amdgcn_ballot_w64(condition) != 0; }

ATTN_DEVICE float from_lane(float x, int lane) {
  return bits<float>(__builtin_amdgcn_ds_bpermute(lane << 2, bits<int>(x)));
}
ATTN_DEVICE int from_lane(int x, int lane) { return __builtin_amdgcn_ds_bpermute(lane << 2, x); }
ATTN_DEVICE long long from_lane(long long x, int lane) {
  return (long long)from_lane((int)(x >> 32), lane) << 32 | (unsigned)from_lane((int)x, lane);
}

// Adds what lanes have for memory in the order of their numbers; all lanes of the wave come here.
ATTN_DEVICE void add_in_order(float *address, float x, bool exists) {
  for (unsigned long long left = __builtin_amdgcn_ballot_w64(exists); left; left &= left - 1) {
    if ((thread() & 63) == __builtin_ctzll(left)) atomic_add(address, x);
    __builtin_amdgcn_wave_barrier();
  }
}
// Ends the turn of a wave: what it added is in memory before the next one adds.
ATTN_DEVICE void next_turn() {
  __builtin_amdgcn_fence(__ATOMIC_RELEASE, "agent");
  __builtin_amdgcn_s_barrier();
}

// The value in the other half of the wave: lane + 32 or lane - 32.
ATTN_DEVICE float other_half(float x) { return from_lane(x, (thread() & 63) ^ 32); }

ATTN_DEVICE float wave_sum(float x) {
#pragma unroll
  for (int step = 1; step < 64; step *= 2) x += from_lane(x, (thread() & 63) ^ step);
  return x;
}

// Smallest and largest element of a box of integers, which the lanes of a wave search together.
struct Range {
  long long lowest = 0x7fffffffffffffffll, highest = -lowest - 1;
  template <typename T> __device__ __forceinline__ void scan(const T *from, long long stride, int begin, int end) {
    for (int at = begin + (thread() & 63); at < end; at += 64) {
      const long long x = (long long)from[at * stride];
      lowest = x < lowest ? x : lowest;
      highest = x > highest ? x : highest;
    }
  }
  __device__ __forceinline__ void combine() {
#pragma unroll
    for (int step = 1; step < 64; step *= 2) {
      const int other = (thread() & 63) ^ step;
      const long long low = from_lane(lowest, other), high = from_lane(highest, other);
      lowest = low < lowest ? low : lowest;
      highest = high > highest ? high : highest;
    }
    lowest = uniform(lowest);
    highest = uniform(highest);
  }
};

// ---- global memory

// `rows` rows of a tensor: reads past them give zeros.
typedef __amdgpu_buffer_rsrc_t Rows;
template <typename T> ATTN_DEVICE Rows rows_of(const T *base, int rows, long long stride, int columns) {
  const int elements = rows > 0 ? (int)((rows - 1) * stride) + columns : 0;
  return __builtin_amdgcn_make_buffer_rsrc((void *)base, 0, elements * (int)sizeof(T), 0x00027000);
}
ATTN_DEVICE Bits4 load_16(Rows rows, int offset) { return __builtin_amdgcn_raw_buffer_load_b128(rows, offset, 0, 0); }
ATTN_DEVICE Bits2 load_8(Rows rows, int offset) { return __builtin_amdgcn_raw_buffer_load_b64(rows, offset, 0, 0); }
ATTN_DEVICE unsigned load_4(Rows rows, int offset) { return __builtin_amdgcn_raw_buffer_load_b32(rows, offset, 0, 0); }
ATTN_DEVICE unsigned load_2(Rows rows, int offset) { return __builtin_amdgcn_raw_buffer_load_b16(rows, offset, 0, 0); }
ATTN_DEVICE unsigned load_1(Rows rows, int offset) { return __builtin_amdgcn_raw_buffer_load_b8(rows, offset, 0, 0); }

constexpr int kOutside = 0x7fffffff;

// Eight, or four, 16-bit elements of a row that begins at element `row`. Its `Columns` columns start at multiples of `Align` elements; those
// after them are zeros.
template <int Align, int Columns, int Padded> ATTN_DEVICE int byte_of(int row, int column) {
  return Columns == Padded || column < Columns ? 2 * (row + column) : kOutside;
}
template <int Align, int Columns, int Padded> ATTN_DEVICE unsigned load_pair(Rows rows, int row, int column) {
  if constexpr (Align >= 2) return load_4(rows, byte_of<Align, Columns, Padded>(row, column));
  return load_2(rows, byte_of<Align, Columns, Padded>(row, column)) |
         load_2(rows, byte_of<Align, Columns, Padded>(row, column + 1)) << 16;
}
template <int Align, int Columns, int Padded> ATTN_DEVICE Bits2 load_four(Rows rows, int row, int column) {
  if constexpr (Align >= 4) return load_8(rows, byte_of<Align, Columns, Padded>(row, column));
  return Bits2{load_pair<Align, Columns, Padded>(rows, row, column), load_pair<Align, Columns, Padded>(rows, row, column + 2)};
}
template <int Align, int Columns, int Padded> ATTN_DEVICE Bits4 load_eight(Rows rows, int row, int column) {
  if constexpr (Align >= 8) return load_16(rows, byte_of<Align, Columns, Padded>(row, column));
  const Bits2 low = load_four<Align, Columns, Padded>(rows, row, column);
  const Bits2 high = load_four<Align, Columns, Padded>(rows, row, column + 4);
  return Bits4{low.x, low.y, high.x, high.y};
}

// The same of 8-bit elements, which stay as they are in memory until they are widened.
template <int Align, int Columns, int Padded> ATTN_DEVICE unsigned load_four_bytes(Rows rows, int row, int column) {
  const int at = Columns == Padded || column < Columns ? row + column : kOutside;
  if constexpr (Align >= 4) return load_4(rows, at);
  unsigned words = 0;
#pragma unroll
  for (int e = 0; e < 4; ++e) words |= load_1(rows, column + e < Columns ? row + column + e : kOutside) << 8 * e;
  return words;
}
template <int Align, int Columns, int Padded> ATTN_DEVICE Bits2 load_eight_bytes(Rows rows, int row, int column) {
  if constexpr (Align >= 8) return load_8(rows, Columns == Padded || column < Columns ? row + column : kOutside);
  return Bits2{load_four_bytes<Align, Columns, Padded>(rows, row, column), load_four_bytes<Align, Columns, Padded>(rows, row, column + 4)};
}

// As many elements of a row in a page as `Words` holds, from column `column` on; zeros where the row does not exist, and after its columns.
template <typename Words, int Align, int Columns, typename T> ATTN_DEVICE Words load_from(const T *row, int column, bool exists) {
  constexpr int kCount = sizeof(Words) / sizeof(T);
  Words words = {};
  if constexpr (Align >= kCount) {
    if (exists && column < Columns) words = *(const Words *)(row + column);
  } else {
    T parts[kCount];
#pragma unroll
    for (int e = 0; e < kCount; ++e) parts[e] = exists && column + e < Columns ? row[column + e] : T(0);
    __builtin_memcpy(&words, parts, sizeof(Words));
  }
  return words;
}

// Eight elements of a column, in rows `row` to `row` + 7.
template <int Columns> ATTN_DEVICE Bits4 load_column(Rows rows, int stride, int row, int column) {
  Bits4 words;
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const int first = column < Columns ? 2 * ((row + 2 * i) * stride + column) : kOutside;
    const int second = column < Columns ? 2 * ((row + 2 * i + 1) * stride + column) : kOutside;
    words[i] = load_2(rows, first) | load_2(rows, second) << 16;
  }
  return words;
}

// ---- 16-bit numbers

// Two numbers as weights of a product: f16 rounds towards zero, bf16 to nearest (ties away from zero).
ATTN_DEVICE unsigned pack_f16(float a, float b) { return bits<unsigned>(__builtin_amdgcn_cvt_pkrtz(a, b)); }
ATTN_DEVICE unsigned pack_bf16(float a, float b) {
  const unsigned x = __builtin_elementwise_add_sat(bits<unsigned>(a), 0x8000u);
  const unsigned y = __builtin_elementwise_add_sat(bits<unsigned>(b), 0x8000u);
  return __builtin_amdgcn_perm(y, x, 0x07060302u);
}
// Two numbers as results: to nearest, ties to even.
ATTN_DEVICE unsigned round_f16(float a, float b) {
  const Half2 x = {(_Float16)a, (_Float16)b};
  return bits<unsigned>(x);
}
ATTN_DEVICE unsigned short round_bf16(float a) {
  const unsigned x = bits<unsigned>(a);
  return (a != a ? x | 0x400000u : x + 0x7fffu + (x >> 16 & 1)) >> 16;
}
ATTN_DEVICE unsigned round_bf16(float a, float b) { return round_bf16(a) | (unsigned)round_bf16(b) << 16; }
// Four and eight 8-bit numbers in 16 bits, which have all of them.
template <float (*Widen)(unsigned char), unsigned (*Round)(float, float)> ATTN_DEVICE Bits2 widened(unsigned x) {
  return Bits2{Round(Widen(x & 0xffu), Widen(x >> 8 & 0xffu)), Round(Widen(x >> 16 & 0xffu), Widen(x >> 24))};
}
template <float (*Widen)(unsigned char), unsigned (*Round)(float, float)> ATTN_DEVICE Bits4 widened(Bits2 x) {
  const Bits2 low = widened<Widen, Round>(x.x), high = widened<Widen, Round>(x.y);
  return Bits4{low.x, low.y, high.x, high.y};
}
ATTN_DEVICE unsigned short half_of(unsigned pair, int high) { return (unsigned short)(high ? pair >> 16 : pair); }
template <typename Words, typename T> ATTN_DEVICE void set_half(Words &words, int number, T x) {
  const unsigned half = bits<unsigned short>(x), old = words[number / 2];
  words[number / 2] = number % 2 ? (old & 0xffffu) | half << 16 : (old & 0xffff0000u) | half;
}

// ---- matrix products

// Row i = 8 b + 4 h + j of operand A is row 16 h + 4 b + j of the tile: then each half of a wave has 16 neighbouring rows of the result.
ATTN_DEVICE int permuted_row(int i) { return (i & 4) << 2 | (i >> 1 & 12) | (i & 3); }

// The place of a chunk of 16 bytes in its row of shared memory: rows that are read, or written, together use different banks. Rows whose
// chunks are no multiple of 8 begin in one half of the banks or the other, by turns.
template <int Chunks> ATTN_DEVICE int swizzle(int row) {
  if constexpr (Chunks % 8 == 0) return ((row ^ row >> 2) & 3) | (row >> 2 & 4);
  if constexpr (Chunks % 4 == 2) return row >> 2 & 1;
  static_assert(Chunks % 2 == 0);
  return ((row >> 1 ^ row >> 2) & 1) | (row >> 2 & 2);
}

// A tile in shared memory has rows of `Chunks` swizzled chunks of eight 16-bit elements. Rows of 64 bytes are exchanged with their neighbours in
// every second sixteen, so that eight lanes that write every fourth row reach both halves of the banks.
template <int Chunks> ATTN_DEVICE unsigned char *chunk_at(unsigned char *tile, int row, int chunk) {
  const int place = Chunks == 4 ? row ^ (row >> 4 & 1) : row;
  return tile + place * (16 * Chunks) + ((chunk ^ swizzle<Chunks>(row)) << 4);
}
template <int Chunks> ATTN_DEVICE void keep_eight(unsigned char *tile, int row, int column, Bits4 x) {
  *(Bits4 *)chunk_at<Chunks>(tile, row, column >> 3) = x;
}
template <int Chunks> ATTN_DEVICE void keep_four(unsigned char *tile, int row, int column, Bits2 x) {
  *(Bits2 *)(chunk_at<Chunks>(tile, row, column >> 3) + 2 * (column & 4)) = x;
}
template <int Chunks> ATTN_DEVICE void keep_half(unsigned char *tile, int row, int column, unsigned short x) {
  *(unsigned short *)(chunk_at<Chunks>(tile, row, column >> 3) + 2 * (column & 7)) = x;
}
// Column `c` of eight rows of four elements.
template <typename Four> ATTN_DEVICE Bits4 column_of(const Four *rows, int c) {
  Bits4 words;
#pragma unroll
  for (int i = 0; i < 4; ++i)
    words[i] = __builtin_amdgcn_perm(bits<Bits2>(rows[2 * i + 1])[c / 2], bits<Bits2>(rows[2 * i])[c / 2], c % 2 ? 0x07060302u : 0x05040100u);
  return words;
}
// Eight rows of four columns become four rows of the transpose, eight elements of each.
template <int Chunks> ATTN_DEVICE void keep_transposed(unsigned char *tile, int row, int column, const Bits2 *x) {
#pragma unroll
  for (int c = 0; c < 4; ++c) *(Bits4 *)chunk_at<Chunks>(tile, column + c, row >> 3) = column_of(x, c);
}

// to += a b for 16 terms: `a` has 32 rows and `b` 32 columns, eight neighbouring terms a lane.
ATTN_DEVICE void multiply_f16(Float16x &to, Bits4 a, Bits4 b) {
  to = __builtin_amdgcn_mfma_f32_32x32x8f16(bits<Half4>(a.xy), bits<Half4>(b.xy), to, 0, 0, 0);
  to = __builtin_amdgcn_mfma_f32_32x32x8f16(bits<Half4>(a.zw), bits<Half4>(b.zw), to, 0, 0, 0);
}
ATTN_DEVICE void multiply_bf16(Float16x &to, Bits4 a, Bits4 b) {
  to = __builtin_amdgcn_mfma_f32_32x32x8bf16_1k(bits<Short4>(a.xy), bits<Short4>(b.xy), to, 0, 0, 0);
  to = __builtin_amdgcn_mfma_f32_32x32x8bf16_1k(bits<Short4>(a.zw), bits<Short4>(b.zw), to, 0, 0, 0);
}

// Columns of the result are rows of the tile in shared memory, rows of the result are those of the lanes: to += (tile b)^T.
template <int Outputs, int Terms, int Chunks>
ATTN_DEVICE void product_f16(Float16x (&to)[Outputs], const unsigned char *tile, const Bits4 (&b)[Terms]) {
  const int lane = thread() & 63, half = lane >> 5, row = permuted_row(lane & 31);
#pragma unroll
  for (int t = 0; t < Terms; ++t)
#pragma unroll
    for (int u = 0; u < Outputs; ++u)
      multiply_f16(to[u], *(const Bits4 *)chunk_at<Chunks>((unsigned char *)tile + u * (512 * Chunks), row, t / 2 * 4 + 2 * half + t % 2), b[t]);
}
template <int Outputs, int Terms, int Chunks>
ATTN_DEVICE void product_bf16(Float16x (&to)[Outputs], const unsigned char *tile, const Bits4 (&b)[Terms]) {
  const int lane = thread() & 63, half = lane >> 5, row = permuted_row(lane & 31);
#pragma unroll
  for (int t = 0; t < Terms; ++t)
#pragma unroll
    for (int u = 0; u < Outputs; ++u)
      multiply_bf16(to[u], *(const Bits4 *)chunk_at<Chunks>((unsigned char *)tile + u * (512 * Chunks), row, t / 2 * 4 + 2 * half + t % 2), b[t]);
}

// Multiplies the rows of a tile, where some row of the wave has a factor other than 1.
template <int Parts> ATTN_DEVICE void rescale(Float16x (&tile)[Parts], float factor) {
  if (!any(factor != 1.0f)) return;
#pragma unroll
  for (int n = 0; n < Parts; ++n) tile[n] *= factor;
}

// ---- results

// A row in global memory, of `Columns` columns that start at multiples of `Align` elements; this lane has 16 of every 32.
template <int Align, int Columns, int Words>
ATTN_DEVICE void store_row(unsigned short *row, int column, const Bits4 (&words)[Words]) {
#pragma unroll
  for (int w = 0; w < Words; ++w) {
    const int first = column + w / 2 * 32 + w % 2 * 8;
    if constexpr (Align >= 8) {
      if (first < Columns) *(Bits4 *)(row + first) = words[w];
    } else {
#pragma unroll
      for (int e = 0; e < 8; ++e)
        if (first + e < Columns) row[first + e] = half_of(words[w][e / 2], e % 2);
    }
  }
}
template <int Align, int Columns, int Parts>
ATTN_DEVICE void store_row(float *row, int column, const Float16x (&tile)[Parts]) {
#pragma unroll
  for (int n = 0; n < Parts; ++n)
#pragma unroll
    for (int r = 0; r < 16; r += 4) {
      const int first = column + 32 * n + r;
      if constexpr (Align >= 4) {
        if (first < Columns) *(Float4 *)(row + first) = Float4{tile[n][r], tile[n][r + 1], tile[n][r + 2], tile[n][r + 3]};
      } else {
#pragma unroll
        for (int e = 0; e < 4; ++e)
          if (first + e < Columns) row[first + e] = tile[n][r + e];
      }
    }
}

}  // namespace attn

#include "attn_amd_math.h"
#include "attn_amd_weights.h"

// The names that printed scalar code uses.
ATTN_DEVICE float __half2float(__half x) { return (float)x; }
ATTN_DEVICE __half __float2half_rn(float x) { return (__half)x; }
ATTN_DEVICE float __bfloat162float(__hip_bfloat16 x) {
  return attn::bits<float>((unsigned)attn::bits<unsigned short>(x) << 16);
}
ATTN_DEVICE __hip_bfloat16 __float2bfloat16_rn(float x) { return attn::bits<__hip_bfloat16>(attn::round_bf16(x)); }
ATTN_DEVICE int __float_as_int(float x) { return attn::bits<int>(x); }
ATTN_DEVICE float __int_as_float(int x) { return attn::bits<float>(x); }
template <typename T> ATTN_DEVICE T min(T a, T b) { return a < b ? a : b; }
template <typename T> ATTN_DEVICE T max(T a, T b) { return a < b ? b : a; }
#define exp2f attn::exp2
#define expf attn::exp
#define logf attn::log
#define log2f attn::log2
#define log10f attn::log10
#define sqrtf attn::sqrt
#define rsqrtf attn::rsqrt
#define fabsf attn::absolute
#define fabs __builtin_fabs
#define fmaxf __builtin_fmaxf
#define fminf __builtin_fminf
#define fmaf attn::fma
#define floorf __builtin_floorf
#define ceilf __builtin_ceilf
#define truncf __builtin_truncf
#define rintf __builtin_rintf
#define roundf __builtin_roundf
#define copysignf __builtin_copysignf
#define sinf attn::sine
#define cosf attn::cosine
#define atanf attn::atan
#define atan2f attn::atan2
#define asinf attn::asin
#define acosf attn::acos
#define erff attn::erf
#define erfcf attn::erfc
#define expm1f attn::expm1
#define log1pf attn::log1p
#define sinhf attn::sinh
#define coshf attn::cosh
#define cbrtf attn::cbrt
#define fmodf __builtin_fmodf
#define abs __builtin_abs
#define llabs __builtin_llabs
