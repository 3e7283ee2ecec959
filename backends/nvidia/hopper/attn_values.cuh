// Device helpers of scans whose columns of v have decays of their own, in blocks of 16 positions.
//
// A warp has 64 columns of a block, each lane two of them. Pairs of the block's positions are added up one by one in f32: v of the earlier
// position decays step by step while it passes the later ones (`Reverse`: the other way round).
#pragma once

namespace attn {

template <bool BFloat> ATTN_DEVICE uint32_t pack_residual_16(uint32_t packed, float low, float high) {
  if constexpr (BFloat) return pack_residual_bf16(packed, low, high);
  return pack_residual_f16(packed, low, high);
}
ATTN_DEVICE float2 fused(float2 a, float2 b, float2 c) { return make_float2(fmaf(a.x, b.x, c.x), fmaf(a.y, b.y, c.y)); }
ATTN_DEVICE float2 both(float a) { return make_float2(a, a); }

constexpr int kBlock = 16, kScoreRow = 80;   // positions; bytes from a position's scores with all others to the next one's

template <bool BFloat, bool Reverse> struct ValueBlock {
  float2 steps[kBlock], sums[kBlock];   // factors of steps; what other positions of the block add

  // Of a swizzle atom of 16 bits: the address of this lane's word of a row.
  ATTN_DEVICE static uint32_t word_of(uint32_t atom, int lane, int row) { return atom + row * 128 + ((lane * 4) ^ (row % 8 * 16)); }
  // Of a tile of f32, 64 columns of v: the address of this lane's two numbers of a row.
  ATTN_DEVICE static uint32_t pair_of(uint32_t tile, int lane, int row) {
    return tile + row * 256 + ((lane / 4) ^ (row / 2 % 4)) * 32 + lane % 4 * 8;
  }
  ATTN_DEVICE static float2 element(uint32_t atom, int lane, int row) { return unpack_16<BFloat>(load_shared_int(word_of(atom, lane, row))); }

  // q k^T of the block, from atoms of 64 columns; in rows of k.
  template <int Depth> ATTN_DEVICE static void scores(uint32_t queries, uint32_t keys, uint32_t to, int lane) {
    float sum[8] = {};
    const int low = lane % 8;
    const uint32_t q = queries + lane % 16 * 128, k = keys + (lane / 16 * 8 + low) * 128;
#pragma unroll
    for (int n = 0; n < Depth / 16; ++n) {
      uint32_t a[4], b[4];
      load_matrices(q + n / 4 * (kBlock * 128) + ((n % 4 * 2 + lane / 16) ^ low) * 16, a);
      load_matrices(k + n / 4 * (kBlock * 128) + ((n % 4 * 2 + lane / 8 % 2) ^ low) * 16, b);
      multiply_16x8<BFloat>(sum, a, b[0], b[1]);
      multiply_16x8<BFloat>(sum + 4, a, b[2], b[3]);
    }
#pragma unroll
    for (int c = 0; c < 2; ++c)
#pragma unroll
      for (int h = 0; h < 2; ++h)
#pragma unroll
        for (int e = 0; e < 2; ++e) store_shared(to + (8 * c + lane % 4 * 2 + e) * kScoreRow + (lane / 4 + 8 * h) * 4, sum[4 * c + 2 * h + e]);
    warp_sync();
  }

  // Rows of a swizzle atom from `count` on are 0.
  ATTN_DEVICE static void cut(uint32_t atom, int count, int lane) {
    for (int r = count; r < kBlock; ++r) store_shared_int(word_of(atom, lane, r), 0);
  }

  // v times its decays on the way out of the block, rounded, and what rounding leaves out; the product of all steps.
  ATTN_DEVICE void enter(uint32_t values, uint32_t whole, uint32_t residual, uint32_t chunk_decay, int lane) const {
    float2 passed = both(1.0f);
#pragma unroll
    for (int i = 0; i < kBlock; ++i) {
      const int s = Reverse ? i : kBlock - 1 - i;
      if (Reverse) passed = passed * steps[s];
      const float2 x = element(values, lane, s) * passed;
      const uint32_t word = pack_16<BFloat>(x.x, x.y);
      store_shared_int(word_of(whole, lane, s), static_cast<int>(word));
      store_shared_int(word_of(residual, lane, s), static_cast<int>(pack_residual_16<BFloat>(word, x.x, x.y)));
      if (!Reverse) passed = passed * steps[s];
    }
    store_shared2(chunk_decay + 8 * lane, passed.x, passed.y);
  }

  ATTN_DEVICE void add_pairs(uint32_t values, uint32_t scores, int lane) {
#pragma unroll
    for (int t = 0; t < kBlock; ++t) sums[t] = both(0.0f);
#pragma unroll
    for (int s = 0; s < kBlock; ++s) {
      int4 four;
      float2 x = element(values, lane, s);
#pragma unroll
      for (int i = 1; i < kBlock; ++i) {
        const int t = Reverse ? s - i : s + i;
        if (t < 0 || t >= kBlock) continue;
        if (i == 1 || t % 4 == (Reverse ? 3 : 0)) four = load_shared_int4(scores + s * kScoreRow + t / 4 * 16);
        const int score = t % 4 == 0 ? four.x : t % 4 == 1 ? four.y : t % 4 == 2 ? four.z : four.w;
        x = x * steps[Reverse ? t + 1 : t];
        sums[t] = fused(both(__int_as_float(score)), x, sums[t]);
      }
    }
  }

  // Adds what positions outside of the block give: `outside`, before the block's own steps.
  ATTN_DEVICE void add_outside(uint32_t outside, int lane) {
    float2 passed = both(1.0f);
#pragma unroll
    for (int i = 0; i < kBlock; ++i) {
      const int t = Reverse ? kBlock - 1 - i : i;
      if (!Reverse) passed = passed * steps[t];
      sums[t] = fused(load_shared2(pair_of(outside, lane, t)), passed, sums[t]);
      if (Reverse) passed = passed * steps[t];
    }
  }

  // A row of what others give, times a factor, and with what its position gives to itself.
  ATTN_DEVICE float2 product(uint32_t factors, int lane, int row) const { return sums[row] * element(factors, lane, row); }
  ATTN_DEVICE float2 whole(uint32_t values, uint32_t scores, int lane, int row) const {
    return fused(both(load_shared(scores + row * (kScoreRow + 4))), element(values, lane, row), sums[row]);
  }
};

} // namespace attn
