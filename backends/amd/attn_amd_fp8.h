// 8-bit elements of matrix instructions (gfx942): of "fnuz" types, which have no -0 and no infinities.
#pragma once

namespace attn {

// Four numbers of e4m3fn as those of the "fnuz" type, where the same bits are half as much: -0 becomes 0, and NaN the only byte that is one.
ATTN_DEVICE unsigned halves(unsigned x) {
  const unsigned size = x & 0x7f7f7f7fu, some = (size + 0x7f7f7f7fu) & 0x80808080u, nan = (size + 0x01010101u) & 0x80808080u;
  return (x & (some | 0x7f7f7f7fu) & ~(nan | (nan - (nan >> 7)))) | nan;
}
ATTN_DEVICE Bits2 halves(Bits2 x) { return Bits2{halves(x.x), halves(x.y)}; }

// Rounds two numbers to nearest, as elements 2 `pair` and 2 `pair` + 1 of eight.
ATTN_DEVICE void set_fp8(Bits2 &words, int pair, float a, float b) {
  const int word = pair / 2;
  words[word] = pair % 2 ? __builtin_amdgcn_cvt_pk_fp8_f32(a, b, (int)words[word], true) : __builtin_amdgcn_cvt_pk_fp8_f32(a, b, 0, false);
}
ATTN_DEVICE void set_bf8(Bits2 &words, int pair, float a, float b) {
  const int word = pair / 2;
  words[word] = pair % 2 ? __builtin_amdgcn_cvt_pk_bf8_f32(a, b, (int)words[word], true) : __builtin_amdgcn_cvt_pk_bf8_f32(a, b, 0, false);
}

// A tile in shared memory has rows of `Chunks` swizzled chunks of sixteen elements.
template <int Chunks> ATTN_DEVICE void keep_eight(unsigned char *tile, int row, int column, Bits2 x) {
  *(Bits2 *)(chunk_at<Chunks>(tile, row, column >> 4) + (column & 8)) = x;
}
template <int Chunks> ATTN_DEVICE void keep_four(unsigned char *tile, int row, int column, unsigned x) {
  *(unsigned *)(chunk_at<Chunks>(tile, row, column >> 4) + (column & 12)) = x;
}
// Column `c` of four rows of four elements.
ATTN_DEVICE unsigned byte_column(const unsigned *rows, int c) {
  const unsigned pairs = c / 2 ? 0x07030602u : 0x05010400u;
  const unsigned low = __builtin_amdgcn_perm(rows[1], rows[0], pairs), high = __builtin_amdgcn_perm(rows[3], rows[2], pairs);
  return __builtin_amdgcn_perm(high, low, c % 2 ? 0x07060302u : 0x05040100u);
}
// Eight rows of four columns become four rows of the transpose, eight elements of each.
template <int Chunks> ATTN_DEVICE void keep_transposed(unsigned char *tile, int row, int column, const unsigned *x) {
#pragma unroll
  for (int c = 0; c < 4; ++c) keep_eight<Chunks>(tile, column + c, row, Bits2{byte_column(x, c), byte_column(x + 4, c)});
}

// to += a b for 16 terms: `a` has 32 rows and `b` 32 columns, eight neighbouring terms a lane.
ATTN_DEVICE void multiply_fp8(Float16x &to, Bits2 a, Bits2 b) {
  to = __builtin_amdgcn_mfma_f32_32x32x16_fp8_fp8(bits<long>(a), bits<long>(b), to, 0, 0, 0);
}
ATTN_DEVICE void multiply_bf8(Float16x &to, Bits2 a, Bits2 b) {
  to = __builtin_amdgcn_mfma_f32_32x32x16_bf8_bf8(bits<long>(a), bits<long>(b), to, 0, 0, 0);
}

// As those of 16-bit elements; a chunk has what two instructions take.
template <void (*Multiply)(Float16x &, Bits2, Bits2), int Outputs, int Terms, int Chunks>
ATTN_DEVICE void product_of_bytes(Float16x (&to)[Outputs], const unsigned char *tile, const Bits2 (&b)[Terms]) {
  const int lane = thread() & 63, half = lane >> 5, row = permuted_row(lane & 31);
#pragma unroll
  for (int t = 0; t < Terms; t += 2)
#pragma unroll
    for (int u = 0; u < Outputs; ++u) {
      const Bits4 a = *(const Bits4 *)chunk_at<Chunks>((unsigned char *)tile + u * (512 * Chunks), row, t + half);
      Multiply(to[u], a.xy, b[t]);
      Multiply(to[u], a.zw, b[t + 1]);
    }
}
template <int Outputs, int Terms, int Chunks>
ATTN_DEVICE void product_fp8(Float16x (&to)[Outputs], const unsigned char *tile, const Bits2 (&b)[Terms]) {
  product_of_bytes<multiply_fp8, Outputs, Terms, Chunks>(to, tile, b);
}
template <int Outputs, int Terms, int Chunks>
ATTN_DEVICE void product_bf8(Float16x (&to)[Outputs], const unsigned char *tile, const Bits2 (&b)[Terms]) {
  product_of_bytes<multiply_bf8, Outputs, Terms, Chunks>(to, tile, b);
}

}  // namespace attn
