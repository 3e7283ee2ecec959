// Device helpers of the kernels that attn-mlir generates for Hopper (sm_90a), after attn_wgmma.cuh: elected threads, registers, barriers of warps,
// TMA's stores and additions, semaphores, 16-bit numbers, shared memory, arithmetic.
//
// Shared memory is addressed by 32-bit addresses (`shared_address`). Tiles in shared memory are swizzle atoms of 64 columns of 16 bits: a row of an
// atom has 128 bytes, an atom all rows of the tile one after the other, the 16-byte chunks of a row are permuted by TMA's 128-byte swizzle
// (`swizzle_128`), and an atom starts at a multiple of 1024 bytes.
#pragma once
#include <cuda.h>
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <stdint.h>

namespace attn {

// ---- addresses, threads ----------------------------------------------------------------------------------------------------------------

ATTN_DEVICE uint32_t shared_address(const void *pointer) { return static_cast<uint32_t>(__cvta_generic_to_shared(pointer)); }

// Where TMA with a swizzle of 128 bytes puts the byte at `offset` of a swizzle atom with rows of 128 bytes.
ATTN_DEVICE uint32_t swizzle_128(uint32_t offset) { return offset ^ ((offset >> 3) & 0x70); }

// True in one thread of a converged warp.
ATTN_DEVICE bool elect_one() {
  uint32_t elected;
  asm volatile("{\n.reg .pred p;\nelect.sync _|p, 0xffffffff;\nselp.u32 %0, 1, 0, p;\n}" : "=r"(elected));
  return elected != 0;
}

ATTN_DEVICE int warp_index() { return __shfl_sync(0xffffffffu, static_cast<int>(threadIdx.x) >> 5, 0); }

// What the lanes of the (converged) warp read and wrote comes before what any of them does next.
ATTN_DEVICE void warp_sync() { __syncwarp(); }

// `value`; the compiler does not know that it is, so it computes again what depends on it instead of keeping it in registers.
ATTN_DEVICE int opaque(int value) {
  asm volatile("" : "+r"(value));
  return value;
}

// threadIdx.x, read again: what rare code computes from it does not stay in registers in between.
ATTN_DEVICE int thread_again() {
  int thread;
  asm volatile("mov.u32 %0, %%tid.x;" : "=r"(thread));
  return thread;
}

// ---- registers of a warpgroup ----------------------------------------------------------------------------------------------------------
// The sum over threads of the registers asked for must not exceed registers at launch x threads: otherwise the kernel hangs.

template <int Registers> ATTN_DEVICE void more_registers() { asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(Registers)); }
template <int Registers> ATTN_DEVICE void fewer_registers() { asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(Registers)); }

// ---- barriers --------------------------------------------------------------------------------------------------------------------------

ATTN_DEVICE void barrier_arrive(uint32_t barrier) {
  asm volatile("{\n.reg .b64 state;\nmbarrier.arrive.shared::cta.b64 state, [%0];\n}" ::"r"(barrier) : "memory");
}
// A warp gives back what its lanes have read: the `chosen` one arrives for all. racecheck sees no order between what a lane read and an arrival of
// another one; so where code is built for it, every lane arrives, and such a barrier counts kWarpArrivals for each warp.
#ifdef ATTN_EVERY_LANE_ARRIVES
constexpr int kWarpArrivals = 32;
__device__ __attribute__((used)) const char every_lane_arrives[] = "attn: every lane arrives"; // tells such machine code
#else
constexpr int kWarpArrivals = 1;
#endif
ATTN_DEVICE void warp_arrive(uint32_t barrier, bool chosen) {
  if (kWarpArrivals == 32 || chosen) barrier_arrive(barrier);
}
// The arrivals of `threads` that have met, of which the chosen one arrives for all (`warp_arrive` in each of them).
ATTN_DEVICE constexpr int arrivals_of(int threads) { return kWarpArrivals == 32 ? threads : 1; }
// ---- TMA -------------------------------------------------------------------------------------------------------------------------------

// The same of a ragged view, with what leads back to its tensor.
ATTN_DEVICE void tma_load(uint32_t to, const CUtensorMap *map, uint32_t barrier, int column, int row, int head, int entry, int back) {
  asm volatile("cp.async.bulk.tensor.5d.shared::cluster.global.tile.mbarrier::complete_tx::bytes [%0], [%1, {%3, %4, %5, %6, %7}], [%2];" ::"r"(to),
               "l"(reinterpret_cast<uint64_t>(map)), "r"(barrier), "r"(column), "r"(row), "r"(head), "r"(entry), "r"(back)
               : "memory");
}
ATTN_DEVICE void tma_store(const CUtensorMap *map, uint32_t from, int column, int row, int head, int entry, int back) {
  asm volatile("cp.async.bulk.tensor.5d.global.shared::cta.tile.bulk_group [%0, {%2, %3, %4, %5, %6}], [%1];" ::"l"(reinterpret_cast<uint64_t>(map)),
               "r"(from), "r"(column), "r"(row), "r"(head), "r"(entry), "r"(back)
               : "memory");
}
ATTN_DEVICE void tma_add(const CUtensorMap *map, uint32_t from, int column, int row, int head, int entry, int back) {
  asm volatile("cp.reduce.async.bulk.tensor.5d.global.shared::cta.add.tile.bulk_group [%0, {%2, %3, %4, %5, %6}], [%1];" ::"l"(
                   reinterpret_cast<uint64_t>(map)),
               "r"(from), "r"(column), "r"(row), "r"(head), "r"(entry), "r"(back)
               : "memory");
}
ATTN_DEVICE void tma_store(const CUtensorMap *map, uint32_t from, int column, int row, int head, int batch) {
  asm volatile("cp.async.bulk.tensor.4d.global.shared::cta.tile.bulk_group [%0, {%2, %3, %4, %5}], [%1];" ::"l"(reinterpret_cast<uint64_t>(map)),
               "r"(from), "r"(column), "r"(row), "r"(head), "r"(batch)
               : "memory");
}
// Adds a tile of shared memory to a tensor.
ATTN_DEVICE void tma_add(const CUtensorMap *map, uint32_t from, int column, int row, int head, int batch) {
  asm volatile("cp.reduce.async.bulk.tensor.4d.global.shared::cta.add.tile.bulk_group [%0, {%2, %3, %4, %5}], [%1];" ::"l"(
                   reinterpret_cast<uint64_t>(map)),
               "r"(from), "r"(column), "r"(row), "r"(head), "r"(batch)
               : "memory");
}
// The stores and additions that this thread issued: close a group; wait until all but the newest `Pending` groups have read shared memory, or
// are done altogether.
ATTN_DEVICE void bulk_commit() { asm volatile("cp.async.bulk.commit_group;" ::: "memory"); }
template <int Pending> ATTN_DEVICE void bulk_wait_read() { asm volatile("cp.async.bulk.wait_group.read %0;" ::"n"(Pending) : "memory"); }
template <int Pending> ATTN_DEVICE void bulk_wait() { asm volatile("cp.async.bulk.wait_group %0;" ::"n"(Pending) : "memory"); }

// ---- semaphores: programs that add to the same memory do so in the order of their numbers ---------------------------------------------------

// Waits until the counter is `number`.
ATTN_DEVICE void semaphore_wait(const int *semaphore, int number) {
  int now;
  do asm volatile("ld.acquire.gpu.global.s32 %0, [%1];" : "=r"(now) : "l"(semaphore) : "memory");
  while (now != number);
}
// Waits until the counter is `number` or more; then what was written before that comes before what TMA does for this thread.
ATTN_DEVICE void semaphore_reached(const int *semaphore, int number) {
  int now;
  do asm volatile("ld.acquire.gpu.global.s32 %0, [%1];" : "=r"(now) : "l"(semaphore) : "memory");
  while (now < number);
  asm volatile("fence.proxy.async.global;" ::: "memory");
}
// The counter as it is; what comes after a fence is ordered after it.
ATTN_DEVICE int semaphore_now(const int *semaphore) {
  int now;
  asm volatile("ld.relaxed.gpu.global.s32 %0, [%1];" : "=r"(now) : "l"(semaphore) : "memory");
  return now;
}
// The same, behind which comes all that was done before it was written.
ATTN_DEVICE int semaphore_seen(const int *semaphore) {
  int now;
  asm volatile("ld.acquire.gpu.global.s32 %0, [%1];" : "=r"(now) : "l"(semaphore) : "memory");
  return now;
}
// Makes a counter that is 0 1, and gives what it was.
ATTN_DEVICE int claim(int *semaphore) {
  int now;
  asm volatile("atom.acquire.gpu.global.cas.b32 %0, [%1], 0, 1;" : "=r"(now) : "l"(semaphore) : "memory");
  return now;
}
// Whether this thread block is the first one at a counter, which had been `now`; else waits until the first one has stored.
ATTN_DEVICE bool claim_first(int *semaphore, int now) {
  if (now == 2) return false;
  now = claim(semaphore);
  if (now == 1) semaphore_wait(semaphore, 2);
  return now == 0;
}
// Lets program `number` go on; what this thread had added by TMA is done (`bulk_wait<0>`).
ATTN_DEVICE void semaphore_pass(int *semaphore, int number) {
  asm volatile("fence.proxy.async.global;\nfence.acq_rel.gpu;\nst.relaxed.gpu.global.s32 [%0], %1;" ::"l"(semaphore), "r"(number) : "memory");
}

// ---- wgmma -----------------------------------------------------------------------------------------------------------------------------

// Orders `value` before the wgmma_wait that follows: a store that never happens (an empty asm does not stop ptxas). `value` is below 1e30.
ATTN_DEVICE void pin(float value) {
  asm volatile("{\n.reg .pred p;\nsetp.gt.f32 p, %0, 0f71000000;\n@p st.shared.u32 [%1], %1;\n}" ::"f"(value), "r"(0) : "memory");
}

// Descriptors of operands in shared memory. `K-major`: rows of the swizzle atom are rows (M or N) of the operand and its columns run along K.
// `MN-major` (the "_ta", "_tb" instructions): rows of the swizzle atom run along K and its columns along M or N; `atom_bytes` from one atom
// of columns to the next. Address: K-major: atom + row * 128 + k * 2 for k < 64, rows a multiple of 8; MN-major: atom + k * 128.
// `swizzle`: 1 permutes rows of 128 bytes, 2 of 64, 3 of 32.
ATTN_DEVICE constexpr uint64_t descriptor_bits(uint32_t leading_bytes, uint32_t stride_bytes, uint64_t swizzle = 1) {
  return (static_cast<uint64_t>(leading_bytes >> 4) << 16) | (static_cast<uint64_t>(stride_bytes >> 4) << 32) | (swizzle << 62);
}
ATTN_DEVICE uint64_t descriptor_at(uint32_t address, uint64_t bits) {
  return descriptor_of((address >> 4) + static_cast<uint32_t>(bits), static_cast<uint32_t>(bits >> 32));
}
ATTN_DEVICE uint64_t k_major(uint32_t address) { return descriptor_at(address, descriptor_bits(16, 1024)); }
ATTN_DEVICE uint64_t k_major_64(uint32_t address) { return descriptor_at(address, descriptor_bits(16, 512, 2)); }
ATTN_DEVICE uint64_t k_major_32(uint32_t address) { return descriptor_at(address, descriptor_bits(16, 256, 3)); }
ATTN_DEVICE uint64_t mn_major(uint32_t address, uint32_t atom_bytes) {
  return descriptor_at(address, descriptor_bits(atom_bytes, 1024));
}
// An MN-major operand of one swizzle atom; its second one is the 16 rows at `beside`, further on in memory, at every step along K.
ATTN_DEVICE uint64_t mn_major_beside(uint32_t address, uint32_t beside) { return mn_major(address, beside - address); }
ATTN_DEVICE uint64_t advance_beside(uint64_t descriptor, uint32_t bytes) {
  return (descriptor & 0xFFFFFFFF00000000ull) | (static_cast<uint32_t>(descriptor) + (bytes >> 4) - ((bytes >> 4) << 16));
}
// `value`, known to the compiler to be the same in all threads of the (converged) warp: what is computed from it stays in uniform registers.
ATTN_DEVICE int uniform(int value) { return static_cast<int>(__reduce_or_sync(0xffffffffu, static_cast<unsigned>(value))); }

// ---- 16-bit numbers, matrices between registers and shared memory ----------------------------------------------------------------------

ATTN_DEVICE uint32_t pack_f16(float low, float high) {
  uint32_t packed;
  asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(packed) : "f"(high), "f"(low));
  return packed;
}
ATTN_DEVICE uint32_t pack_bf16(float low, float high) {
  uint32_t packed;
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(packed) : "f"(high), "f"(low));
  return packed;
}
// Four 8x8 matrices of 16 bits; lane l gives the address of row l % 8 of matrix l / 8 (16 bytes).
ATTN_DEVICE void store_matrices(uint32_t address, uint32_t a, uint32_t b, uint32_t c, uint32_t d) {
  asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(address), "r"(a), "r"(b), "r"(c), "r"(d) : "memory");
}
ATTN_DEVICE void load_matrices(uint32_t address, uint32_t (&m)[4]) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(m[0]), "=r"(m[1]), "=r"(m[2]), "=r"(m[3]) : "r"(address) : "memory");
}
// As load_matrices, each 8x8 matrix transposed on its way.
ATTN_DEVICE void load_matrices_transposed(uint32_t address, uint32_t (&m)[4]) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(m[0]), "=r"(m[1]), "=r"(m[2]), "=r"(m[3]) : "r"(address) : "memory");
}
ATTN_DEVICE void store_matrices_transposed(uint32_t address, uint32_t a, uint32_t b, uint32_t c, uint32_t d) {
  asm volatile("stmatrix.sync.aligned.m8n8.x4.trans.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(address), "r"(a), "r"(b), "r"(c), "r"(d)
               : "memory");
}
ATTN_DEVICE float load_shared(uint32_t address) {
  float value;
  asm volatile("ld.shared.f32 %0, [%1];" : "=f"(value) : "r"(address) : "memory");
  return value;
}
ATTN_DEVICE float2 load_shared2(uint32_t address) {
  float2 value;
  asm volatile("ld.shared.v2.f32 {%0, %1}, [%2];" : "=f"(value.x), "=f"(value.y) : "r"(address) : "memory");
  return value;
}
ATTN_DEVICE void store_shared(uint32_t address, float value) { asm volatile("st.shared.f32 [%0], %1;" ::"r"(address), "f"(value) : "memory"); }
ATTN_DEVICE void store_shared2(uint32_t address, float a, float b) {
  asm volatile("st.shared.v2.f32 [%0], {%1, %2};" ::"r"(address), "f"(a), "f"(b) : "memory");
}
ATTN_DEVICE int load_shared_int(uint32_t address) {
  int value;
  asm volatile("ld.shared.s32 %0, [%1];" : "=r"(value) : "r"(address) : "memory");
  return value;
}
ATTN_DEVICE int4 load_shared_int4(uint32_t address) {
  int4 value;
  asm volatile("ld.shared.v4.s32 {%0, %1, %2, %3}, [%4];" : "=r"(value.x), "=r"(value.y), "=r"(value.z), "=r"(value.w) : "r"(address) : "memory");
  return value;
}
ATTN_DEVICE void store_shared_int4(uint32_t address, int x, int y, int z, int w) {
  asm volatile("st.shared.v4.s32 [%0], {%1, %2, %3, %4};" ::"r"(address), "r"(x), "r"(y), "r"(z), "r"(w) : "memory");
}
ATTN_DEVICE void store_shared_int(uint32_t address, int value) { asm volatile("st.shared.s32 [%0], %1;" ::"r"(address), "r"(value) : "memory"); }

// ---- arithmetic ------------------------------------------------------------------------------------------------------------------------

// Over the 4 lanes that hold one row of an accumulator.
ATTN_DEVICE float quad_max(float x) {
  x = fmaxf(x, __shfl_xor_sync(0xffffffffu, x, 1));
  return fmaxf(x, __shfl_xor_sync(0xffffffffu, x, 2));
}
ATTN_DEVICE float quad_sum(float x) {
  x += __shfl_xor_sync(0xffffffffu, x, 1);
  return x + __shfl_xor_sync(0xffffffffu, x, 2);
}
// Multiplies the two rows of an accumulator by their factors, unless these are 1 in the whole warp.
template <int N> ATTN_DEVICE void rescale(float (&accumulator)[N], float factor0, float factor1) {
  if (__any_sync(0xffffffffu, (factor0 != 1.0f) | (factor1 != 1.0f)))
#pragma unroll
    for (int i = 0; i < N; ++i) accumulator[i] *= i & 2 ? factor1 : factor0;
}

// Additions to global memory without a result.
ATTN_DEVICE void add_global(float *to, float a) { asm volatile("red.global.add.f32 [%0], %1;" ::"l"(to), "f"(a) : "memory"); }
ATTN_DEVICE void add_global(float *to, float a, float b) { // 8-byte aligned
  asm volatile("red.global.add.v2.f32 [%0], {%1, %2};" ::"l"(to), "f"(a), "f"(b) : "memory");
}
ATTN_DEVICE void add_global(float *to, float a, float b, float c, float d) { // 16-byte aligned
  asm volatile("red.global.add.v4.f32 [%0], {%1, %2, %3, %4};" ::"l"(to), "f"(a), "f"(b), "f"(c), "f"(d) : "memory");
}

} // namespace attn
