// Sums along the columns of a warpgroup's tile, whose lanes have some rows each.
#pragma once

namespace attn {

// The first 2 * kHalf numbers of each lane, summed over two lanes that differ in one bit: each keeps kHalf of the sums.
template <int kHalf> ATTN_DEVICE void share_sums(float (&x)[16], int lane) {
  const bool upper = lane & kHalf * 2;
#pragma unroll
  for (int i = 0; i < kHalf; ++i) {
    const float keep = upper ? x[i + kHalf] : x[i], give = upper ? x[i] : x[i + kHalf];
    x[i] = keep + __shfl_xor_sync(0xffffffffu, give, kHalf * 2);
  }
}

// 16 rows of a warp and 64 columns: the lanes that differ in bits 2 to 4 share them, and each keeps two sums. All is unrolled by hand:
// nvcc keeps an array in local memory that a loop over powers of two indexes.
ATTN_DEVICE void sum_columns(const float (&tile)[32], float *to, int lane) {
  float x[16];
#pragma unroll
  for (int c = 0; c < 8; ++c) {
    x[2 * c] = tile[4 * c] + tile[4 * c + 2];
    x[2 * c + 1] = tile[4 * c + 1] + tile[4 * c + 3];
  }
  share_sums<8>(x, lane);
  share_sums<4>(x, lane);
  share_sums<2>(x, lane);
  const int group = (lane & 16 ? 4 : 0) + (lane & 8 ? 2 : 0) + (lane & 4 ? 1 : 0);
  *reinterpret_cast<float2 *>(to + 8 * group + lane % 4 * 2) = make_float2(x[0], x[1]);
}

// Sums of `Rows` warps, which lie `Columns` numbers apart, to memory: a lane has one column.
template <int Rows, int Columns> ATTN_DEVICE void store_sums(const float *from, float *to, long long stride, int count, int thread) {
  if (thread >= Columns || thread >= count) return;
  float sum = 0.0f;
#pragma unroll
  for (int n = 0; n < Rows; ++n) sum += from[n * Columns + thread];
  to[thread * stride] = sum;
}

// Element (i, j) of a warpgroup's tile goes to place i where i = column + j, a multiple of 8 with all columns of eight.
template <int Columns, int N> ATTN_DEVICE void write_diagonal(const float (&tile)[N], float *to, int column, int warp, int lane) {
#pragma unroll
  for (int c = 0; c < Columns / 8; ++c)
#pragma unroll
    for (int h = 0; h < 2; ++h)
      if (column + 8 * c == 16 * warp + 8 * h && lane / 8 == lane % 4)
        to[16 * warp + 8 * h + lane / 4] = lane / 4 % 2 ? tile[4 * c + 2 * h + 1] : tile[4 * c + 2 * h];
}

}  // namespace attn
