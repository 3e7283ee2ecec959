// What kernels that scan over chunks (linear attention) are made of besides attn_amd.h.
//
// A thread block is four waves. Tiles are results of matrix products in registers ("blocks" of 32 x 32 or 16 x 16 elements, shared out
// to the waves), or pieces of loaded tiles in registers of the threads; what a product takes lies in shared memory, as rows of swizzled
// chunks of 16 bytes (see `chunk_in`): those of the tile, or of its transpose. Elements have 16 bits, or are f32.
#pragma once

namespace attn {

typedef unsigned short Halves4 __attribute__((ext_vector_type(4)));
typedef unsigned short Halves8 __attribute__((ext_vector_type(8)));
typedef unsigned short Halves16 __attribute__((ext_vector_type(16)));
typedef float Float8 __attribute__((ext_vector_type(8)));
typedef double Double4 __attribute__((ext_vector_type(4)));
typedef double Double8 __attribute__((ext_vector_type(8)));

// Registers that can be copied as a whole.
template <typename T, int Count> struct Array {
  T x[Count];
  __device__ __forceinline__ T &operator[](int i) { return x[i]; }
  __device__ __forceinline__ const T &operator[](int i) const { return x[i]; }
};

// The place of a chunk of 16 bytes in its row of shared memory: eight rows that are read together (0 to 3 and 16 to 19, or 0 to 7), or
// written together (every fourth), use different banks. Rows of 4 (2) chunks share a line of all banks by two (four).
template <int Chunks> ATTN_DEVICE int place_of(int row, int chunk) {
  if constexpr (Chunks % 8 == 0) return chunk ^ (row & 7) ^ (row >> 2 & 6) ^ (row >> 4 & 1);
  if constexpr (Chunks % 4 == 0) return chunk ^ ((row >> 1 ^ row >> 3) & 3);
  static_assert(Chunks % 2 == 0);
  return chunk ^ ((row >> 2 ^ row >> 4) & 1);
}
// Eight neighbouring 16-bit elements of a row, from a multiple of eight on, or four of f32.
template <int Chunks> ATTN_DEVICE unsigned char *chunk_in(unsigned char *tile, int row, int chunk) {
  return tile + row * (16 * Chunks) + (place_of<Chunks>(row, chunk) << 4);
}

// What a lane has of a block: `kLength` neighbouring elements of one row (or column), which is number `own()` of the block; the first of them
// is number `first()`.
template <int Size> struct Block;
template <> struct Block<32> {
  typedef Float16x Floats;
  typedef Halves16 Halves;
  static constexpr int kLength = 16;
  static __device__ __forceinline__ int own() { return permuted_row(thread() & 31); }
  static __device__ __forceinline__ int first() { return (thread() & 32) >> 1; }
};
template <> struct Block<16> {
  typedef Float4 Floats;
  typedef Halves4 Halves;
  static constexpr int kLength = 4;
  static __device__ __forceinline__ int own() { return thread() & 15; }
  static __device__ __forceinline__ int first() { return (thread() & 63) >> 4 << 2; }
};

// What the lanes of a wave have written to shared memory can be read by all lanes of it.
ATTN_DEVICE void wave_barrier() {
  __builtin_amdgcn_fence(__ATOMIC_RELEASE, "wavefront");
  __builtin_amdgcn_wave_barrier();
  __builtin_amdgcn_fence(__ATOMIC_ACQUIRE, "wavefront");
}
// The value of one lane, the same number in all.
ATTN_DEVICE float of_lane(float x, int lane) { return bits<float>(__builtin_amdgcn_readlane(bits<int>(x), lane)); }
ATTN_DEVICE double of_lane(double x, int lane) {
  const Bits2 words = bits<Bits2>(x);
  const unsigned low = __builtin_amdgcn_readlane((int)words.x, lane), high = __builtin_amdgcn_readlane((int)words.y, lane);
  return bits<double>(Bits2{low, high});
}

template <int Control> ATTN_DEVICE float with_neighbour(float x) {
  return x + bits<float>(__builtin_amdgcn_mov_dpp(bits<int>(x), Control, 15, 15, true));
}
template <int Control> ATTN_DEVICE double with_neighbour(double x) {
  const Bits2 words = bits<Bits2>(x);
  const unsigned low = __builtin_amdgcn_mov_dpp((int)words.x, Control, 15, 15, true);
  const unsigned high = __builtin_amdgcn_mov_dpp((int)words.y, Control, 15, 15, true);
  return x + bits<double>(Bits2{low, high});
}
// The sum over Count neighbouring lanes, in all of them.
template <int Count> ATTN_DEVICE float sum_of_neighbours(float x) {
  if constexpr (Count > 1) x = with_neighbour<0xb1>(x);   // lanes 0 and 1, 2 and 3
  if constexpr (Count > 2) x = with_neighbour<0x4e>(x);   // pairs of four
  if constexpr (Count > 4) x = with_neighbour<0x141>(x);  // halves of eight
  if constexpr (Count > 8) x = with_neighbour<0x140>(x);  // halves of sixteen
#pragma unroll
  for (int step = 16; step < Count; step *= 2) x += from_lane(x, (thread() & 63) ^ step);
  return x;
}

// Sums of lanes 0 to `lane` (or, reversed, `lane` to Count - 1).
template <int Count, bool Reverse, typename T> ATTN_DEVICE T wave_cumsum(T x) {
  const int lane = thread() & 63;
  if constexpr (Reverse && Count < 64) x = lane < Count ? x : 0.0f;
  constexpr int kShift = Reverse ? 0x100 : 0x110;  // from later lanes, or earlier ones, of the same sixteen; zero where there is none
  x = with_neighbour<kShift + 1>(x);
  x = with_neighbour<kShift + 2>(x);
  x = with_neighbour<kShift + 4>(x);
  x = with_neighbour<kShift + 8>(x);
  constexpr int kEnd = (Count + 15) / 16 * 16;
  T before = 0.0f, sum = 0.0f;
#pragma unroll
  for (int row = 1; row < (Count + 15) / 16; ++row) {
    before += of_lane(x, Reverse ? kEnd - 16 * row : 16 * row - 1);
    if (Reverse ? lane < kEnd - 16 * row : lane >= 16 * row) sum = before;
  }
  return x + sum;
}

// The same of Count rows in several registers of a lane.
template <int Parts, int Count, bool Reverse, typename T> ATTN_DEVICE Array<T, Parts> wave_cumsum(const Array<T, Parts> &x) {
  Array<T, Parts> sums;
  T before = 0.0f;
#pragma unroll
  for (int m = 0; m < Parts; ++m) {
    const int n = Reverse ? Parts - 1 - m : m;
    const T mine = (thread() & 63) + 64 * n < Count ? x[n] : 0.0f;
    sums[n] = wave_cumsum<64, Reverse>(mine) + before;
    before = of_lane(sums[n], Reverse ? 0 : 63);
  }
  return sums;
}

// ---- matrix products

template <typename T> constexpr bool kIsHalf = false;
template <> constexpr bool kIsHalf<__half> = true;
template <typename T> constexpr bool kIsFloat = false;
template <> constexpr bool kIsFloat<float> = true;

// Of f32 an instruction takes one term of a lane: its four, one after another, are the terms of four instructions.
template <typename T> ATTN_DEVICE void multiply_block(Float16x &to, Bits4 a, Bits4 b) {
  if constexpr (kIsFloat<T>) {
#pragma unroll
    for (int i = 0; i < 4; ++i) to = __builtin_amdgcn_mfma_f32_32x32x2f32(bits<Float4>(a)[i], bits<Float4>(b)[i], to, 0, 0, 0);
  } else if constexpr (kIsHalf<T>) {
    multiply_f16(to, a, b);
  } else {
    multiply_bf16(to, a, b);
  }
}
template <typename T> ATTN_DEVICE void multiply_quarter(Float4 &to, Bits2 a, Bits2 b) {
  if constexpr (kIsHalf<T>) to = __builtin_amdgcn_mfma_f32_16x16x16f16(bits<Half4>(a), bits<Half4>(b), to, 0, 0, 0);
  else to = __builtin_amdgcn_mfma_f32_16x16x16bf16_1k(bits<Short4>(a), bits<Short4>(b), to, 0, 0, 0);
}
template <typename T> ATTN_DEVICE void multiply_block(Float4 &to, Bits4 a, Bits4 b) {
  if constexpr (kIsFloat<T>) {
#pragma unroll
    for (int i = 0; i < 4; ++i) to = __builtin_amdgcn_mfma_f32_16x16x4f32(bits<Float4>(a)[i], bits<Float4>(b)[i], to, 0, 0, 0);
  } else {
    multiply_quarter<T>(to, a.xy, b.xy);
    multiply_quarter<T>(to, a.zw, b.zw);
  }
}

// to += a b^T, where the rows of `a` belong to the lanes, and those of `b` to the elements of a lane. `a` and `b` lie in shared memory, with
// rows of Chunks chunks. The wave has A x B blocks: number m StrideA + n StrideB of `to` is made of the Size rows of `a` from `a_row` + Size m
// on, and of those of `b` from `b_row` + Size n on.
template <typename T, int Size, int Terms, int A, int B, int StrideA, int StrideB, int Chunks, int Count>
ATTN_DEVICE void multiply(Array<typename Block<Size>::Floats, Count> &to, const unsigned char *a, int a_row, const unsigned char *b, int b_row) {
  const int own = Block<Size>::own(), lane = thread() & 63;
  if constexpr (Size == 16 && Terms == 16 && !kIsFloat<T>) {
    Bits2 x[A], y[B];
#pragma unroll
    for (int m = 0; m < A; ++m)
      x[m] = *(const Bits2 *)(chunk_in<Chunks>((unsigned char *)a, a_row + Size * m + own, lane >> 5) + (lane & 16) / 2);
#pragma unroll
    for (int n = 0; n < B; ++n)
      y[n] = *(const Bits2 *)(chunk_in<Chunks>((unsigned char *)b, b_row + Size * n + own, lane >> 5) + (lane & 16) / 2);
#pragma unroll
    for (int m = 0; m < A; ++m)
#pragma unroll
      for (int n = 0; n < B; ++n) multiply_quarter<T>(to[m * StrideA + n * StrideB], y[n], x[m]);
  } else {
    constexpr int kOfChunk = kIsFloat<T> ? 4 : 8, kTogether = kOfChunk * (64 / Size);  // terms
    static_assert(Terms % kTogether == 0);
#pragma unroll
    for (int t = 0; t < Terms; t += kTogether) {
      const int chunk = t / kOfChunk + lane / Size;
      Bits4 x[A], y[B];
#pragma unroll
      for (int m = 0; m < A; ++m) x[m] = *(const Bits4 *)chunk_in<Chunks>((unsigned char *)a, a_row + Size * m + own, chunk);
#pragma unroll
      for (int n = 0; n < B; ++n) y[n] = *(const Bits4 *)chunk_in<Chunks>((unsigned char *)b, b_row + Size * n + own, chunk);
#pragma unroll
      for (int m = 0; m < A; ++m)
#pragma unroll
        for (int n = 0; n < B; ++n) multiply_block<T>(to[m * StrideA + n * StrideB], y[n], x[m]);
    }
  }
}

// ---- systems of a unit triangle, of f32

// The diagonal blocks, 16 x 16, of a strictly lower (or upper) triangle of C rows become the inverses of themselves and the unit matrix. The
// tile lies in shared memory with rows of Chunks chunks. A wave has every fourth block, a lane one row of an inverse, in registers.
template <int C, bool Upper, int Chunks> ATTN_DEVICE void invert_diagonal(unsigned char *tile) {
  const int own = thread() & 15;
  for (int block = uniform(thread() >> 6); block < C / 16; block += 4) {
    float row[16];
#pragma unroll
    for (int e = 0; e < 16; ++e) row[e] = e == own ? 1.0f : 0.0f;
#pragma unroll
    for (int n = 15; n > 0; --n) {  // element s of the row is whole: what it takes from the others
      const int s = Upper ? 15 - n : n;
#pragma unroll
      for (int e = 0; e < 16; e += 4) {
        const Float4 of = *(const Float4 *)chunk_in<Chunks>(tile, 16 * block + s, 4 * block + e / 4);
#pragma unroll
        for (int i = 0; i < 4; ++i)
          if (Upper ? e + i > s : e + i < s) row[e + i] -= row[s] * of[i];
      }
    }
    wave_barrier();
    if ((thread() & 48) == 0) {
#pragma unroll
      for (int e = 0; e < 16; e += 4)
        *(Float4 *)chunk_in<Chunks>(tile, 16 * block + own, 4 * block + e / 4) = Float4{row[e], row[e + 1], row[e + 2], row[e + 3]};
    }
  }
}
// x <- X with (I + A) X = x, where `tile` is A after `invert_diagonal`. A wave has Wide blocks of 16 columns, a lane one column of each: what a
// product leaves in registers is what the next one takes. Block number n of rows from above, and m of columns, is x[Wide n + m].
template <int C, bool Upper, int Chunks, int Wide, int Count> ATTN_DEVICE void solve_unit(Array<Float4, Count> &x, const unsigned char *tile) {
  constexpr int kBlocks = C / 16;
  static_assert(Count == kBlocks * Wide);
  const int own = thread() & 15, part = (thread() & 63) >> 4;
#pragma unroll
  for (int turn = 0; turn < kBlocks; ++turn) {
    const int i = Upper ? kBlocks - 1 - turn : turn;
#pragma unroll
    for (int before = 0; before < turn; ++before) {
      const int s = Upper ? kBlocks - 1 - before : before;
      const Float4 a = -*(const Float4 *)chunk_in<Chunks>((unsigned char *)tile, 16 * i + own, 4 * s + part);
#pragma unroll
      for (int m = 0; m < Wide; ++m) multiply_block<float>(x[Wide * i + m], bits<Bits4>(a), bits<Bits4>(x[Wide * s + m]));
    }
    const Bits4 inverse = *(const Bits4 *)chunk_in<Chunks>((unsigned char *)tile, 16 * i + own, 4 * i + part);
#pragma unroll
    for (int m = 0; m < Wide; ++m) {
      const Bits4 right = bits<Bits4>(x[Wide * i + m]);
      x[Wide * i + m] = (Float4)(0.0f);
      multiply_block<float>(x[Wide * i + m], inverse, right);
    }
  }
}

// What products leave of a number in f16, of which those of gfx90a take what is below 2^-14 as zero: 2^11 times as large, the smallest parts
// count, too.
ATTN_DEVICE unsigned short residual_f16(float x) {
#ifdef __gfx942__
  const float taken = (float)(__half)x;
#else
  const float taken = __builtin_fabsf((float)(__half)x) < 0x1p-14f ? 0.0f : (float)(__half)x;
#endif
  return bits<unsigned short>((__half)((x - taken) * 2048.0f));
}
// `round_bf16` without comparisons; numbers that are none stay so, some with another sign.
ATTN_DEVICE unsigned short near_bf16(float x) {
  return __builtin_elementwise_add_sat(bits<unsigned>(x), 0x7fffu + (bits<unsigned>(x) >> 16 & 1)) >> 16;
}

// ---- shared memory

// An element of a tile.
template <int Chunks> ATTN_DEVICE unsigned short half_at(const unsigned char *tile, int row, int column) {
  return *(const unsigned short *)(chunk_in<Chunks>((unsigned char *)tile, row, column >> 3) + 2 * (column & 7));
}
template <int Chunks> ATTN_DEVICE float float_at(const unsigned char *tile, int row, int column) {
  return *(const float *)(chunk_in<Chunks>((unsigned char *)tile, row, column >> 2) + 4 * (column & 3));
}
// Neighbouring elements of a row, from a multiple of as many on.
template <int Chunks> ATTN_DEVICE void keep_single(unsigned char *tile, int row, int column, unsigned short x) {
  *(unsigned short *)(chunk_in<Chunks>(tile, row, column >> 3) + 2 * (column & 7)) = x;
}
template <int Chunks> ATTN_DEVICE void keep_halves(unsigned char *tile, int row, int column, Halves4 x) {
  *(Halves4 *)(chunk_in<Chunks>(tile, row, column >> 3) + 2 * (column & 4)) = x;
}
template <int Chunks> ATTN_DEVICE void keep_halves(unsigned char *tile, int row, int column, Halves8 x) {
  *(Halves8 *)chunk_in<Chunks>(tile, row, column >> 3) = x;
}
template <int Chunks> ATTN_DEVICE void keep_halves(unsigned char *tile, int row, int column, Halves16 x) {
  keep_halves<Chunks>(tile, row, column, (Halves8)x.lo);
  keep_halves<Chunks>(tile, row, column + 8, (Halves8)x.hi);
}
template <int Chunks> ATTN_DEVICE void keep_single(unsigned char *tile, int row, int column, float x) {
  *(float *)(chunk_in<Chunks>(tile, row, column >> 2) + 4 * (column & 3)) = x;
}
template <int Chunks, typename Vector> ATTN_DEVICE void keep_floats(unsigned char *tile, int row, int column, Vector x) {
#pragma unroll
  for (int e = 0; e < (int)sizeof(Vector) / 4; e += 4)
    *(Float4 *)chunk_in<Chunks>(tile, row, (column + e) >> 2) = Float4{x[e], x[e + 1], x[e + 2], x[e + 3]};
}
// Eight rows of four columns, as four rows of the transpose.
template <int Chunks> ATTN_DEVICE void keep_patch(unsigned char *tile, int row, int column, const Float4 *x) {
#pragma unroll
  for (int c = 0; c < 4; ++c)
    keep_floats<Chunks>(tile, column + c, row, Float8{x[0][c], x[1][c], x[2][c], x[3][c], x[4][c], x[5][c], x[6][c], x[7][c]});
}
template <int Chunks> ATTN_DEVICE void keep_patch(unsigned char *tile, int row, int column, const Halves4 *x) {
#pragma unroll
  for (int c = 0; c < 4; ++c) *(Bits4 *)chunk_in<Chunks>(tile, column + c, row >> 3) = column_of(x, c);
}

// ---- global memory

// Four, or eight, elements of f32 of a row; see `load_eight`.
template <int Align, int Columns, int Padded> ATTN_DEVICE Float4 load_floats_4(Rows rows, int row, int column) {
  if constexpr (Align >= 4) return bits<Float4>(load_16(rows, Columns == Padded || column < Columns ? 4 * (row + column) : kOutside));
  Float4 x;
#pragma unroll
  for (int i = 0; i < 4; ++i) x[i] = bits<float>(load_4(rows, column + i < Columns ? 4 * (row + column + i) : kOutside));
  return x;
}
template <int Align, int Columns, int Padded> ATTN_DEVICE Float8 load_floats_8(Rows rows, int row, int column) {
  const Float4 low = load_floats_4<Align, Columns, Padded>(rows, row, column);
  const Float4 high = load_floats_4<Align, Columns, Padded>(rows, row, column + 4);
  return Float8{low.x, low.y, low.z, low.w, high.x, high.y, high.z, high.w};
}

// ---- results

// Neighbouring elements of a row of `Columns` columns, whose start is a multiple of `Align` elements.
template <int Align, int Columns, typename Vector> ATTN_DEVICE void store_halves(unsigned short *row, int column, Vector x) {
  constexpr int kCount = sizeof(Vector) / 2;
#pragma unroll
  for (int e = 0; e < kCount; e += 4) {
    if constexpr (Align >= 4) {
      const Halves4 four = {x[e], x[e + 1], x[e + 2], x[e + 3]};
      if (column + e < Columns) *(Halves4 *)(row + column + e) = four;
    } else {
#pragma unroll
      for (int i = 0; i < 4; ++i)
        if (column + e + i < Columns) row[column + e + i] = x[e + i];
    }
  }
}
template <int Align, int Columns, typename Vector> ATTN_DEVICE void store_floats(float *row, int column, Vector x) {
  constexpr int kCount = sizeof(Vector) / 4;
#pragma unroll
  for (int e = 0; e < kCount; e += 4) {
    if constexpr (Align >= 4) {
      const Float4 four = {x[e], x[e + 1], x[e + 2], x[e + 3]};
      if (column + e < Columns) *(Float4 *)(row + column + e) = four;
    } else {
#pragma unroll
      for (int i = 0; i < 4; ++i)
        if (column + e + i < Columns) row[column + e + i] = x[e + i];
    }
  }
}

}  // namespace attn
