// The instructions of attn_mma.cuh on the CPU: a fiber for each lane of a warp, which meet at every instruction of the whole warp.
#pragma once
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <type_traits>

#include "context.h"

#define ATTN_DEVICE inline

struct float2 {
  float x, y;
};
inline float2 make_float2(float x, float y) { return {x, y}; }
struct Warp {
  Context between, lanes[32];
  int running = 0, left = 0; // the lane that runs, and how many have not ended
  uint32_t address[32], held[32][6];
  // Waits until all lanes are here: they run in turn, each up to its next meeting.
  void meet() { lanes[running].switch_to(between); }
};
inline Warp whole;
alignas(1024) inline unsigned char memory[1 << 16];

inline uint16_t half_at(uint32_t address) {
  uint16_t value;
  memcpy(&value, memory + address, 2);
  return value;
}
inline char stacks[32][1 << 16];
// In ascending order in one call, in descending order in the next.
template <class Work> void run_warp(Work work) {
  static Work *given;
  static bool descending = true;
  descending = !descending;
  given = &work;
  for (int lane = 0; lane < 32; ++lane)
    whole.lanes[lane].prepare(stacks[lane], sizeof stacks[lane], [] {
      (*given)(whole.running);
      --whole.left;
      whole.meet();
    });
  for (whole.left = 32; whole.left == 32;)
    for (int n = 0; n < 32; ++n) {
      whole.running = descending ? 31 - n : n;
      whole.between.switch_to(whole.lanes[whole.running]);
    }
  if (whole.left) puts("some lanes do not come to a meeting"), exit(1);
}

namespace attn {
struct F16;
struct BF16;
inline uint32_t swizzle_128(uint32_t offset) { return offset ^ ((offset >> 3) & 0x70); }
inline void matrices(uint32_t address, uint32_t *m, int count, bool transposed) {
  const int lane = whole.running, first = lane / 4, second = 2 * (lane % 4);
  whole.address[lane] = address;
  whole.meet();
  for (int i = 0; i < count; ++i) {
    const uint32_t *rows = whole.address + 8 * i;
    const uint32_t low = transposed ? half_at(rows[second] + 2 * first) : half_at(rows[first] + 2 * second);
    const uint32_t high = transposed ? half_at(rows[second + 1] + 2 * first) : half_at(rows[first] + 2 * second + 2);
    m[i] = low | high << 16;
  }
  whole.meet();
}
inline void load_matrices(uint32_t address, uint32_t (&m)[4]) { matrices(address, m, 4, false); }
inline void load_matrices_transposed(uint32_t address, uint32_t (&m)[4]) { matrices(address, m, 4, true); }
inline void load_two_matrices(uint32_t address, uint32_t &a, uint32_t &b) {
  uint32_t m[2];
  matrices(address, m, 2, false), a = m[0], b = m[1];
}
inline void load_two_matrices_transposed(uint32_t address, uint32_t &a, uint32_t &b) {
  uint32_t m[2];
  matrices(address, m, 2, true), a = m[0], b = m[1];
}
inline float value_of(F16 *, uint32_t bits) {
  _Float16 value;
  const uint16_t low = bits;
  memcpy(&value, &low, 2);
  return value;
}
inline float value_of(BF16 *, uint32_t bits) {
  float value;
  const uint32_t wide = bits << 16;
  memcpy(&value, &wide, 4);
  return value;
}
// PTX: element (row, k) of a is in lane row % 8 * 4 + k % 8 / 2, element (k, n) of b in lane n * 4 + k % 8 / 2.
template <class Element> void mma_16816(Element, float *sum, const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
  const int lane = whole.running;
  const uint32_t own[6] = {a[0], a[1], a[2], a[3], b0, b1};
  memcpy(whole.held[lane], own, sizeof own);
  whole.meet();
  for (int e = 0; e < 4; ++e) {
    const int row = lane / 4 + 8 * (e / 2), n = 2 * (lane % 4) + e % 2;
    for (int k = 0; k < 16; ++k) {
      const uint32_t left = whole.held[row % 8 * 4 + k % 8 / 2][row / 8 + 2 * (k / 8)], right = whole.held[n * 4 + k % 8 / 2][4 + k / 8];
      sum[e] += value_of((Element *)nullptr, left >> 16 * (k % 2) & 0xFFFF) * value_of((Element *)nullptr, right >> 16 * (k % 2) & 0xFFFF);
    }
  }
  whole.meet();
}
inline void store_pair(uint32_t address, uint32_t pair) { memcpy(memory + address, &pair, 4); }
inline float of_lane(float value, int lane) {
  memcpy(whole.held[whole.running], &value, 4);
  whole.meet();
  float other;
  memcpy(&other, whole.held[lane], 4);
  whole.meet();
  return other;
}
inline void add_global(float *to, float value) { *to += value; }
inline void copy_4(uint32_t to, const void *from, bool exists) {
  if (exists) memcpy(memory + to, from, 4);
  else memset(memory + to, 0, 4);
}
inline void copy_16(uint32_t to, const void *from, bool exists) {
  if (exists) memcpy(memory + to, from, 16);
  else memset(memory + to, 0, 16);
}
} // namespace attn
