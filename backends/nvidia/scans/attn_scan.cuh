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

// ---- systems of a unit triangle

// A triangle from registers, turned round in both directions where it is an upper one; zeros elsewhere.
template <int C, int Down, bool Upper, int Count> ATTN_DEVICE void keep_triangle(const float (&a)[Count], float *tile) {
  constexpr int kAcross = kWarps / Down, kHigh = C / 16 / Down, kWide = C / 8 / kAcross;
  const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5;
#pragma unroll
  for (int m = 0; m < kHigh; ++m)
#pragma unroll
    for (int n = 0; n < kWide; ++n)
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        const int i = (warp / kAcross * kHigh + m) * 16 + e / 2 * 8 + lane / 4, j = (warp % kAcross * kWide + n) * 8 + 2 * (lane % 4) + e % 2;
        const int row = Upper ? C - 1 - i : i, column = Upper ? C - 1 - j : j;
        tile[row * (C + 8) + column] = row > column ? a[4 * (m * kWide + n) + e] : 0.0f;
      }
}
// Four neighbouring elements of sign x a b: `a` is the row of one, `b` begins at their column, its rows `stride` apart.
template <int Size> ATTN_DEVICE void multiply_square(float *to, const float *a, const float *b, int stride, float sign) {
  float sum[4] = {};
#pragma unroll
  for (int k = 0; k < Size; k += 4) {
    const float4 x = *(const float4 *)(a + k);
    const float all[4] = {x.x, x.y, x.z, x.w};
#pragma unroll
    for (int n = 0; n < 4; ++n) {
      const float4 y = *(const float4 *)(b + (k + n) * stride);
      sum[0] += all[n] * y.x;
      sum[1] += all[n] * y.y;
      sum[2] += all[n] * y.z;
      sum[3] += all[n] * y.w;
    }
  }
  *(float4 *)to = {sign * sum[0], sign * sum[1], sign * sum[2], sign * sum[3]};
}
// Of pairs of neighbouring blocks of `Size`, whose inverses are there, the blocks beside them: -T22 A21 T11.
template <int C, int Size> ATTN_DEVICE void join_inverses(float *tile, float *product) {
  constexpr int kStride = C + 8, kShort = Size + 8, kFours = Size / 4, kTasks = C / (2 * Size) * Size * kFours;
#pragma unroll
  for (int turn = 0; turn < 2; ++turn) {
    for (int at = threadIdx.x; at < kTasks; at += kThreads) {
      const int pair = at / (Size * kFours), row = at / kFours % Size, column = at % kFours * 4;
      float *first = tile + 2 * Size * pair * (kStride + 1), *low = first + Size * kStride, *own = product + pair * (Size * kShort);
      if (turn == 0) multiply_square<Size>(own + row * kShort + column, low + row * kStride, first + column, kStride, 1.0f);
      else multiply_square<Size>(low + row * kStride + column, low + Size + row * kStride, own + column, kShort, -1.0f);
    }
    __syncthreads();
  }
}
// The tile, [C, C + 8] of f32, holds a strictly lower triangle A with zeros above, and afterwards (I + A)^-1. Blocks of 16 by substitution, a
// column of the inverse in a lane's registers. `product` is room for C / 2 x (C / 2 + 8) more. All threads come here, and are together at the end.
template <int C> ATTN_DEVICE void invert_triangle(float *tile, float *product) {
  constexpr int kStride = C + 8;
  const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5;
  if (warp < C / 16) {
    float *block = tile + 16 * warp * (kStride + 1);
    const int own = lane & 15;
    float x[16];
#pragma unroll
    for (int r = 0; r < 16; ++r) {
      x[r] = r == own ? 1.0f : 0.0f;
#pragma unroll
      for (int s = 0; s < r; s += 4) {
        const float4 a = *(const float4 *)(block + r * kStride + s);
        const float all[4] = {a.x, a.y, a.z, a.w};
#pragma unroll
        for (int n = 0; n < 4; ++n)
          if (s + n < r) x[r] -= all[n] * x[s + n];
      }
    }
    __syncwarp();
    if (lane < 16) {
#pragma unroll
      for (int r = 0; r < 16; ++r) block[r * kStride + own] = x[r];
    }
  }
  __syncthreads();
  if constexpr (C > 16) join_inverses<C, 16>(tile, product);
  if constexpr (C > 32) join_inverses<C, 32>(tile, product);
  if constexpr (C > 64) join_inverses<C, 64>(tile, product);
}

// What `invert_triangle` left in registers, turned round in both directions where asked for.
template <int C, int Down, bool Upper, int Count> ATTN_DEVICE void take_inverse(const float *tile, float (&x)[Count]) {
  constexpr int kAcross = kWarps / Down, kHigh = C / 16 / Down, kWide = C / 8 / kAcross;
  const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5;
#pragma unroll
  for (int m = 0; m < kHigh; ++m)
#pragma unroll
    for (int n = 0; n < kWide; ++n)
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        const int i = (warp / kAcross * kHigh + m) * 16 + e / 2 * 8 + lane / 4, j = (warp % kAcross * kWide + n) * 8 + 2 * (lane % 4) + e % 2;
        x[4 * (m * kWide + n) + e] = tile[(Upper ? C - 1 - i : i) * (C + 8) + (Upper ? C - 1 - j : j)];
      }
}

// Two neighbouring elements of a tile as pieces of bf16, each the nearest to what those before it leave.
template <int Rows, int Columns, int Pieces> ATTN_DEVICE void keep_pieces(unsigned char *pieces, int row, int column, float (&x)[2]) {
#pragma unroll
  for (int piece = 0; piece < Pieces; ++piece) {
    const uint32_t both = pack(BF16{}, x[0], x[1]);
    two<Columns>(pieces + piece * (2 * Rows * Columns), row, column) = both;
#pragma unroll
    for (int c = 0; c < 2; ++c) x[c] -= wide_of(bfloat_of(both, c));
  }
}
// What `invert_triangle` left, as such pieces; turned round in both directions where asked for.
template <int C, bool Upper, int Pieces> ATTN_DEVICE void cut_inverse(const float *tile, unsigned char *pieces) {
  for (int at = threadIdx.x; at < C * C / 2; at += kThreads) {
    const int row = at / (C / 2), column = at % (C / 2) * 2;
    float x[2];
#pragma unroll
    for (int c = 0; c < 2; ++c) {
      const int i = Upper ? C - 1 - row : row, j = Upper ? C - 1 - column - c : column + c;
      x[c] = tile[i * (C + 8) + j];
    }
    keep_pieces<C, C, Pieces>(pieces, row, column, x);
  }
}
// The same of a product's results.
template <int Rows, int Columns, int Down, int Pieces, int Count> ATTN_DEVICE void cut_results(const float (&from)[Count], unsigned char *pieces) {
  constexpr int kAcross = kWarps / Down, kHigh = Rows / 16 / Down, kWide = Columns / 8 / kAcross;
  const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5;
#pragma unroll
  for (int m = 0; m < kHigh; ++m)
#pragma unroll
    for (int n = 0; n < kWide; ++n)
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        const int row = (warp / kAcross * kHigh + m) * 16 + 8 * r + lane / 4, column = (warp % kAcross * kWide + n) * 8 + 2 * (lane % 4);
        float x[2] = {from[4 * (m * kWide + n) + 2 * r], from[4 * (m * kWide + n) + 2 * r + 1]};
        keep_pieces<Rows, Columns, Pieces>(pieces, row, column, x);
      }
}
// x <- T x of such pieces: six products of three, the smallest first, or three of two, the smallest first at every step of the depth.
template <int C, int Columns, int Down, int Pieces, int Count>
ATTN_DEVICE void multiply_pieces(float (&x)[Count], const unsigned char *inverse, const unsigned char *right) {
  constexpr int kOfInverse = 2 * C * C, kOfRight = 2 * C * Columns;
#pragma unroll
  for (int i = 0; i < Count; ++i) x[i] = 0.0f;
  if constexpr (Pieces == 2) {
    multiply<BF16, C, Columns, C, Down, false, false>(x, {inverse, inverse + kOfInverse}, {right, right + kOfRight}, Pairs<8, 1, 0>{});
  } else {
#pragma unroll 1
    for (int total = 2; total >= 0; --total)
#pragma unroll 1
      for (int piece = total; piece >= 0; --piece)
        multiply<BF16, C, Columns, C, Down, false, false>(x, {inverse + piece * kOfInverse}, {right + (total - piece) * kOfRight}, Pairs<0>{});
  }
}

} // namespace attn
