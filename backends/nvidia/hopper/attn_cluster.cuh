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

ATTN_DEVICE float4 load_shared4(uint32_t address) {
  float4 value;
  asm volatile("ld.shared.v4.f32 {%0, %1, %2, %3}, [%4];" : "=f"(value.x), "=f"(value.y), "=f"(value.z), "=f"(value.w) : "r"(address) : "memory");
  return value;
}

// Where the warps of a thread block leave fragments: `Buffers` of them in turn, each with barriers of those that have left theirs (`full`), and of
// those that have read what was left (`free`).
template <int Buffers, int Warps, int Bytes> struct Fragments {
  uint32_t buffers, full, free;
  ATTN_DEVICE uint32_t warp() const { return threadIdx.x / 32; }
  ATTN_DEVICE uint32_t buffer(uint32_t round) const { return buffers + (round % Buffers * Warps + warp()) * Bytes + threadIdx.x % 32 * 16; }
  ATTN_DEVICE uint32_t barrier(uint32_t of, uint32_t round) const { return of + (round % Buffers * Warps + warp()) * 8; }
  ATTN_DEVICE uint32_t parity(uint32_t round) const { return round / Buffers & 1; }
};
// The warp tells the same warps of the other thread blocks that all its lanes have stored or read.
template <int Parts> ATTN_DEVICE void tell_others(uint32_t barrier) {
  __syncwarp();
  if (threadIdx.x % 32 == 0) {
#pragma unroll
    for (int next = 1; next < Parts; ++next) barrier_arrive_there(shared_of(barrier, (cluster_rank() + next) % Parts));
  }
}
// Leaves a fragment for the same warps of all `Parts` thread blocks; `round` counts.
template <int Parts, class Places, int N> ATTN_DEVICE void leave_for_cluster(const float (&part)[N], const Places places, uint32_t round) {
  static_assert(N % 4 == 0, "16 bytes are read at a time");
  barrier_wait_cluster(places.barrier(places.free, round), places.parity(round) ^ 1); // the others have read what was here before
#pragma unroll
  for (int i = 0; i < N; i += 4) store_shared4(places.buffer(round) + i * 128, part[i], part[i + 1], part[i + 2], part[i + 3]);
  tell_others<Parts>(places.barrier(places.full, round));
}
// Adds what all have left, in the order of their ranks: all get the same bits.
template <int Parts, class Places, int N> ATTN_DEVICE void take_of_cluster(float (&sums)[N], const Places places, uint32_t round) {
  const uint32_t mine = places.buffer(round);
  barrier_wait_cluster(places.barrier(places.full, round), places.parity(round));
#pragma unroll
  for (int of = 0; of < Parts; ++of) {
    // Two have the same sum in either order. More are read one after the other: all at once need too many registers.
    const uint32_t there = shared_of(mine, Parts == 2 ? cluster_rank() ^ of : of);
    if (of > 1) __syncwarp(), hold(sums);
#pragma unroll
    for (int i = 0; i < N; i += 4) {
      const float4 part = Parts == 2 && of == 0 ? load_shared4(mine + i * 128) : load_there(there + i * 128);
      sums[i] = of ? sums[i] + part.x : part.x, sums[i + 1] = of ? sums[i + 1] + part.y : part.y;
      sums[i + 2] = of ? sums[i + 2] + part.z : part.z, sums[i + 3] = of ? sums[i + 3] + part.w : part.w;
    }
  }
  tell_others<Parts>(places.barrier(places.free, round));
}

} // namespace attn
