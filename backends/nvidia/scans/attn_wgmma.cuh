// Instructions of warpgroups (sm_90a) for chunk scans: barriers, TMA, fences and groups of matrix products, and descriptors of their factors in shared memory.
#pragma once
#include <cuda.h>

namespace attn {

// The same for all threads of a warp, as the compiler sees it: what stands under a condition on it may stay in uniform registers.
ATTN_DEVICE int warpgroup_index() { return __shfl_sync(0xffffffffu, static_cast<int>(threadIdx.x) >> 7, 0); }
ATTN_DEVICE void named_sync(int barrier, int threads) { asm volatile("bar.sync %0, %1;" ::"r"(barrier), "r"(threads) : "memory"); }
ATTN_DEVICE void named_arrive(int barrier, int threads) { asm volatile("bar.arrive %0, %1;" ::"r"(barrier), "r"(threads) : "memory"); }
// Makes this thread's writes to shared memory visible to wgmma.
ATTN_DEVICE void fence_proxy_async() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }
// Barriers in shared memory at which the bytes arrive that TMA brings.
ATTN_DEVICE void barrier_init(uint32_t barrier, int arrivals) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(barrier), "r"(arrivals) : "memory");
}
// After the initialisation, before __syncthreads().
ATTN_DEVICE void barrier_init_fence() { asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory"); }
ATTN_DEVICE void barrier_arrive_expect(uint32_t barrier, uint32_t bytes) {
  asm volatile("{\n.reg .b64 state;\nmbarrier.arrive.expect_tx.shared::cta.b64 state, [%0], %1;\n}" ::"r"(barrier), "r"(bytes) : "memory");
}
// Waits until the phase with this parity (0 first) is over.
ATTN_DEVICE void barrier_wait(uint32_t barrier, uint32_t parity) {
  asm volatile("{\n"
               ".reg .pred done;\n"
               "again:\n"
               "mbarrier.try_wait.parity.shared::cta.b64 done, [%0], %1;\n"
               "@done bra finished;\n"
               "bra again;\n"
               "finished:\n"
               "}" ::"r"(barrier), "r"(parity) : "memory");
}
// Coordinates innermost first: column, row, head, batch. Rows past the last one are zeros.
ATTN_DEVICE void tma_load(uint32_t to, const CUtensorMap *map, uint32_t barrier, int column, int row, int head, int batch) {
  asm volatile("cp.async.bulk.tensor.4d.shared::cluster.global.tile.mbarrier::complete_tx::bytes [%0], [%1, {%3, %4, %5, %6}], [%2];" ::"r"(to),
               "l"(reinterpret_cast<uint64_t>(map)), "r"(barrier), "r"(column), "r"(row), "r"(head), "r"(batch)
               : "memory");
}
ATTN_DEVICE void wgmma_begin() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
ATTN_DEVICE void wgmma_commit() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }
// Waits until at most `Pending` groups are in flight.
template <int Pending> ATTN_DEVICE void wgmma_wait() { asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(Pending) : "memory"); }
// The compiler may not move uses of these registers across this point (costs no instruction).
template <int N> ATTN_DEVICE void hold(float (&values)[N]) {
#pragma unroll
  for (int i = 0; i < N; ++i) asm volatile("" : "+f"(values[i])::"memory");
}
template <int N> ATTN_DEVICE void hold(uint32_t (&values)[N]) {
#pragma unroll
  for (int i = 0; i < N; ++i) asm volatile("" : "+r"(values[i])::"memory");
}

// Descriptors. `k_major`: rows of the swizzle atom are rows (N) of the factor, its columns run along K; `mn_major`: the other way round.
// The swizzle is 1 for atoms of 128 bytes a row, 2 for 64 bytes.
ATTN_DEVICE uint64_t descriptor_of(uint32_t low, uint32_t high) {
  uint64_t descriptor;
  asm("mov.b64 %0, {%1, %2};" : "=l"(descriptor) : "r"(low), "r"(high));
  return descriptor;
}
ATTN_DEVICE uint64_t descriptor(uint32_t address, uint32_t leading, uint32_t stride, uint32_t swizzle) {
  return descriptor_of((address >> 4) | (leading >> 4) << 16, (stride >> 4) | swizzle << 30);
}
ATTN_DEVICE uint64_t k_major(uint32_t address) { return descriptor(address, 16, 1024, 1); }
ATTN_DEVICE uint64_t k_major_64(uint32_t address) { return descriptor(address, 16, 512, 2); }
ATTN_DEVICE uint64_t mn_major(uint32_t address, uint32_t atom_bytes) { return descriptor(address, atom_bytes, 1024, 1); }
// The descriptor `bytes` (a multiple of 16) further on.
ATTN_DEVICE uint64_t advance(uint64_t from, uint32_t bytes) {
  uint32_t low, high;
  asm("mov.b64 {%0, %1}, %2;" : "=r"(low), "=r"(high) : "l"(from));
  return descriptor_of(low + (bytes >> 4), high);
}

} // namespace attn
