// What arithmetic and matrix products of a multiprocessor of Hopper cost each other: one warpgroup multiplies, two others compute.
//
//   nvcc -O3 -std=c++17 -gencode arch=compute_90a,code=sm_90a -o contention benchmarks/nvidia_contention.cu && ./contention
//
// Clocks of a product of 64 x 128 x 128 (16-bit factors, float32 sums), and, for each of the four schedulers, of 64 instructions of a warp or of
// Philox's bits for 64 pairs a lane; alone, and while the others run. docs/notes/dropout-h100.md says what follows from them.
#include <cstdint>
#include <cstdio>
#include <cuda_runtime.h>

enum { NOTHING, IMAD, WIDE, LOP3, ADD, EX2, PHILOX };
constexpr uint32_t kPhilox0 = 0xD2511F53, kPhilox1 = 0xCD9E8D57, kWeyl0 = 0x9E3779B9, kWeyl1 = 0xBB67AE85;

__device__ uint64_t descriptor(uint32_t address) { // rows of 128 bytes, swizzled, eight of them 1024 bytes apart
  return (uint64_t)(address >> 4 & 0x3fff) | (uint64_t)1 << 16 | (uint64_t)64 << 32 | (uint64_t)1 << 62;
}
__device__ __forceinline__ void multiply(float (&d)[64], uint64_t a, uint64_t b) {
  asm volatile("wgmma.mma_async.sync.aligned.m64n128k16.f32.f16.f16 "
               "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15,"
               " %16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31,"
               " %32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47,"
               " %48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63}, %64, %65, 1, 1, 1, 0, 0;"
               : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]), "+f"(d[4]), "+f"(d[5]), "+f"(d[6]), "+f"(d[7]),
                 "+f"(d[8]), "+f"(d[9]), "+f"(d[10]), "+f"(d[11]), "+f"(d[12]), "+f"(d[13]), "+f"(d[14]), "+f"(d[15]),
                 "+f"(d[16]), "+f"(d[17]), "+f"(d[18]), "+f"(d[19]), "+f"(d[20]), "+f"(d[21]), "+f"(d[22]), "+f"(d[23]),
                 "+f"(d[24]), "+f"(d[25]), "+f"(d[26]), "+f"(d[27]), "+f"(d[28]), "+f"(d[29]), "+f"(d[30]), "+f"(d[31]),
                 "+f"(d[32]), "+f"(d[33]), "+f"(d[34]), "+f"(d[35]), "+f"(d[36]), "+f"(d[37]), "+f"(d[38]), "+f"(d[39]),
                 "+f"(d[40]), "+f"(d[41]), "+f"(d[42]), "+f"(d[43]), "+f"(d[44]), "+f"(d[45]), "+f"(d[46]), "+f"(d[47]),
                 "+f"(d[48]), "+f"(d[49]), "+f"(d[50]), "+f"(d[51]), "+f"(d[52]), "+f"(d[53]), "+f"(d[54]), "+f"(d[55]),
                 "+f"(d[56]), "+f"(d[57]), "+f"(d[58]), "+f"(d[59]), "+f"(d[60]), "+f"(d[61]), "+f"(d[62]), "+f"(d[63])
               : "l"(a), "l"(b));
}
__device__ __forceinline__ uint64_t wide(uint32_t a, uint32_t b) {
  uint64_t d;
  asm volatile("mul.wide.u32 %0, %1, %2;" : "=l"(d) : "r"(a), "r"(b));
  return d;
}
__device__ __forceinline__ uint32_t high(uint64_t value) { return value >> 32; }
__device__ __forceinline__ uint32_t low(uint64_t value) { return static_cast<uint32_t>(value); }

// Four calls of Philox beside each other, from the third round on, and their 64 bits: what a lane does for its 64 pairs.
__device__ __forceinline__ uint32_t philox(uint32_t n) {
  uint32_t c0[4], c1[4], c2[4], c3[4], bits[4] = {0, 0, 0, 0};
#pragma unroll
  for (int i = 0; i < 4; ++i) c0[i] = n * 8 + i, c1[i] = threadIdx.x, c2[i] = n ^ i, c3[i] = threadIdx.x * 7;
#pragma unroll
  for (uint32_t round = 2; round < 10; ++round)
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const uint64_t a = wide(c0[i], kPhilox0), b = wide(c2[i], kPhilox1);
      c0[i] = high(b) ^ c1[i] ^ (12345 + round * kWeyl0), c1[i] = low(b);
      c2[i] = high(a) ^ c3[i] ^ (678 + round * kWeyl1), c3[i] = low(a);
    }
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const uint32_t carry = ((c0[i] ^ c1[i] ^ c2[i] ^ c3[i]) & 0x1ffffffu) < 0x199999u ? 0x73737373u : 0x74747474u;
    const uint32_t four[4] = {c0[i], c1[i], c2[i], c3[i]};
#pragma unroll
    for (int w = 0; w < 4; ++w) bits[w] = (((four[w] & 0x7f7f7f7fu) + carry) & 0x80808080u) | (bits[w] >> 1 & 0x7f7f7f7fu);
  }
  return bits[0] ^ bits[1] ^ bits[2] ^ bits[3];
}

extern __shared__ __align__(1024) unsigned char memory[];

template <int What> __global__ void __launch_bounds__(384, 1) run(int products, int work, float *out, long long *clocks) {
  const uint32_t shared = static_cast<uint32_t>(__cvta_generic_to_shared(memory));
  float *mine = out + blockIdx.x * 384 + threadIdx.x;
  __syncthreads();
  if (threadIdx.x < 128) {
    if (products == 0) return;
    float d[64];
    for (int i = 0; i < 64; ++i) d[i] = 0;
    const uint64_t a = descriptor(shared), b = descriptor(shared + 16384);
    const long long start = clock64();
    for (int n = 0; n < products; ++n) {
      asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
      for (int i = 0; i < 8; ++i) multiply(d, a + 2 * (i & 3), b + 2 * (i & 3));
      asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
      asm volatile("wgmma.wait_group.sync.aligned 0;" ::: "memory");
    }
    if (threadIdx.x == 0 && blockIdx.x == 0) clocks[0] = clock64() - start;
    float sum = 0;
    for (int i = 0; i < 64; ++i) sum += d[i];
    *mine = sum;
    return;
  }
  if (work == 0) return;
  uint32_t x[8], kept = 0;
  float f[8];
  for (int i = 0; i < 8; ++i) x[i] = threadIdx.x * 77 + i, f[i] = threadIdx.x * 1e-3f + i;
  const long long start = clock64();
#pragma unroll 1
  for (int n = 0; n < work; ++n) {
    if (What == PHILOX) {
      kept ^= philox(n);
      continue;
    }
#pragma unroll
    for (int step = 0; step < 8; ++step)
#pragma unroll
      for (int i = 0; i < 8; ++i) {
        const uint32_t other = x[(i + 1) & 7], third = x[(i + 3) & 7];
        if (What == IMAD) asm volatile("mad.lo.u32 %0, %0, %1, %2;" : "+r"(x[i]) : "r"(kPhilox0), "r"(other));
        if (What == LOP3) asm volatile("lop3.b32 %0, %0, %1, %2, 0x96;" : "+r"(x[i]) : "r"(third), "r"(other));
        if (What == ADD) asm volatile("add.u32 %0, %0, %1;" : "+r"(x[i]) : "r"(other));
        if (What == EX2) asm volatile("ex2.approx.ftz.f32 %0, %0;" : "+f"(f[i]));
        if (What == WIDE) {
          const uint64_t product = wide(x[i], kPhilox0);
          x[i] = high(product), kept = step == 7 ? kept ^ low(product) : kept;
        }
      }
  }
  if (threadIdx.x == 128 && blockIdx.x == 0) clocks[1] = clock64() - start;
  for (int i = 0; i < 8; ++i) kept ^= x[i] ^ __float_as_uint(f[i]);
  *mine = kept;
}

template <int What> void measure(const char *name, float *out, long long *clocks) {
  constexpr int kWork = 40000, kProducts = 5000, kShared = 65536;
  cudaFuncSetAttribute(run<What>, cudaFuncAttributeMaxDynamicSharedMemorySize, kShared);
  const auto launch = [&](int products, int work, int which, double by) {
    long long found[2] = {0, 0};
    run<What><<<132, 384, kShared>>>(products, work, out, clocks);
    cudaMemcpy(found, clocks, sizeof found, cudaMemcpyDeviceToHost);
    return found[which] / by;
  };
  launch(kProducts, kWork, 0, 1);
  const double product = launch(kProducts, 0, 0, kProducts), work = launch(0, kWork, 1, 2.0 * kWork);
  // The other kind lasts longer, so that what is timed runs beside it all the time.
  const double beside = launch(kProducts, 4 * kWork, 0, kProducts), work_beside = launch(10 * kProducts * 4, kWork, 1, 2.0 * kWork);
  printf("%-24s %8.0f %8.0f | %8.0f %8.0f   %s\n", name, product, beside, work, work_beside, cudaGetErrorString(cudaGetLastError()));
}

int main() {
  float *out;
  long long *clocks;
  cudaMalloc(&out, 132 * 384 * sizeof(float)), cudaMalloc(&clocks, 2 * sizeof(long long));
  cudaMemset(clocks, 0, 2 * sizeof(long long));
  printf("%-24s %8s %8s | %8s %8s\n", "clocks", "product", "beside", "work", "beside");
  measure<IMAD>("64 IMAD", out, clocks);
  measure<WIDE>("64 IMAD.WIDE", out, clocks);
  measure<LOP3>("64 LOP3", out, clocks);
  measure<ADD>("64 IADD", out, clocks);
  measure<EX2>("64 MUFU.EX2", out, clocks);
  measure<PHILOX>("Philox, 64 pairs a lane", out, clocks);
}
