// What racecheck knows of an order between lanes: a word in shared memory goes from one writing lane to a reading warp and back, by two
// mbarriers. All lanes read the word and are synchronised; then one of them gives it back, or, with -DALL=1, each does so itself.
//
//   nvcc -arch=sm_90a -O3 -DALL=0 racecheck_handover.cu -o handover && compute-sanitizer --tool racecheck --racecheck-report all ./handover
//
// On an H200 with CUDA 13.0: 256 potential WAR hazards with ALL=0, none with ALL=1; the results are right in both.
#include <cstdint>
#include <cstdio>

__device__ __forceinline__ void arrive(uint32_t barrier) {
  asm volatile("{\n.reg .b64 state;\nmbarrier.arrive.shared::cta.b64 state, [%0];\n}" ::"r"(barrier) : "memory");
}

__device__ __forceinline__ void await(uint32_t barrier, uint32_t parity) {
  asm volatile("{\n"
               ".reg .pred done;\n"
               "again:\n"
               "mbarrier.try_wait.parity.shared::cta.b64 done, [%0], %1;\n"
               "@done bra finished;\n"
               "bra again;\n"
               "finished:\n"
               "}" ::"r"(barrier), "r"(parity) : "memory");
}

__global__ void handover(int *out, int rounds) {
  __shared__ __align__(8) unsigned long long barriers[2];
  __shared__ volatile int word;
  const uint32_t full = static_cast<uint32_t>(__cvta_generic_to_shared(&barriers[0])), free = full + 8;
  if (threadIdx.x == 0) {
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(full), "r"(1));
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(free), "r"(ALL ? 32 : 1));
  }
  __syncthreads();
  int sum = 0;
  for (int round = 0; round < rounds; ++round) {
    if (threadIdx.x < 32) { // the writer's warp
      await(free, (round & 1) ^ 1);
      if (threadIdx.x == 0) {
        word = round;
        arrive(full);
      }
      __syncwarp();
    } else {
      await(full, round & 1);
      sum += word;
      uint32_t below, above; // a mask that ptxas does not know, so that it keeps the instruction
      asm volatile("mov.u32 %0, %%lanemask_le;\nmov.u32 %1, %%lanemask_gt;" : "=r"(below), "=r"(above));
      __syncwarp(below | above);
      if (ALL || threadIdx.x == 32) arrive(free);
    }
  }
  if (threadIdx.x >= 32) out[threadIdx.x - 32] = sum;
}

int main() {
  int *out, host[32];
  cudaMalloc(&out, sizeof(host));
  handover<<<1, 64>>>(out, 64);
  cudaMemcpy(host, out, sizeof(host), cudaMemcpyDeviceToHost);
  printf("sum %d of 2016, %s\n", host[5], cudaGetErrorString(cudaGetLastError()));
}
