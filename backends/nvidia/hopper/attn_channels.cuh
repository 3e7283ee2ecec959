// Device helpers of scans over chunks of 64 positions whose key channels have decays of their own: factors of tiles, weights of pairs.
//
// Of two positions of a chunk one is "late", the other "early": what the late one gets of the early one decays by the steps behind the early
// one up to and with the late one. Positions that first differ in bit h of their numbers lie in neighbouring blocks of h, and their weight is
// that from the early one to the end of its block times that from there to the late one. So for each level h there is one tile: rows of late
// blocks hold the late operand times its factor, rows of early blocks the early one times its own, and products of its rows are the pairs.
// All factors are products of those of steps, which are at most 1.
#pragma once

namespace attn {

template <bool BFloat> ATTN_DEVICE uint32_t pack_16(float low, float high) {
  if constexpr (BFloat) return pack_bf16(low, high);
  return pack_f16(low, high);
}
template <bool BFloat> ATTN_DEVICE float2 unpack_16(uint32_t word) {
  if constexpr (BFloat) return unpack_bf16(word);
  return unpack_f16(word);
}
ATTN_DEVICE float2 operator*(float2 a, float2 b) { return make_float2(a.x * b.x, a.y * b.y); }

// Two matrices, at the addresses of lanes 0 to 15, as they are or transposed.
template <bool Transposed> ATTN_DEVICE void store_two_matrices(uint32_t address, uint32_t a, uint32_t b) {
  if constexpr (Transposed)
    asm volatile("stmatrix.sync.aligned.m8n8.x2.trans.shared.b16 [%0], {%1, %2};" ::"r"(address), "r"(a), "r"(b) : "memory");
  else
    asm volatile("stmatrix.sync.aligned.m8n8.x2.shared.b16 [%0], {%1, %2};" ::"r"(address), "r"(a), "r"(b) : "memory");
}

constexpr int kAtomBytes = 64 * 128;
constexpr int kLevelBytes = 6 * kAtomBytes;   // tiles of blocks of 1, 2, 4, 8, 16 and 32 positions

// 64 channels of a chunk, of which each of 8 warps has 8 positions and each lane two channels. `late` and `early` are swizzle atoms of 16 bits.
template <bool BFloat> struct ChannelAtom {
  float2 steps[8]; // factors of steps

  // First: the products of this warp's steps, for all, 1024 bytes from warp to warp: where its lanes may have read the steps.
  ATTN_DEVICE void share_totals(uint32_t totals, int warp, int lane) const {
    float2 product = steps[0];
#pragma unroll
    for (int r = 1; r < 8; ++r) product = product * steps[r];
    warp_sync();
    store_shared2(totals + warp * 1024 + lane * 8, product.x, product.y);
  }

  // After all have shared theirs: the product of all steps; a swizzle atom of late times all steps up to it, of early times all behind it, as is
  // asked for; with both, the tiles of all levels, and sums over channels of late times early, of each position.
  template <bool Late, bool Early> ATTN_DEVICE void make_tiles(uint32_t late, uint32_t early, uint32_t levels, uint32_t late_atom, uint32_t early_atom,
                              uint32_t totals, uint32_t chunk_decay, uint32_t own, int warp, int lane, float late_scale, float early_scale) const {
    const float2 one = make_float2(1.0f, 1.0f);
    float2 before = one, after = one, far = one, neighbour = one;
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      const float2 total = load_shared2(totals + i * 1024 + lane * 8);
      const bool earlier = i < warp, later = i > warp;
      if (earlier) before = before * total;
      if (later) after = after * total;
      if (i / 4 == warp / 4 && (warp & 4 ? earlier : later)) far = far * total;
      if (i == (warp ^ 1) && (warp & 2 ? earlier : later)) neighbour = total;
      if (warp == 7 && i == 7) store_shared2(chunk_decay + 8 * lane, total.x * before.x, total.y * before.y);
    }
    const int place = opaque(warp * 1024 + 4 * lane); // of row 0; row r's chunks of 16 bytes are permuted by r
    uint32_t words[2][8];
#pragma unroll
    for (int r = 0; r < 8; ++r) {
      const uint32_t at = (place ^ (r << 4)) + r * 128;
      if constexpr (Late) words[0][r] = load_shared_int(late + at);
      if constexpr (Early) words[1][r] = load_shared_int(early + at);
    }
    float sums[8];
    float2 passed[3], all; // of steps from the first row of the block of 2, of 4 on, of 8
    if constexpr (Late) {
#pragma unroll
      for (int r = 0; r < 8; ++r) {
        const uint32_t at = (place ^ (r << 4)) + r * 128;
        float2 x = unpack_16<BFloat>(words[0][r]);
        x.x *= late_scale, x.y *= late_scale;
        all = r == 0 ? steps[r] : all * steps[r];
        if constexpr (Early) {
          const float2 other = unpack_16<BFloat>(words[1][r]);
          sums[r] = (x.x * other.x + x.y * other.y) * early_scale;
          if (r & 1) put(levels + at, x * steps[r]);
#pragma unroll
          for (int n = 1; n < 3; ++n) {
            passed[n] = r % (1 << n) == 0 ? steps[r] : passed[n] * steps[r];
            if (r >> n & 1) put(levels + n * kAtomBytes + at, x * passed[n]);
          }
        }
        x = x * all;
        if constexpr (Early) {
          if (warp & 1) put(levels + 3 * kAtomBytes + at, x);
          if (warp & 2) put(levels + 4 * kAtomBytes + at, x * neighbour);
          if (warp & 4) put(levels + 5 * kAtomBytes + at, x * far);
        }
        put(late_atom + at, x * before);
      }
    }
    if constexpr (Late && Early) {
#pragma unroll
      for (int half = 4; half >= 1; half /= 2) {
        const bool upper = lane & half * 4;
#pragma unroll
        for (int i = 0; i < half; ++i) {
          const float keep = upper ? sums[i + half] : sums[i], give = upper ? sums[i] : sums[i + half];
          sums[i] = keep + __shfl_xor_sync(0xffffffffu, give, half * 4);
        }
      }
      sums[0] = quad_sum(sums[0]);
      if (lane % 4 == 0) store_shared(own + (8 * warp + lane / 4) * 4, sums[0]);
    }
    if constexpr (Early) {
      all = one;
#pragma unroll
      for (int r = 7; r >= 0; --r) {
        const uint32_t at = (place ^ (r << 4)) + r * 128;
        float2 x = unpack_16<BFloat>(words[1][r]);
        x.x *= early_scale, x.y *= early_scale;
        if (r < 7) all = all * steps[r + 1];
        if constexpr (Late) {
          if (!(r & 1)) put(levels + at, x);
#pragma unroll
          for (int n = 1; n < 3; ++n) {
            passed[n] = r % (1 << n) == (1 << n) - 1 ? one : passed[n] * steps[r + 1];
            if (!(r >> n & 1)) put(levels + n * kAtomBytes + at, x * passed[n]);
          }
        }
        x = x * all;
        if constexpr (Late) {
          if (!(warp & 1)) put(levels + 3 * kAtomBytes + at, x);
          if (!(warp & 2)) put(levels + 4 * kAtomBytes + at, x * neighbour);
          if (!(warp & 4)) put(levels + 5 * kAtomBytes + at, x * far);
        }
        put(early_atom + at, x * after);
      }
    }
  }

private:
  ATTN_DEVICE static void put(uint32_t address, float2 x) { store_shared_int(address, static_cast<int>(pack_16<BFloat>(x.x, x.y))); }
};

// The pairs of a chunk, of which each of 8 warps makes its share: of block warp / 2 of 16 positions with itself, of 16 positions with 8 that
// are up to 32 away, and up to 16 away. `Turned`: rows are early, columns late.
template <bool BFloat, bool Turned> struct ChannelPairs {
  float near[3][4] = {}, beside[4] = {}, far[4] = {};

  // After all have made the tiles of a swizzle atom.
  ATTN_DEVICE void add(uint32_t levels, int warp, int lane) {
    const int i = warp / 2, half = warp % 2;
    lane = opaque(lane);
    const uint32_t rows = levels + lane % 16 * 128, few = levels + lane % 8 * 128;
    const uint32_t diagonal = rows + 16 * i * 128;
    const uint32_t far_tile = rows + 5 * kAtomBytes + far_late(i) * 128, far_other = few + 5 * kAtomBytes + far_early(i, half) * 128;
    // Half of the warps have pairs up to 16 away, the other half those of a block of 8 with the one before.
    const uint32_t more = half ? rows + 4 * kAtomBytes + middle_late(i) * 128 : diagonal + 3 * kAtomBytes;
    const uint32_t other = few + 4 * kAtomBytes + middle_early(i) * 128;
    uint32_t b[2][4];
#pragma unroll
    for (int k = 0; k < 4; ++k) {
      const uint32_t at = chunk_at(2 * k + lane / 16, lane);
      uint32_t a[5][4];
      load_matrices(far_tile + at, a[4]);
      if (k % 2 == 0) {
        load_matrices(far_other + chunk_at(2 * k + lane / 8, lane), b[0]);
        load_matrices(other + chunk_at(2 * k + lane / 8, lane), b[1]);
      }
      load_matrices(more + at, a[3]);
#pragma unroll
      for (int n = 0; n < 3; ++n) load_matrices(diagonal + n * kAtomBytes + at, a[n]);
      multiply_16x8<BFloat>(far, a[4], b[0][k % 2 * 2], b[0][k % 2 * 2 + 1]);
      multiply_16x8<BFloat>(beside, a[3], half ? b[1][k % 2 * 2] : a[3][0], half ? b[1][k % 2 * 2 + 1] : a[3][2]);
#pragma unroll
      for (int n = 0; n < 3; ++n) multiply_16x8<BFloat>(near[n], a[n], half ? a[n][1] : a[n][0], half ? a[n][3] : a[n][2]);
    }
  }

  // Rounded, in rows of 128 bytes; `own`: the pairs of positions with themselves, for each swizzle atom. What no pair belongs to stays as it is.
  template <int Atoms> ATTN_DEVICE void store(uint32_t pairs, uint32_t own, int warp, int lane) const {
    const int i = warp / 2, half = warp % 2, row = lane / 4, column = lane % 4 * 2;
    float itself = 0.0f;
#pragma unroll
    for (int n = 0; n < Atoms; ++n) itself += load_shared(own + (64 * n + 16 * i + 8 * half + row) * 4);
    float chosen[2];
#pragma unroll
    for (int e = 0; e < 2; ++e) {
      const int differ = row ^ (column + e);
      float x = itself;
#pragma unroll
      for (int n = 0; n < 3; ++n) x = differ >> n ? (half ? near[n][2 + e] : near[n][e]) : x;
      chosen[e] = row >= column + e ? x : 0.0f;
    }
    const uint32_t word = pack_16<BFloat>(chosen[0], chosen[1]), beyond = pack_16<BFloat>(beside[2], beside[3]);
    put(pairs, 16 * i, 16 * i + 8 * half, half ? 0 : word, half ? word : beyond, lane);
    put(pairs, far_late(i), far_early(i, half), pack_16<BFloat>(far[0], far[1]), pack_16<BFloat>(far[2], far[3]), lane);
    if (half) put(pairs, middle_late(i), middle_early(i), pack_16<BFloat>(beside[0], beside[1]), beyond, lane);
  }

private:
  ATTN_DEVICE static int far_late(int i) { return 32 + i / 2 * 16; }
  ATTN_DEVICE static int far_early(int i, int half) { return i % 2 * 16 + half * 8; }
  ATTN_DEVICE static int middle_late(int i) { return i / 2 * 32 + 16; }
  ATTN_DEVICE static int middle_early(int i) { return i / 2 * 32 + i % 2 * 8; }
  // Of 16 bytes of a row that is the lane's, modulo 8.
  ATTN_DEVICE static uint32_t chunk_at(int chunk, int lane) { return (chunk ^ (lane % 8)) * 16; }

  ATTN_DEVICE static void put(uint32_t pairs, int late, int early, uint32_t first, uint32_t second, int lane) {
    const int beyond = lane / 8 % 2 * 8, row = lane % 8;
    const uint32_t place = Turned ? (early + row) * 128 + (late + beyond) * 2 : (late + beyond + row) * 128 + early * 2;
    store_two_matrices<Turned>(pairs + swizzle_128(place), first, second);
  }
};

} // namespace attn
