// CUDA kernels on a CPU, for tests: threads of a block are fibers, which run one after another until they meet; matrix instructions are sums.
#include <stdint.h>
#include <string.h>
#include "context.h"
#include <cmath>
#include <algorithm>
#include <type_traits>
#include "scan_sums.h"
using std::max;
using std::min;

#define __global__
#define __device__
#define __forceinline__ inline
#define __launch_bounds__(...)
#define __restrict__
#define __shared__ static
#define __grid_constant__
#define __align__(n) __attribute__((aligned(n)))
typedef _Float16 __half;
// Not clang's type, whose numbers unoptimised code rounds again wherever it moves them.
struct __nv_bfloat16 {
  unsigned short bits;
  __nv_bfloat16() = default;
  __nv_bfloat16(float x) {
    uint32_t word;
    memcpy(&word, &x, 4);
    bits = (unsigned short)(x != x ? 0x7fff : (word + 0x7fff + (word >> 16 & 1)) >> 16);
  }
  operator float() const {
    const uint32_t word = (uint32_t)bits << 16;
    float x;
    memcpy(&x, &word, 4);
    return x;
  }
};
// What a description of a tensor [B, H, T, D] of 16 bits for TMA tells: where it is, strides in elements, rows, and the sizes of a box.
struct CUtensorMap {
  const unsigned short *data;
  long long strides[3];
  int length, columns, rows;
};
struct Index { int x, y, z; };
struct float2 { float x, y; };
struct alignas(16) float4 { float x, y, z, w; };
struct alignas(16) uint4 { uint32_t x, y, z, w; };
static float2 make_float2(float x, float y) { return {x, y}; }
static float4 make_float4(float x, float y, float z, float w) { return {x, y, z, w}; }
static Index threadIdx, blockIdx;
template <class To, class From> static To bits_of(From x) {
  static_assert(sizeof(To) == sizeof(From));
  To y;
  memcpy(&y, &x, sizeof y);
  return y;
}
static float __uint_as_float(uint32_t x) { return bits_of<float>(x); }
static float rsqrtf(float x) { return 1.0f / std::sqrt(x); }
static float __half2float(__half x) { return (float)x; }
static __half __float2half_rn(float x) { return (__half)x; }
static float __bfloat162float(__nv_bfloat16 x) { return x; }
static __nv_bfloat16 __float2bfloat16_rn(float x) { return x; }

// ---- fibers

#ifndef WARPS
#define WARPS 8
#endif
constexpr int kThreads = 32 * WARPS;
static Context host, fibers[kThreads];
static bool done[kThreads];
static int current, arrived, generation, warp_arrived[WARPS], warp_generation[WARPS];
static void (*kernel)(void);
static void leave() { fibers[current].switch_to(host); }
static void __syncthreads() {
  const int mine = generation;
  if (++arrived == kThreads) arrived = 0, ++generation;
  while (generation == mine) leave();
}
static void __syncwarp() {
  const int warp = current / 32, mine = warp_generation[warp];
  if (++warp_arrived[warp] == 32) warp_arrived[warp] = 0, ++warp_generation[warp];
  while (warp_generation[warp] == mine) leave();
}
template <class T> static T from_lane(T x, int lane) {
  static T slots[kThreads];
  slots[current] = x;
  __syncwarp();
  const T found = slots[current / 32 * 32 + lane];
  __syncwarp();
  return found;
}
template <class T> static T __shfl_xor_sync(unsigned, T x, int mask) { return from_lane(x, (current % 32) ^ mask); }
template <class T> static T __shfl_up_sync(unsigned, T x, int step) { return from_lane(x, std::max(current % 32 - step, current % 32 < step ? current % 32 : 0)); }
// Fibers give way at barriers alone.
template <class T> static T atomicAdd(T *place, T x) {
  const T before = *place;
  *place += x;
  return before;
}
static void body() {
  kernel();
  done[current] = true;
  leave();
}
// Threads run in ascending or descending order: what a missing barrier leaves to chance differs.
static void run_block(char *stacks, bool descending) {
  arrived = 0;
  for (int i = 0; i < kThreads; ++i) {
    fibers[i].prepare(stacks + ((size_t)i << 17), 1 << 17, body);
    done[i] = false;
  }
  for (bool left = true; left;) {
    left = false;
    for (int n = 0; n < kThreads; ++n) {
      current = descending ? kThreads - 1 - n : n;
      threadIdx.x = current;
      if (done[current]) continue;
      host.switch_to(fibers[current]);
      left = true;
    }
  }
}

// ---- what attn_warp.cuh has

#define ATTN_DEVICE static inline
alignas(1024) static unsigned char memory[1 << 18];
namespace attn {
struct F16 {};
struct BF16 {};
template <class T> static uint32_t both_of(T a, T b) { return bits_of<unsigned short>(a) | (uint32_t)bits_of<unsigned short>(b) << 16; }
static uint32_t pack(F16, float a, float b) { return both_of((__half)a, (__half)b); }
static uint32_t pack(BF16, float a, float b) { return both_of(__float2bfloat16_rn(a), __float2bfloat16_rn(b)); }
static uint32_t shared_address(const void *pointer) { return (uint32_t)((const unsigned char *)pointer - memory); }
// The addresses that lanes give; the warp meets again before the next ones.
struct Addresses {
  const uint32_t *of;
  explicit Addresses(uint32_t address) {
    static uint32_t slots[kThreads];
    slots[current] = address;
    __syncwarp();
    of = slots + current / 32 * 32;
  }
  ~Addresses() { __syncwarp(); }
};
static void load_matrices(uint32_t address, uint32_t (&m)[4]) {
  const Addresses rows(address);
  for (int i = 0; i < 4; ++i) m[i] = *(const uint32_t *)(memory + rows.of[8 * i + current % 32 / 4] + current % 4 * 4);
}
static void store_matrices(uint32_t address, const uint32_t *m) {
  const Addresses rows(address);
  for (int i = 0; i < 4; ++i) *(uint32_t *)(memory + rows.of[8 * i + current % 32 / 4] + current % 4 * 4) = m[i];
}
static void store_matrices_transposed(uint32_t address, const uint32_t *m) {
  const Addresses rows(address);
  for (int i = 0; i < 4; ++i)
    for (int c = 0; c < 2; ++c)
      *(unsigned short *)(memory + rows.of[8 * i + current % 4 * 2 + c] + current % 32 / 4 * 2) = (unsigned short)(c ? m[i] >> 16 : m[i]);
}
static void load_matrices_transposed(uint32_t address, uint32_t (&m)[4]) {
  const Addresses rows(address);
  for (int i = 0; i < 4; ++i) {
    unsigned short x[2];
    for (int c = 0; c < 2; ++c) x[c] = *(const unsigned short *)(memory + rows.of[8 * i + current % 4 * 2 + c] + current % 32 / 4 * 2);
    m[i] = x[0] | (uint32_t)x[1] << 16;
  }
}
template <class T> static void mma(T, float *sum, const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
  static uint32_t slots[kThreads][6];
  for (int i = 0; i < 4; ++i) slots[current][i] = a[i];
  slots[current][4] = b0, slots[current][5] = b1;
  __syncwarp();
  mma_sums(std::is_same<T, F16>::value, sum, slots + current / 32 * 32, current % 32);
  __syncwarp();
}

// ---- what attn_wgmma.cuh and attn_descriptors.cuh have: a group of products ends at once

static int warpgroup_index() { return current >> 7; }
static int named_arrived[16], named_generation[16];
static void named_arrive(int barrier, int threads) {
  if (++named_arrived[barrier] == threads) named_arrived[barrier] = 0, ++named_generation[barrier];
}
static void named_sync(int barrier, int threads) {
  const int mine = named_generation[barrier];
  named_arrive(barrier, threads);
  while (named_generation[barrier] == mine) leave();
}
static void fence_proxy_async() {}
// What TMA copies is there at once, and zeros past the last row. A barrier ends its phase once all have arrived, and all bytes.
static struct { int wanted, arrived, bytes, phase; } arrivals[1 << 15];
static void barrier_init(uint32_t barrier, int count) { arrivals[barrier / 8] = {count, 0, 0, 0}; }
static void barrier_init_fence() {}
static void barrier_turn(uint32_t barrier) {
  auto &it = arrivals[barrier / 8];
  if (it.arrived == it.wanted && it.bytes == 0) it.arrived = 0, it.phase ^= 1;
}
static void barrier_arrive_expect(uint32_t barrier, uint32_t bytes) { ++arrivals[barrier / 8].arrived, arrivals[barrier / 8].bytes += bytes; }
template <int Registers> static void more_registers() {}
template <int Registers> static void fewer_registers() {}
static void barrier_wait(uint32_t barrier, int parity) {
  while (arrivals[barrier / 8].phase == parity) leave();
}
static void tma_load(uint32_t to, const CUtensorMap *map, uint32_t barrier, int column, int row, int head, int batch) {
  const int pieces = map->columns / 8;
  for (int r = 0; r < map->rows; ++r)
    for (int piece = 0; piece < pieces; ++piece) {
      uint32_t place = to + (r * pieces + piece) * 16;
      place ^= (place >> 7 & (pieces - 1)) << 4;
      const unsigned short *from = map->data + batch * map->strides[0] + head * map->strides[1] + (row + r) * map->strides[2] + column + 8 * piece;
      if (row + r < map->length && row + r >= 0) memcpy(memory + place, from, 16);
      else memset(memory + place, 0, 16);
    }
  arrivals[barrier / 8].bytes -= map->rows * map->columns * 2;
  barrier_turn(barrier);
}
static void bulk_load(uint32_t to, const void *from, uint32_t bytes, uint32_t barrier) {
  memcpy(memory + to, from, bytes);
  arrivals[barrier / 8].bytes -= bytes;
  barrier_turn(barrier);
}
static void wgmma_begin() {}
static void wgmma_commit() {}
template <int Pending> static void wgmma_wait() {}
template <class T, int N> static void hold(T (&)[N]) {}
// The first byte, and from 8 rows to the next 8, from one swizzle atom to the next, and the bytes of a row of an atom.
static uint64_t descriptor(uint32_t address, uint32_t atom, uint32_t stride, uint32_t swizzle) {
  return address | (uint64_t)(atom / 16) << 32 | (uint64_t)(stride / 512) << 48 | (uint64_t)swizzle << 60;
}
static uint64_t k_major(uint32_t address) { return descriptor(address, 0, 1024, 1); }
static uint64_t k_major_64(uint32_t address) { return descriptor(address, 0, 512, 2); }
static uint64_t mn_major(uint32_t address, uint32_t atom_bytes) { return descriptor(address, atom_bytes, 1024, 1); }
static uint64_t advance(uint64_t from, uint32_t bytes) { return from + bytes; }
template <class T, bool Turned, int Count>
static void wgmma(T, float (&d)[Count], uint32_t a0, uint32_t a1, uint32_t a2, uint32_t a3, uint64_t b, int accumulate) {
  static uint32_t slots[kThreads][4];
  const uint32_t own[4] = {a0, a1, a2, a3};
  for (int i = 0; i < 4; ++i) slots[current][i] = own[i];
  __syncwarp();
  wgmma_sums(std::is_same<T, F16>::value, Turned, accumulate, d, Count, slots + current / 32 * 32, current % 32, memory, b);
  __syncwarp();
}
// Both factors in shared memory, rows along the depth: 16 rows of the left one for each warp.
template <class T, int Count> static void wgmma_shared(T, float (&d)[Count], uint64_t a, uint64_t b, int accumulate) {
  wgmma_shared_sums(std::is_same<T, F16>::value, accumulate, d, Count, current / 32, current % 32, memory, a, b);
}
static void copy_16(unsigned char *to, const void *from) { memcpy(to, from, 16); }
static void copy_4(unsigned char *to, const float *from) { memcpy(to, from, 4); }
static void bring_near(const void *) {}
static void wait_copies() {}
} // namespace attn
