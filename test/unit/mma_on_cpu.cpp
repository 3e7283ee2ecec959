// Copies tiles of small whole numbers by attn_mma.cuh's copies, multiplies them by its products, and compares with plain loops: exact.
#include "mma_on_cpu.h"

#include "attn_mma_on_cpu.cuh"

using namespace attn;

template <class Element> uint16_t bits_of(float value) {
  uint16_t bits;
  if constexpr (std::is_same_v<Element, F16>) {
    const _Float16 half = value;
    memcpy(&bits, &half, 2);
  } else {
    uint32_t wide;
    memcpy(&wide, &value, 4), bits = wide >> 16;
  }
  return bits;
}
static int number(int n, int row, int column) { return (row * 7 + column * (3 + n) + row * column) % 11 - 5; }

constexpr int kColumns = 128;
static int failures = 0;

// Rows x 128 numbers, in global memory with a longer stride, to shared memory: all four warps, the last rows missing.
template <class Element, int Rows> Atoms copied(int n, uint32_t address, int missing) {
  static uint16_t global[Rows * (kColumns + 8)];
  for (int row = 0; row < Rows; ++row)
    for (int column = 0; column < kColumns; ++column) global[row * (kColumns + 8) + column] = bits_of<Element>(number(n, row, column));
  const Atoms tile{address, Rows * 128};
  for (int warp = 0; warp < 4; ++warp)
    run_warp([&](int lane) { copy_lanes<Rows, kColumns / 64>(tile, global, kColumns + 8, 0, Rows - missing, warp, lane); });
  return tile;
}

// sum += a b of every warp; `Turned`: a is stored the other way, `Rows`: rows of b's tile are columns of b, `Kind` 0: a in shared memory.
template <class Element, int N, int K, int Blocks, bool Turned, bool Rows, bool Held, bool Wide> void check(const char *name) {
  constexpr int kM = 64 * Blocks;
  const Atoms a = copied<Element, 128>(0, 0, 3), b = copied<Element, 128>(1, 32768, 0);
  for (int warp = 0; warp < 4; ++warp)
    run_warp([&](int lane) {
      float sum[Blocks * N / 2] = {};
      const int first = warp * 16 * Blocks;
      const Beside<64, Atoms, Atoms> wide{b, Atoms{b.address + 128 * 128, b.atom}};
      auto multiplied = [&](const auto &left, const auto &right) { multiply<Element, N, K, Blocks, Rows>(sum, left, right, lane); };
      auto both = [&](const auto &left) {
        if constexpr (Wide) multiplied(left, wide);
        else multiplied(left, b);
      };
      if constexpr (Held) {
        uint32_t held[Blocks * K / 4];
        load_factor<K, Blocks>(held, SharedFactor{a, first, lane});
        if constexpr (Blocks == 1) both(held_1(held));
        else both(held_2(held));
      } else if constexpr (Turned) both(TransposedFactor{a, first, lane});
      else both(SharedFactor{a, first, lane});
      for (int r = 0; r < Blocks * N / 2; ++r) {
        const int row = first + 16 * (r / (N / 2)) + lane / 4 + 8 * (r / 2 % 2), column = r / 4 % (N / 8) * 8 + 2 * (lane % 4) + r % 2;
        float wanted = 0;
        for (int k = 0; k < K; ++k) {
          const int at[2] = {Turned ? k : row, Turned ? row : k};
          wanted += (at[0] < 125 ? number(0, at[0], at[1]) : 0) * number(1, Rows ? column : k, Rows ? k : column);
        }
        if (sum[r] != wanted && failures++ == 0) printf("%s: row %d, column %d: %g, not %g\n", name, row, column, sum[r], wanted);
      }
    });
}

// A tile that was read as a factor is written elsewhere, as it was; sums go to rows of global memory, of which the last is missing.
template <int N, int Blocks> void check_written(const char *name) {
  constexpr int kM = 64 * Blocks, kGap = N + 4;
  const Atoms a = copied<F16, 128>(0, 0, 3), to{32768, kM * 128};
  static float added[kM * kGap], stored[kM * kGap];
  static uint16_t halves[kM * kGap];
  for (int n = 0; n < kM * kGap; ++n) added[n] = n, stored[n] = -1, halves[n] = 0x7777;
  for (int warp = 0; warp < 4; ++warp)
    run_warp([&](int lane) {
      uint32_t held[Blocks * N / 4];
      float sum[Blocks * N / 2];
      load_factor<N, Blocks>(held, SharedFactor{a, warp * 16 * Blocks, lane});
      store_factor<N, Blocks>(held, SharedFactor{to, warp * 16 * Blocks, lane});
      for (int r = 0; r < Blocks * N / 2; ++r) sum[r] = value_of((F16 *)nullptr, held[r / 2] >> 16 * (r % 2) & 0xFFFF);
      // From the second row on: the tile's last row would be past the end.
      add_pairs<N, Blocks>(sum, added, kGap, 1, kM, warp, lane);
      store_pairs<N, Blocks>(sum, stored, kGap, 1, kM, warp, lane);
      store_pairs<N, Blocks>(held, halves, kGap, 1, kM, warp, lane);
    });
  for (int row = 0; row < kM; ++row)
    for (int column = 0; column < kGap; ++column) {
      const auto at = [&](const Atoms &tile) { return half_at(tile.at(row / 8 * 8, row % 8, column / 16 * 16, column / 8 % 2) + column % 8 * 2); };
      const int n = row * kGap + column, value = number(0, row - 1, column);
      const bool moved = column >= N || at(a) == at(to), exists = row > 0 && row - 1 < 125 && column < N;
      const bool clear = row == 0 || column >= N;
      const bool right = clear ? added[n] == n && stored[n] == -1 && halves[n] == 0x7777
                               : added[n] == n + exists * value && stored[n] == exists * value && halves[n] == bits_of<F16>(exists * value);
      if ((!moved || !right) && failures++ == 0) printf("%s: row %d, column %d: not what was read\n", name, row, column);
    }
}

// Numbers of rows, of which the last five do not exist.
template <int Count> void check_numbers() {
  static float from[2 * Count];
  for (int n = 0; n < 2 * Count; ++n) from[n] = n + 1;
  for (int warp = 0; warp < 4; ++warp)
    run_warp([&](int lane) { copy_numbers<Count>(1024, from, 2, 3, Count - 2, warp, lane); });
  for (int n = 0; n < Count; ++n) {
    float got;
    memcpy(&got, memory + 1024 + 4 * n, 4);
    const float wanted = n + 3 < Count - 2 ? 2 * (n + 3) + 1 : 0;
    if (got != wanted && failures++ == 0) printf("numbers: %g at %d, not %g\n", got, n, wanted);
  }
}

int main() {
  check_written<64, 1>("a factor of 64 columns");
  check_written<128, 2>("a factor of 128 columns, 32 rows a warp");
  check_numbers<32>();
  check_numbers<256>();
  check<F16, 64, 64, 1, false, true, true, false>("scores, a in registers");
  check<BF16, 32, 128, 2, false, true, true, false>("scores of 32 rows a warp");
  check<F16, 128, 32, 2, false, false, false, false>("sums, a in shared memory");
  check<BF16, 40, 128, 1, true, false, false, false>("a stored the other way");
  check<F16, 72, 64, 1, false, false, true, true>("b in two tiles");
  check<F16, 24, 128, 1, false, true, false, true>("b in two tiles of its depth");
  return failures != 0;
}
