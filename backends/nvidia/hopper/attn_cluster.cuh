// Device helpers of kernels whose thread blocks share the columns of rows in a cluster: each multiplies its columns of queries and keys, and
// warps of the same number add what they have of a block's scores.
//
// The warps of a cluster that have the same rows leave each other their fragments in shared memory, 16 bytes of a lane at a time, and read those of
// the others there. A buffer is written again once all others have said that they have read it.
#pragma once

namespace attn {

ATTN_DEVICE uint32_t cluster_rank() {
  uint32_t rank;
  asm("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
  return rank;
}
// All threads of the cluster that have not ended meet; what they wrote to shared memory and barriers is seen after it.
ATTN_DEVICE void cluster_sync() {
  __syncwarp(); // warps arrive together
  asm volatile("barrier.cluster.arrive.release.aligned;\nbarrier.cluster.wait.acquire.aligned;" ::: "memory");
}
// Where an address in shared memory is in the thread block of this rank.
ATTN_DEVICE uint32_t shared_of(uint32_t address, uint32_t rank) {
  uint32_t there;
  asm("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(there) : "r"(address), "r"(rank));
  return there;
}
ATTN_DEVICE void barrier_arrive_there(uint32_t barrier) {
  asm volatile("mbarrier.arrive.release.cluster.shared::cluster.b64 _, [%0];" ::"r"(barrier) : "memory");
}
// `barrier_wait` for what other thread blocks of the cluster did.
ATTN_DEVICE void barrier_wait_cluster(uint32_t barrier, uint32_t parity) {
  asm volatile("{\n"
               ".reg .pred done;\n"
               "again:\n"
               "mbarrier.try_wait.parity.acquire.cluster.shared::cta.b64 done, [%0], %1;\n"
               "@done bra finished;\n"
               "bra again;\n"
               "finished:\n"
               "}" ::"r"(barrier), "r"(parity) : "memory");
}
ATTN_DEVICE float4 load_there(uint32_t address) {
  float4 value;
  asm volatile("ld.shared::cluster.v4.f32 {%0, %1, %2, %3}, [%4];" : "=f"(value.x), "=f"(value.y), "=f"(value.z), "=f"(value.w) : "r"(address) : "memory");
  return value;
}
ATTN_DEVICE void store_shared4(uint32_t address, float a, float b, float c, float d) {
  asm volatile("st.shared.v4.f32 [%0], {%1, %2, %3, %4};" ::"r"(address), "f"(a), "f"(b), "f"(c), "f"(d) : "memory");
}
// An address in shared memory without the rank of its thread block, as descriptors of operands have no room for it.
ATTN_DEVICE uint32_t without_rank(uint32_t address) { return address & 0x3ffff; }

// Adds the fragments of the same warp of all `Parts` thread blocks, in the order of their ranks: all get the same bits.
// `buffer`: where this warp puts its own, for the others to read; `full`: its barrier of those that have done so; `free`: of those that have
// read; `round` counts.
template <int Parts, int N> ATTN_DEVICE void add_of_cluster(float (&scores)[N], uint32_t buffer, uint32_t full, uint32_t free, uint32_t round) {
  static_assert(N % 4 == 0, "16 bytes are read at a time");
  const uint32_t rank = cluster_rank(), mine = buffer + threadIdx.x % 32 * 16;
  const bool first = threadIdx.x % 32 == 0;
  barrier_wait_cluster(free, (round & 1) ^ 1); // the others have read what was here before
#pragma unroll
  for (int i = 0; i < N; i += 4) store_shared4(mine + i * 128, scores[i], scores[i + 1], scores[i + 2], scores[i + 3]);
  __syncwarp(); // all lanes have stored theirs
  if (first) {
#pragma unroll
    for (int next = 1; next < Parts; ++next) barrier_arrive_there(shared_of(full, (rank + next) % Parts));
  }
  barrier_wait_cluster(full, round & 1);
  if constexpr (Parts == 2) {
    const uint32_t there = shared_of(mine, rank ^ 1);
#pragma unroll
    for (int i = 0; i < N; i += 4) {
      const float4 other = load_there(there + i * 128);
      scores[i] += other.x, scores[i + 1] += other.y, scores[i + 2] += other.z, scores[i + 3] += other.w;
    }
  } else {
#pragma unroll
    for (int i = 0; i < N; i += 4) {
      float sum[4];
#pragma unroll
      for (int of = 0; of < Parts; ++of) {
        float4 part = make_float4(scores[i], scores[i + 1], scores[i + 2], scores[i + 3]);
        if (of != static_cast<int>(rank)) part = load_there(shared_of(mine, of) + i * 128);
        sum[0] = of ? sum[0] + part.x : part.x, sum[1] = of ? sum[1] + part.y : part.y;
        sum[2] = of ? sum[2] + part.z : part.z, sum[3] = of ? sum[3] + part.w : part.w;
      }
      scores[i] = sum[0], scores[i + 1] = sum[1], scores[i + 2] = sum[2], scores[i + 3] = sum[3];
    }
  }
  __syncwarp(); // all lanes have read
  if (first) {
#pragma unroll
    for (int next = 1; next < Parts; ++next) barrier_arrive_there(shared_of(free, (rank + next) % Parts));
  }
}

} // namespace attn
