// Instructions of single warps, from sm_80 on: matrix products (mma.sync), their factors (ldmatrix), copies to shared memory (cp.async), rounding.
#pragma once
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <stdint.h>

namespace attn {

#ifndef ATTN_DEVICE
#define ATTN_DEVICE __device__ __forceinline__
#endif

struct F16 {};
struct BF16 {};

// Two numbers, rounded.
ATTN_DEVICE uint32_t pack(F16, float a, float b) {
  uint32_t both;
  asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(both) : "f"(b), "f"(a));
  return both;
}
ATTN_DEVICE uint32_t pack(BF16, float a, float b) {
  uint32_t both;
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(both) : "f"(b), "f"(a));
  return both;
}
ATTN_DEVICE uint32_t shared_address(const void *pointer) { return static_cast<uint32_t>(__cvta_generic_to_shared(pointer)); }
ATTN_DEVICE void load_matrices(uint32_t address, uint32_t (&m)[4]) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(m[0]), "=r"(m[1]), "=r"(m[2]), "=r"(m[3]) : "r"(address) : "memory");
}
ATTN_DEVICE void load_matrices_transposed(uint32_t address, uint32_t (&m)[4]) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(m[0]), "=r"(m[1]), "=r"(m[2]), "=r"(m[3]) : "r"(address) : "memory");
}
ATTN_DEVICE void store_matrices(uint32_t address, const uint32_t *m) {
#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 900
  asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1, %2, %3, %4};"
               : : "r"(address), "r"(m[0]), "r"(m[1]), "r"(m[2]), "r"(m[3]) : "memory");
#else
  // Lane 4 i + j has row i, columns 2 j and 2 j + 1 of each; lane 8 n + i has the address of row i of number n.
#pragma unroll
  for (int n = 0; n < 4; ++n) {
    const uint32_t row = __shfl_sync(0xffffffffu, address, 8 * n + (threadIdx.x & 31) / 4);
    asm volatile("st.shared.b32 [%0], %1;" : : "r"(row + threadIdx.x % 4 * 4), "r"(m[n]) : "memory");
  }
#endif
}
#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 900
ATTN_DEVICE void store_matrices_transposed(uint32_t address, const uint32_t *m) {
  asm volatile("stmatrix.sync.aligned.m8n8.x4.trans.shared.b16 [%0], {%1, %2, %3, %4};"
               : : "r"(address), "r"(m[0]), "r"(m[1]), "r"(m[2]), "r"(m[3]) : "memory");
}
#endif
ATTN_DEVICE void mma(F16, float *sum, const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
  asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
      : "+f"(sum[0]), "+f"(sum[1]), "+f"(sum[2]), "+f"(sum[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}
ATTN_DEVICE void mma(BF16, float *sum, const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
  asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
      : "+f"(sum[0]), "+f"(sum[1]), "+f"(sum[2]), "+f"(sum[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}
// 16 bytes (or 4) from global to shared memory, without a register between them; `wait_copies` waits for those of this thread.
ATTN_DEVICE void copy_16(unsigned char *to, const void *from) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(shared_address(to)), "l"(from) : "memory");
}
ATTN_DEVICE void copy_4(unsigned char *to, const float *from) {
  asm volatile("cp.async.ca.shared.global [%0], [%1], 4;" ::"r"(shared_address(to)), "l"(from) : "memory");
}
ATTN_DEVICE void bring_near(const void *place) { asm volatile("prefetch.global.L1 [%0];" ::"l"(place)); }
ATTN_DEVICE void wait_copies() { asm volatile("cp.async.wait_all;" ::: "memory"); }

} // namespace attn
