// Device helpers of chunk scans for any chip from sm_80 on: tiles in shared memory, matrix products of warps (mma.sync), unit triangles.
//
// Threads of a block are kWarps warps. A tile of 16 bits lies in shared memory row by row, its chunks of 16 bytes permuted within a row; one of f32
// has rows with 8 more columns. A product's results lie in registers: the warps share its rows and columns as a grid, of which each warp has
// `High` x `Wide` parts of 16 x 8; element 2 r + c of a part is row 8 r + lane / 4, column 2 (lane % 4) + c.
#pragma once

namespace attn {

constexpr int kThreads = 32 * kWarps;

ATTN_DEVICE __half as_half(unsigned short bits) { return *reinterpret_cast<const __half *>(&bits); }
ATTN_DEVICE __nv_bfloat16 as_bfloat(unsigned short bits) { return *reinterpret_cast<const __nv_bfloat16 *>(&bits); }
ATTN_DEVICE float as_float(float x) { return x; }
ATTN_DEVICE float as_float(__half x) { return __half2float(x); }
ATTN_DEVICE float as_float(__nv_bfloat16 x) { return __bfloat162float(x); }
// Rounding of pairs is as fast as a multiplication, that of single numbers is not.
ATTN_DEVICE __nv_bfloat16 bfloat_of(float x) { return as_bfloat((unsigned short)(pack(BF16{}, 0.0f, x) >> 16)); }
ATTN_DEVICE float wide_of(__nv_bfloat16 x) { return __uint_as_float((uint32_t)*reinterpret_cast<const unsigned short *>(&x) << 16); }
// One of two numbers.
ATTN_DEVICE __half half_of(uint32_t both, int which) { return as_half((unsigned short)(which ? both >> 16 : both & 0xffff)); }
ATTN_DEVICE __nv_bfloat16 bfloat_of(uint32_t both, int which) { return as_bfloat((unsigned short)(which ? both >> 16 : both & 0xffff)); }

// ---- tiles in shared memory

// The byte of an element of a tile of 16 bits: eight rows at the same column lie in different banks.
template <int Columns> ATTN_DEVICE int place(int row, int column) {
  constexpr int kShift = Columns % 64 == 0 ? 0 : Columns % 32 == 0 ? 1 : 2, kMask = Columns % 64 == 0 ? 7 : Columns % 32 == 0 ? 3 : 1;
  return row * (2 * Columns) + ((((column >> 3) ^ (row >> kShift & kMask)) << 4) | (column & 7) << 1);
}
template <int Columns> ATTN_DEVICE uint32_t &two(unsigned char *tile, int row, int column) {
  return *(uint32_t *)(tile + place<Columns>(row, column));
}
template <int Columns> ATTN_DEVICE unsigned short &one(unsigned char *tile, int row, int column) {
  return *(unsigned short *)(tile + place<Columns>(row, column));
}

// The sum over the four lanes of a row.
ATTN_DEVICE float sum_of_row(float x) {
  x += __shfl_xor_sync(0xffffffffu, x, 1);
  return x + __shfl_xor_sync(0xffffffffu, x, 2);
}

// The sum over a warp.
ATTN_DEVICE float sum_of_warp(float x) {
#pragma unroll
  for (int step = 16; step > 0; step /= 2) x += __shfl_xor_sync(0xffffffffu, x, step);
  return x;
}

// Whether threads that share a tile's pieces of `Each` elements have the same columns in all rows, so that addresses of rows follow each other.
template <int Rows, int Columns, int Each> constexpr bool kSameColumns = kThreads % (Columns / Each) == 0 && Rows % (kThreads / (Columns / Each)) == 0;

// Rows from memory to a tile, 16 bytes at a time; rows past the last one repeat it.
template <int Rows, int Columns, class Element>
ATTN_DEVICE void copy_rows(unsigned char *tile, const Element *from, long long stride, int count) {
  constexpr int kEach = 16 / sizeof(Element), kAcross = Columns / kEach, kPieces = Rows * kAcross;
  const auto to = [&](int row, int column) { return tile + (sizeof(Element) == 2 ? place<Columns>(row, column) : (row * (Columns + 8) + column) * 4); };
  if constexpr (kSameColumns<Rows, Columns, kEach>) {
    if (count >= Rows) {
      constexpr int kStep = kThreads / kAcross;
      const int first = threadIdx.x / kAcross, column = threadIdx.x % kAcross * kEach;
      const Element *at = from + first * stride + column;
#pragma unroll
      for (int n = 0; n < Rows; n += kStep, at += kStep * stride) copy_16(to(first + n, column), at);
      return;
    }
  }
#pragma unroll 1
  for (int piece = threadIdx.x; piece < kPieces; piece += kThreads) {
    const int row = piece / kAcross, column = piece % kAcross * kEach;
    copy_16(to(row, column), from + min(row, count - 1) * stride + column);
  }
}

// The other way, of a tile of 16 bits, the rows that exist.
template <int Rows, int Columns, class Element> ATTN_DEVICE void store_rows(unsigned char *tile, Element *to, long long stride, int count) {
  constexpr int kAcross = Columns / 8;
  if constexpr (kSameColumns<Rows, Columns, 8>) {
    constexpr int kStep = kThreads / kAcross;
    const int first = threadIdx.x / kAcross, column = threadIdx.x % kAcross * 8;
    Element *at = to + first * stride + column;
#pragma unroll
    for (int n = 0; n < Rows; n += kStep, at += kStep * stride)
      if (first + n < count) *(float4 *)at = *(const float4 *)(tile + place<Columns>(first + n, column));
  } else {
    for (int piece = threadIdx.x; piece < Rows * kAcross; piece += kThreads) {
      const int row = piece / kAcross, column = piece % kAcross * 8;
      if (row < count) *(float4 *)(to + row * stride + column) = *(const float4 *)(tile + place<Columns>(row, column));
    }
  }
}

// ---- products

// Which tiles of two lists are multiplied: numbers 8 i + j.
template <int... Numbers> struct Pairs {};

// sum += a[i] b[j] for all pairs, in their order at every step of the depth; what several products take is loaded once. The tiles are
// [Rows, Depth] and [Depth, Columns], or the other way round where they are turned. The warps are a grid Down x kWarps / Down.
template <class Element, int Rows, int Columns, int Depth, int Down, bool TurnA, bool TurnB, int OfA, int OfB, int Count, int... Numbers>
ATTN_DEVICE void multiply(float (&sum)[Count], const unsigned char *const (&a)[OfA], const unsigned char *const (&b)[OfB], Pairs<Numbers...>) {
  constexpr int kAcross = kWarps / Down, kHigh = Rows / 16 / Down, kWide = Columns / 8 / kAcross;
  static_assert(Count == 4 * kHigh * kWide && kHigh > 0 && kWide > 0);
  const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5;
  const int row = warp / kAcross * (16 * kHigh), column = warp % kAcross * (8 * kWide);
#pragma unroll
  for (int k = 0; k < Depth; k += 16) {
    uint32_t x[OfA][kHigh][4];
#pragma unroll
    for (int i = 0; i < OfA; ++i)
#pragma unroll
      for (int m = 0; m < kHigh; ++m) {
        const uint32_t at = shared_address(a[i]);
        if constexpr (TurnA) load_matrices_transposed(at + place<Rows>(k + lane / 16 * 8 + lane % 8, row + 16 * m + lane / 8 % 2 * 8), x[i][m]);
        else load_matrices(at + place<Depth>(row + 16 * m + lane % 16, k + lane / 16 * 8), x[i][m]);
      }
#pragma unroll
    for (int n = 0; n < kWide; n += 2) {
      uint32_t y[OfB][4];
      // The last of an odd number of parts loads what lies beside it twice.
      const int next = n + 1 < kWide ? 8 : 0;
#pragma unroll
      for (int j = 0; j < OfB; ++j) {
        const uint32_t at = shared_address(b[j]);
        if constexpr (TurnB) load_matrices(at + place<Depth>(column + 8 * n + lane / 16 * next + lane % 8, k + lane / 8 % 2 * 8), y[j]);
        else load_matrices_transposed(at + place<Columns>(k + lane % 16, column + 8 * n + lane / 16 * next), y[j]);
      }
#pragma unroll
      for (int m = 0; m < kHigh; ++m) {
        (mma(Element{}, &sum[4 * (m * kWide + n)], x[Numbers / 8][m], y[Numbers % 8][0], y[Numbers % 8][1]), ...);
        if (n + 1 < kWide) (mma(Element{}, &sum[4 * (m * kWide + n + 1)], x[Numbers / 8][m], y[Numbers % 8][2], y[Numbers % 8][3]), ...);
      }
    }
  }
}

// Two products, of two left factors and one right factor, or the other way round: what they share is loaded once.
template <class Element, int Rows, int Columns, int Depth, int Down, bool TurnA, bool TurnB, int OfA, int OfB, int Count>
ATTN_DEVICE void multiply_both(float (&first)[Count], float (&second)[Count], const unsigned char *const (&a)[OfA], const unsigned char *const (&b)[OfB]) {
  constexpr int kAcross = kWarps / Down, kHigh = Rows / 16 / Down, kWide = Columns / 8 / kAcross;
  static_assert(Count == 4 * kHigh * kWide && kHigh > 0 && kWide % 2 == 0 && OfA + OfB == 3);
  const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5;
  const int row = warp / kAcross * (16 * kHigh), column = warp % kAcross * (8 * kWide);
#pragma unroll
  for (int k = 0; k < Depth; k += 16) {
    uint32_t x[OfA][kHigh][4];
#pragma unroll
    for (int i = 0; i < OfA; ++i)
#pragma unroll
      for (int m = 0; m < kHigh; ++m) {
        const uint32_t at = shared_address(a[i]);
        if constexpr (TurnA) load_matrices_transposed(at + place<Rows>(k + lane / 16 * 8 + lane % 8, row + 16 * m + lane / 8 % 2 * 8), x[i][m]);
        else load_matrices(at + place<Depth>(row + 16 * m + lane % 16, k + lane / 16 * 8), x[i][m]);
      }
#pragma unroll
    for (int n = 0; n < kWide; n += 2) {
      uint32_t y[OfB][4];
#pragma unroll
      for (int j = 0; j < OfB; ++j) {
        const uint32_t at = shared_address(b[j]);
        if constexpr (TurnB) load_matrices(at + place<Depth>(column + 8 * n + lane / 16 * 8 + lane % 8, k + lane / 8 % 2 * 8), y[j]);
        else load_matrices_transposed(at + place<Columns>(k + lane % 16, column + 8 * n + lane / 16 * 8), y[j]);
      }
#pragma unroll
      for (int m = 0; m < kHigh; ++m)
#pragma unroll
        for (int half = 0; half < 2; ++half) {
          const int at = 4 * (m * kWide + n + half);
          mma(Element{}, &first[at], x[0][m], y[0][2 * half], y[0][2 * half + 1]);
          mma(Element{}, &second[at], x[OfA - 1][m], y[OfB - 1][2 * half], y[OfB - 1][2 * half + 1]);
        }
    }
  }
}

// Results of a product, rounded and packed as pairs, to a tile of 16 bits: pair 2 n + r of a part is that of its elements 2 r and 2 r + 1.
template <int Rows, int Columns, int Down, int Count> ATTN_DEVICE void keep_packed(unsigned char *tile, const uint32_t (&x)[Count]) {
  constexpr int kAcross = kWarps / Down, kHigh = Rows / 16 / Down, kWide = Columns / 8 / kAcross;
  static_assert(Count == 2 * kHigh * kWide);
  const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5;
  const int row = warp / kAcross * (16 * kHigh), column = warp % kAcross * (8 * kWide);
  __syncwarp();
#pragma unroll
  for (int m = 0; m < kHigh; ++m)
#pragma unroll
    for (int n = 0; n < kWide; n += 2) {
      if (n + 1 < kWide) {
        const int at = place<Columns>(row + 16 * m + lane % 16, column + 8 * n + lane / 16 * 8);
        store_matrices(shared_address(tile) + at, &x[2 * (m * kWide + n)]);
      } else {
#pragma unroll
        for (int r = 0; r < 2; ++r) two<Columns>(tile, row + 16 * m + 8 * r + lane / 4, column + 8 * n + lane % 4 * 2) = x[2 * (m * kWide + n) + r];
      }
    }
  __syncwarp();
}

// ---- sums over rows

// out[i] is the sum of rows 0 to i (or, reversed, i to Rows - 1) of a tile whose rows are so far apart.
template <int Rows, int Columns, bool Reverse, typename T> ATTN_DEVICE void running_sums(const T *x, T *out, int stride) {
  for (int column = threadIdx.x; column < Columns; column += kThreads) {
    T sum = 0;
#pragma unroll 8
    for (int n = 0; n < Rows; ++n) {
      const int row = Reverse ? Rows - 1 - n : n;
      sum += x[row * stride + column];
      out[row * stride + column] = sum;
    }
  }
}

// The same of one row: a warp adds up, each lane neighbouring elements.
template <int Length, bool Reverse, typename T> ATTN_DEVICE void running_sum(const T *x, T *out) {
  constexpr int kEach = Length / 32;
  if (threadIdx.x >= 32) return;
  const int lane = threadIdx.x, first = (Reverse ? 31 - lane : lane) * kEach;
  T sums[kEach];
#pragma unroll
  for (int n = 0; n < kEach; ++n) {
    const T own = x[first + (Reverse ? kEach - 1 - n : n)];
    sums[n] = n ? sums[n - 1] + own : own;
  }
  T before = sums[kEach - 1];
#pragma unroll
  for (int step = 1; step < 32; step *= 2) {
    const T other = __shfl_up_sync(0xffffffffu, before, step);
    if (lane >= step) before += other;
  }
  before = __shfl_up_sync(0xffffffffu, before, 1);
#pragma unroll
  for (int n = 0; n < kEach; ++n) out[first + (Reverse ? kEach - 1 - n : n)] = lane ? before + sums[n] : sums[n];
}

} // namespace attn
