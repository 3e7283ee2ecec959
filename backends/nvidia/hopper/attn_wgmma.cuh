// Instructions of sm_90a that all kernels of warpgroups share: barriers, TMA loads, fences, and matrix products in groups.
#pragma once
#include <cuda.h>
#include <stdint.h>

namespace attn {

#ifndef ATTN_DEVICE
#define ATTN_DEVICE __device__ __forceinline__
#endif

// The warpgroup of this thread, known to the compiler to be the same in all threads of a warp.
ATTN_DEVICE int warpgroup_index() { return __shfl_sync(0xffffffffu, static_cast<int>(threadIdx.x) >> 7, 0); }

// ---- barriers ---------------------------------------------------------------------------------------------------------------------------

ATTN_DEVICE void barrier_init(uint32_t barrier, int arrivals) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(barrier), "r"(arrivals) : "memory");
}
// After the initialisation and before other threads (TMA included) use the barriers; __syncthreads() follows.
ATTN_DEVICE void barrier_init_fence() { asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory"); }
// Arrives and announces `bytes` that TMA will bring.
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

// Named barriers (0 is __syncthreads()): `threads` counts those that wait and those that only arrive.
ATTN_DEVICE void named_sync(int barrier, int threads) { asm volatile("bar.sync %0, %1;" ::"r"(barrier), "r"(threads) : "memory"); }
ATTN_DEVICE void named_arrive(int barrier, int threads) { asm volatile("bar.arrive %0, %1;" ::"r"(barrier), "r"(threads) : "memory"); }

// Makes this thread's writes to shared memory visible to TMA and wgmma.
ATTN_DEVICE void fence_proxy_async() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }

// ---- TMA --------------------------------------------------------------------------------------------------------------------------------

// Coordinates innermost first: column, row, head, batch. Rows past the last one are zeros.
ATTN_DEVICE void tma_load(uint32_t to, const CUtensorMap *map, uint32_t barrier, int column, int row, int head, int batch) {
  asm volatile("cp.async.bulk.tensor.4d.shared::cluster.global.tile.mbarrier::complete_tx::bytes [%0], [%1, {%3, %4, %5, %6}], [%2];" ::"r"(to),
               "l"(reinterpret_cast<uint64_t>(map)), "r"(barrier), "r"(column), "r"(row), "r"(head), "r"(batch)
               : "memory");
}

// ---- wgmma ------------------------------------------------------------------------------------------------------------------------------

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

// Descriptors of operands in shared memory (k_major, mn_major: attn_hopper.cuh, attn_descriptors.cuh).
// Both words are put together and taken apart in PTX: of 64-bit arithmetic the compiler makes masks, one or two instructions each time.
ATTN_DEVICE uint64_t descriptor_of(uint32_t low, uint32_t high) {
  uint64_t descriptor;
  asm("mov.b64 %0, {%1, %2};" : "=l"(descriptor) : "r"(low), "r"(high));
  return descriptor;
}
// The descriptor `bytes` (a multiple of 16) further on. The address never carries out of the low word.
ATTN_DEVICE uint64_t advance(uint64_t descriptor, uint32_t bytes) {
#ifdef ATTN_DESCRIPTOR_WORDS
  uint32_t low, high;
  asm("mov.b64 {%0, %1}, %2;" : "=r"(low), "=r"(high) : "l"(descriptor));
  return descriptor_of(low + (bytes >> 4), high);
#else
  uint64_t advanced; // ptxas has one instruction for this; a word alone takes one, and another copies the second word
  asm("add.s64 %0, %1, %2;" : "=l"(advanced) : "l"(descriptor), "l"(static_cast<uint64_t>(bytes >> 4)));
  return advanced;
#endif
}

} // namespace attn
