// Device helpers of chunk scans that solve systems of a unit lower triangle, by its inverse.
#pragma once

namespace attn {

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
// Two numbers as two pieces of bf16.
ATTN_DEVICE void cut_two(float a, float b, uint32_t &high, uint32_t &low) {
  high = pack(BF16{}, a, b);
  low = pack(BF16{}, a - __uint_as_float(high << 16), b - __uint_as_float(high & 0xffff0000u));
}
// sum += a b, [16, 8], of the pieces of a left factor, [16, 16], and of a right one in f32, its rows `stride` apart; the smallest products first.
ATTN_DEVICE void multiply_cut(float (&sum)[4], const uint32_t (&high)[4], const uint32_t (&low)[4], const float *right, int stride) {
  const int lane = threadIdx.x & 31;
  uint32_t first[2], rest[2];
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    const float *at = right + (lane % 4 * 2 + 8 * r) * stride + lane / 4;
    cut_two(at[0], at[stride], first[r], rest[r]);
  }
  mma(BF16{}, sum, low, first[0], first[1]);
  mma(BF16{}, sum, high, rest[0], rest[1]);
  mma(BF16{}, sum, high, first[0], first[1]);
}
// As `join_inverses`, by products of two pieces of bf16 each: a warp has 16 x 16 of a block, and (T22 A21) of its rows in registers.
template <int C, int Size> ATTN_DEVICE void join_by_products(float *tile) {
  constexpr int kStride = C + 8, kParts = Size / 16, kTasks = C / (2 * Size) * kParts * kParts;
  static_assert(kTasks <= kWarps);
  const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5, pair = warp / (kParts * kParts), row = warp / kParts % kParts * 16;
  float *first = tile + 2 * Size * pair * (kStride + 1), *low = first + Size * kStride, *to = low + row * kStride + warp % kParts * 16;
  float sum[2][4] = {};
  if (warp < kTasks) {
    float read[2 * kParts][4] = {};
#pragma unroll
    for (int k = 0; k < kParts; ++k) {
      uint32_t high[4], rest[4];
#pragma unroll
      for (int r = 0; r < 4; ++r) {
        const float *at = low + Size + (row + lane / 4 + r % 2 * 8) * kStride + 16 * k + lane % 4 * 2 + r / 2 * 8;
        cut_two(at[0], at[1], high[r], rest[r]);
      }
#pragma unroll
      for (int n = 0; n < 2 * kParts; ++n) multiply_cut(read[n], high, rest, low + 16 * k * kStride + 8 * n, kStride);
    }
#pragma unroll
    for (int k = 0; k < kParts; ++k) {
      uint32_t high[4], rest[4];
#pragma unroll
      for (int r = 0; r < 4; ++r) cut_two(read[2 * k + r / 2][r % 2 * 2], read[2 * k + r / 2][r % 2 * 2 + 1], high[r], rest[r]);
#pragma unroll
      for (int n = 0; n < 2; ++n) multiply_cut(sum[n], high, rest, first + 16 * k * kStride + warp % kParts * 16 + 8 * n, kStride);
    }
  }
  __syncthreads();
  if (warp < kTasks) {
#pragma unroll
    for (int n = 0; n < 2; ++n)
#pragma unroll
      for (int i = 0; i < 4; ++i) to[(lane / 4 + i / 2 * 8) * kStride + 8 * n + lane % 4 * 2 + i % 2] = -sum[n][i];
  }
  __syncthreads();
}
// How two inverses are joined: products in f32 where a kernel multiplies more than two pieces, and where warps do not suffice.
template <int C, int Size, int Pieces> ATTN_DEVICE void join_blocks(float *tile, float *product) {
  if constexpr (Pieces == 2 && C / (2 * Size) * (Size / 16) * (Size / 16) <= kWarps) join_by_products<C, Size>(tile);
  else join_inverses<C, Size>(tile, product);
}
// The tile, [C, C + 8] of f32, holds a strictly lower triangle A with zeros above, and afterwards (I + A)^-1. Blocks of 16 by substitution, a
// column of the inverse in a lane's registers. `product` is room for C / 2 x (C / 2 + 8) more. All threads come here, and are together at the end.
template <int C, int Pieces> ATTN_DEVICE void invert_triangle(float *tile, float *product) {
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
  if constexpr (C > 16) join_blocks<C, 16, Pieces>(tile, product);
  if constexpr (C > 32) join_blocks<C, 32, Pieces>(tile, product);
  if constexpr (C > 64) join_blocks<C, 64, Pieces>(tile, product);
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

// What `invert_triangle` left as two pieces of bf16, to memory, turned round in both directions where asked for; 16 bytes at a time.
template <int C, bool Upper, class Element>
ATTN_DEVICE void store_inverse(const float *tile, Element *high, long long high_stride, Element *low, long long low_stride, int count) {
#pragma unroll
  for (int piece = threadIdx.x; piece < C * C / 8; piece += kThreads) {
    const int row = piece / (C / 8), column = piece % (C / 8) * 8;
    float x[8];
    const float *at = tile + (Upper ? (C - 1 - row) * (C + 8) + C - 8 - column : row * (C + 8) + column);
#pragma unroll
    for (int n = 0; n < 8; n += 4) {
      const float4 y = *(const float4 *)(at + n);
      const float all[4] = {y.x, y.y, y.z, y.w};
#pragma unroll
      for (int i = 0; i < 4; ++i) x[Upper ? 7 - n - i : n + i] = all[i];
    }
    alignas(16) uint32_t first[4], rest[4];
#pragma unroll
    for (int n = 0; n < 4; ++n) cut_two(x[2 * n], x[2 * n + 1], first[n], rest[n]);
    if (row < count) {
      *(float4 *)(high + row * high_stride + column) = *(const float4 *)first;
      *(float4 *)(low + row * low_stride + column) = *(const float4 *)rest;
    }
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
