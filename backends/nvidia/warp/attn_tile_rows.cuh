// Tiles whose rows are not all there: zeros in shared memory, rows that go to memory.
#pragma once

namespace attn {

// Zeros for the rows from `first` on of a tile of Atoms swizzle atoms of 128 bytes, kAtom bytes apart; a warp has a quarter of the rows.
template <int Rows, int Atoms, int kAtom> ATTN_DEVICE void clear_rows(uint32_t tile, int first, int warp, int lane) {
#pragma unroll 1
  for (int row = max(warp * (Rows / 4), first) + lane / 8; row < (warp + 1) * (Rows / 4); row += 4)
#pragma unroll
    for (int n = 0; n < Atoms; ++n) store_shared_int4(tile + n * kAtom + swizzle_128(row * 128 + lane % 8 * 16), 0, 0, 0, 0);
}

// The first `count` rows of a tile of one swizzle atom of 128 bytes go to rows in memory; a warp has a quarter of them.
template <int Rows, typename T>
ATTN_DEVICE void store_lanes(uint32_t tile, T *first, long long stride, int count, int warp, int lane) {
#pragma unroll 1
  for (int row = warp * (Rows / 4) + lane / 8; row < min((warp + 1) * (Rows / 4), count); row += 4)
    *reinterpret_cast<int4 *>(first + row * stride + lane % 8 * 8) = load_shared_int4(tile + swizzle_128(row * 128 + lane % 8 * 16));
}

// The rows of a warpgroup's tile that exist, from `row` on; neighbours at once where they lie side by side.
template <int Columns, int N>
ATTN_DEVICE void store_tile(const float (&tile)[N], float *first, long long down, long long along, int row, int size, int warp, int lane) {
#pragma unroll
  for (int h = 0; h < 2; ++h) {
    const int at = row + 16 * warp + 8 * h + lane / 4;
    if (at < 0 || at >= size) continue;
    float *const to = first + at * down + lane % 4 * 2 * along;
    const bool together = along == 1 && reinterpret_cast<uintptr_t>(to) % 8 == 0;
#pragma unroll
    for (int c = 0; c < Columns / 8; ++c) {
      const float even = tile[4 * c + 2 * h], odd = tile[4 * c + 2 * h + 1];
      if (together) *reinterpret_cast<float2 *>(to + 8 * c) = make_float2(even, odd);
      else to[8 * c * along] = even, to[(8 * c + 1) * along] = odd;
    }
  }
}

}  // namespace attn
