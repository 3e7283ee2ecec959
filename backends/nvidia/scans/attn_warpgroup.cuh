// Device helpers of chunk scans whose products warpgroups make: tiles in atoms of 64 columns, and tiles in registers the other way round.
//
// Element 4 n + 2 r + c of a thread is row 8 n + 2 (lane % 4) + c, column 16 warp + 8 r + lane / 4 of such a tile; of 16 bits, pair 2 n + r has
// both elements c, as a product's factor in registers has them. The first kWarps warps help; `warp` counts the others.
#pragma once

namespace attn {

// The byte of an element of a tile of 16 bits: atoms of 64 columns one after another, chunks of 16 bytes permuted within a row.
template <int Rows, int Columns> ATTN_DEVICE int atom_place(int row, int column) {
  if constexpr (Columns % 64 == 0) return column / 64 * (Rows * 128) + row * 128 + (((column >> 3 ^ row) & 7) << 4 | (column & 7) << 1);
  else return place<Columns>(row, column);
}

// What rounding two numbers leaves of them, times a power of two, rounded.
ATTN_DEVICE uint32_t residual(BF16 kind, float a, float b, float scale) {
  const uint32_t both = pack(kind, a, b);
  return pack(kind, scale * (a - __uint_as_float(both << 16)), scale * (b - __uint_as_float(both & 0xffff0000u)));
}
ATTN_DEVICE uint32_t residual(F16 kind, float a, float b, float scale) {
  const uint32_t both = pack(kind, a, b);
  return pack(kind, scale * (a - as_float(half_of(both, 0))), scale * (b - as_float(half_of(both, 1))));
}

// Rows from memory to a tile, 16 bytes at a time; rows past the last one repeat it.
template <int Rows, int Columns, class Element>
ATTN_DEVICE void copy_atoms(unsigned char *tile, const Element *from, long long stride, int count) {
  constexpr int kAcross = Columns / 8;
  if constexpr (kSameColumns<Rows, Columns, 8>) {
    if (count >= Rows) {
      constexpr int kStep = kThreads / kAcross;
      const int first = threadIdx.x / kAcross, column = threadIdx.x % kAcross * 8;
      const Element *at = from + first * stride + column;
#pragma unroll
      for (int n = 0; n < Rows; n += kStep, at += kStep * stride) copy_16(tile + atom_place<Rows, Columns>(first + n, column), at);
      return;
    }
  }
#pragma unroll 1
  for (int piece = threadIdx.x; piece < Rows * kAcross; piece += kThreads) {
    const int row = piece / kAcross, column = piece % kAcross * 8;
    copy_16(tile + atom_place<Rows, Columns>(row, column), from + min(row, count - 1) * stride + column);
  }
}

// Rows of f32 from memory to two tiles: what rounding makes of them, and the residuals, rounded; rows past the last one are zeros. All loads of
// a thread are on their way before the first is used.
template <int Rows, int Columns>
ATTN_DEVICE void copy_pieces(unsigned char *whole, unsigned char *left, const float *from, long long stride, int count) {
  constexpr int kAcross = Columns / 8, kPieces = Rows * kAcross / kThreads, kAtOnce = kPieces < 16 ? kPieces : 16;
  static_assert(Rows * kAcross % kThreads == 0 && kPieces % kAtOnce == 0, "threads share rows");
#pragma unroll 1
  for (int begin = 0; begin < kPieces; begin += kAtOnce) {
    float4 x[kAtOnce][2];
#pragma unroll
    for (int n = 0; n < kAtOnce; ++n) {
      const int piece = (begin + n) * kThreads + threadIdx.x, row = piece / kAcross, column = piece % kAcross * 8;
      const float4 *at = (const float4 *)(from + row * stride + column);
      x[n][0] = row < count ? at[0] : make_float4(0.0f, 0.0f, 0.0f, 0.0f);
      x[n][1] = row < count ? at[1] : make_float4(0.0f, 0.0f, 0.0f, 0.0f);
    }
#pragma unroll
    for (int n = 0; n < kAtOnce; ++n) {
      const int piece = (begin + n) * kThreads + threadIdx.x, place = atom_place<Rows, Columns>(piece / kAcross, piece % kAcross * 8);
      const float4 a = x[n][0], b = x[n][1];
      const BF16 kind{};
      *(uint4 *)(whole + place) = uint4{pack(kind, a.x, a.y), pack(kind, a.z, a.w), pack(kind, b.x, b.y), pack(kind, b.z, b.w)};
      *(uint4 *)(left + place) =
          uint4{residual(kind, a.x, a.y, 1.0f), residual(kind, a.z, a.w, 1.0f), residual(kind, b.x, b.y, 1.0f), residual(kind, b.z, b.w, 1.0f)};
    }
  }
}

// A tile to registers.
template <int Rows, int Columns> ATTN_DEVICE void load_turned(const unsigned char *tile, uint32_t (&x)[Rows / 2]) {
  const int lane = threadIdx.x & 31, warp = (threadIdx.x >> 5) - kWarps;
#pragma unroll
  for (int n = 0; n < Rows / 8; n += 2) {
    uint32_t m[4];
    load_matrices_transposed(shared_address(tile) + atom_place<Rows, Columns>(8 * n + lane / 16 * 8 + lane % 8, 16 * warp + lane / 8 % 2 * 8), m);
#pragma unroll
    for (int i = 0; i < 4; ++i) x[2 * n + i] = m[i];
  }
}

// Registers to a tile, rounded.
template <class Kind, int Rows, int Columns> ATTN_DEVICE void keep_turned(unsigned char *tile, const float (&x)[Rows / 2]) {
  const int lane = threadIdx.x & 31, warp = (threadIdx.x >> 5) - kWarps;
#pragma unroll
  for (int n = 0; n < Rows / 8; n += 2) {
    uint32_t m[4];
#pragma unroll
    for (int i = 0; i < 4; ++i) m[i] = pack(Kind{}, x[4 * n + 2 * i], x[4 * n + 2 * i + 1]);
    const int row = 8 * n + lane / 16 * 8 + lane % 8, column = 16 * warp + lane / 8 % 2 * 8;
    store_matrices_transposed(shared_address(tile) + atom_place<Rows, Columns>(row, column), m);
  }
}

// A tile to the rows of memory that exist, by the warps that help.
template <int Rows, int Columns, class Element> ATTN_DEVICE void store_atoms(const unsigned char *tile, Element *to, long long stride, int count) {
  constexpr int kAcross = Columns / 8;
#pragma unroll
  for (int piece = threadIdx.x; piece < Rows * kAcross; piece += kThreads) {
    const int row = piece / kAcross, column = piece % kAcross * 8;
    if (row < count) *(float4 *)(to + row * stride + column) = *(const float4 *)(tile + atom_place<Rows, Columns>(row, column));
  }
}

} // namespace attn
