// CUDA as a host compiler takes it: fibers, which run one after another until they meet, for the threads of a block, blocks in turn.
#include <stdio.h>
#include <stdlib.h>

#include <algorithm>
#include <atomic>
#include <memory>
#include <vector>

#include "context.h"

using std::max;
using std::min;
#define __device__
#define __forceinline__ inline
#define __global__
#define __grid_constant__
#define __launch_bounds__(n)
#define __shared__ static

struct HostIndex {
  unsigned x, y;
};
static HostIndex threadIdx, blockIdx, blockDim, gridDim;
static int *host_memory;

struct HostMeeting {
  unsigned wanted, arrived, times;
};
static HostMeeting host_block, host_warps[32];
static Context host_scheduler, host_fibers[1024];
static bool host_ended[1024], host_moved;
static void (*host_kernel)(const void *);
static const void *host_form;

static void host_leave() { host_fibers[threadIdx.x].switch_to(host_scheduler); }
static void host_meet(HostMeeting &at) {
  const unsigned mine = at.times;
  host_moved = true;
  if (++at.arrived == at.wanted) at.arrived = 0, ++at.times;
  while (at.times == mine) host_leave();
}
inline void __syncthreads() { host_meet(host_block); }
inline void __threadfence_system() {}
inline void __syncwarp() { host_meet(host_warps[threadIdx.x / 32]); }
static int host_lanes[1024];
template <typename Source>
inline int host_exchanged(int value, Source source) {
  const int first = threadIdx.x / 32 * 32, from = source(int(threadIdx.x) - first);
  host_lanes[threadIdx.x] = value;
  __syncwarp();
  const int found = from < 0 ? value : host_lanes[first + from];
  __syncwarp();
  return found;
}
inline int __shfl_up_sync(unsigned, int value, int step) {
  return host_exchanged(value, [step](int lane) { return lane - step; });
}
inline int __shfl_sync(unsigned, int value, int lane) {
  return host_exchanged(value, [lane](int) { return lane; });
}
inline int __popc(unsigned x) { return __builtin_popcount(x); }
inline int __ffs(int x) { return __builtin_ffs(x); }
inline unsigned atomicOr(unsigned *at, unsigned x) { return std::atomic_ref<unsigned>(*at).fetch_or(x); }
inline int atomicAdd(int *at, int x) { return std::atomic_ref<int>(*at).fetch_add(x); }

static void host_body() {
  host_kernel(host_form);
  host_ended[threadIdx.x] = host_moved = true;
  host_leave();
}
// Threads run in ascending order in one block, in descending order in the next: what a missing barrier leaves to chance differs.
static void host_run(char *stacks, size_t stack) {
  static bool descending = true;
  descending = !descending;
  host_block = {blockDim.x, 0, 0};
  std::fill(std::begin(host_warps), std::end(host_warps), HostMeeting{32, 0, 0});
  for (unsigned t = 0; t < blockDim.x; ++t) {
    host_fibers[t].prepare(stacks + t * stack, stack, host_body);
    host_ended[t] = false;
  }
  for (unsigned left = blockDim.x; left;) {
    host_moved = false;
    for (unsigned n = 0; n < blockDim.x; ++n) {
      threadIdx = {descending ? blockDim.x - 1 - n : n, 0};
      if (host_ended[threadIdx.x]) continue;
      host_scheduler.switch_to(host_fibers[threadIdx.x]);
      left -= host_ended[threadIdx.x];
    }
    if (!host_moved) puts("threads wait for others that have ended, or wait elsewhere"), abort();
  }
}

template <typename Form>
void host_launch(void (*kernel)(Form), const void *form, int blocks, int heads, int threads, int bytes) {
  constexpr size_t kStack = 1 << 16;
  static void (*given)(Form);
  given = kernel;
  host_kernel = [](const void *form) { given(*static_cast<const Form *>(form)); };
  host_form = form;
  std::vector<int> memory(bytes / 4 + 1);
  const std::unique_ptr<char[]> stacks(new char[threads * kStack]);
  host_memory = memory.data();
  gridDim = {unsigned(blocks), unsigned(heads)};
  blockDim = {unsigned(threads), 1};
  for (unsigned y = 0; y < gridDim.y; ++y)
    for (unsigned x = 0; x < gridDim.x; ++x) {
      blockIdx = {x, y};
      host_run(stacks.get(), kStack);
    }
}
