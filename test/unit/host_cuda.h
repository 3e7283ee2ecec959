// CUDA as a host compiler takes it: a thread of the host for each of a thread block's, blocks one after the other.
#include <algorithm>
#include <atomic>
#include <barrier>
#include <memory>
#include <thread>
#include <vector>

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
static thread_local HostIndex threadIdx;
static HostIndex blockIdx, blockDim, gridDim;
static int *host_memory;
static std::unique_ptr<std::barrier<>> host_block;
static std::vector<std::unique_ptr<std::barrier<>>> host_warps;

inline void __syncthreads() { host_block->arrive_and_wait(); }
inline void __threadfence_system() { std::atomic_thread_fence(std::memory_order_seq_cst); }
inline void __syncwarp() { host_warps[threadIdx.x / 32]->arrive_and_wait(); }
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

template <typename Form>
void host_launch(void (*kernel)(Form), const void *form, int blocks, int heads, int threads, int bytes) {
  std::vector<int> memory(bytes / 4 + 1);
  host_memory = memory.data();
  gridDim = {unsigned(blocks), unsigned(heads)};
  blockDim = {unsigned(threads), 1};
  host_block = std::make_unique<std::barrier<>>(threads);
  host_warps.clear();
  for (int warp = 0; warp < threads / 32; ++warp) host_warps.push_back(std::make_unique<std::barrier<>>(32));
  std::vector<std::thread> all;
  std::barrier<> turn(threads);
  for (int t = 0; t < threads; ++t)
    all.emplace_back([&, t] {
      threadIdx = {unsigned(t), 0};
      for (int y = 0; y < heads; ++y)
        for (int x = 0; x < blocks; ++x) {
          turn.arrive_and_wait();
          if (t == 0) blockIdx = {unsigned(x), unsigned(y)};
          turn.arrive_and_wait();
          kernel(*static_cast<const Form *>(form));
        }
    });
  for (std::thread &each : all) each.join();
}
