// Device helpers of kernels whose thread blocks share the columns of rows in a cluster: each multiplies its columns of queries and keys, and
// warps of the same number add what they have of a block's scores.
//
// The warps of a cluster that have the same rows send each other their fragments, 16 bytes of a lane at a time, straight into shared memory of
// the others, whose mbarriers count the bytes. A buffer is sent to again once its reader has said that it is read.
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
ATTN_DEVICE void send(uint32_t to, uint32_t barrier, float a, float b, float c, float d) {
  asm volatile("st.async.shared::cluster.mbarrier::complete_tx::bytes.v4.f32 [%0], {%1, %2, %3, %4}, [%5];" ::"r"(to), "f"(a), "f"(b), "f"(c), "f"(d),
               "r"(barrier)
               : "memory");
}
ATTN_DEVICE float4 load_shared4(uint32_t address) {
  float4 value;
  asm volatile("ld.shared.v4.f32 {%0, %1, %2, %3}, [%4];" : "=f"(value.x), "=f"(value.y), "=f"(value.z), "=f"(value.w) : "r"(address) : "memory");
  return value;
}

ATTN_DEVICE void store_shared4(uint32_t address, float a, float b, float c, float d) {
  asm volatile("st.shared.v4.f32 [%0], {%1, %2, %3, %4};" ::"r"(address), "f"(a), "f"(b), "f"(c), "f"(d) : "memory");
}
// Copies shared memory to that of another thread block, whose barrier counts the bytes.
ATTN_DEVICE void copy_there(uint32_t to, uint32_t from, uint32_t bytes, uint32_t barrier) {
  asm volatile("cp.async.bulk.shared::cluster.shared::cta.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(to), "r"(from), "r"(bytes),
               "r"(barrier)
               : "memory");
}

// An address in shared memory without the rank of its thread block: in a descriptor of an operand it would be a part of the distance of atoms.
ATTN_DEVICE uint32_t without_rank(uint32_t address) { return address & 0x3ffff; }

// Sends a warp's fragment to the warps of the same number of all `Parts` thread blocks.
// `buffer`: this warp's part of the first of `Parts - 1` buffers of `SlotBytes`; `full`, `free`: its barriers; `round` counts.
template <int Parts, int SlotBytes, int N>
ATTN_DEVICE void send_to_cluster(const float (&scores)[N], uint32_t buffer, uint32_t full, uint32_t free, uint32_t round) {
  static_assert(N % 4 == 0, "16 bytes are sent at a time");
  const uint32_t rank = cluster_rank(), mine = threadIdx.x % 32 * 16;
  barrier_wait_cluster(free, (round & 1) ^ 1); // the others have read what was sent before
  if (threadIdx.x % 32 == 0) barrier_arrive_expect(full, (Parts - 1) * N * 4 * 32);
#pragma unroll
  for (int next = 1; next < Parts; ++next) {
    const uint32_t there = (rank + next) % Parts;
    const uint32_t to = shared_of(buffer, there) + (Parts - 1 - next) * SlotBytes + mine, barrier = shared_of(full, there);
#pragma unroll
    for (int i = 0; i < N; i += 4) send(to + i * 128, barrier, scores[i], scores[i + 1], scores[i + 2], scores[i + 3]);
  }
}

// The same by a copy of the bulk engine for each of the others, from one more buffer: its copies have been read when all others are free.
template <int Parts, int SlotBytes, int N>
ATTN_DEVICE void copy_to_cluster(const float (&scores)[N], uint32_t buffer, uint32_t full, uint32_t free, uint32_t round) {
  static_assert(N % 4 == 0, "16 bytes are stored at a time");
  const uint32_t rank = cluster_rank(), from = buffer + (Parts - 1) * SlotBytes;
  barrier_wait_cluster(free, (round & 1) ^ 1);
#pragma unroll
  for (int i = 0; i < N; i += 4) store_shared4(from + threadIdx.x % 32 * 16 + i * 128, scores[i], scores[i + 1], scores[i + 2], scores[i + 3]);
  fence_proxy_async(); // the bulk engine reads what lanes wrote
  __syncwarp();
  if (threadIdx.x % 32 == 0) {
    barrier_arrive_expect(full, (Parts - 1) * N * 4 * 32);
#pragma unroll
    for (int next = 1; next < Parts; ++next) {
      const uint32_t there = (rank + next) % Parts;
      copy_there(shared_of(buffer, there) + (Parts - 1 - next) * SlotBytes, from, N * 4 * 32, shared_of(full, there));
    }
  }
}

// Adds the fragments of the same warp of all `Parts` thread blocks, in the order of their ranks: all get the same bits.
// What was sent last stands in `scores`.
template <int Parts, int SlotBytes, int N>
ATTN_DEVICE void add_of_cluster(float (&scores)[N], uint32_t buffer, uint32_t full, uint32_t free, uint32_t round) {
  const uint32_t rank = cluster_rank(), mine = threadIdx.x % 32 * 16;
  barrier_wait_cluster(full, round & 1);
  if constexpr (Parts == 2) {
#pragma unroll
    for (int i = 0; i < N; i += 4) {
      const float4 other = load_shared4(buffer + mine + i * 128);
      scores[i] += other.x, scores[i + 1] += other.y, scores[i + 2] += other.z, scores[i + 3] += other.w;
    }
  } else {
#pragma unroll
    for (int i = 0; i < N; i += 4) {
      float sum[4] = {};
#pragma unroll
      for (int of = 0; of < Parts; ++of) {
        float4 part = make_float4(scores[i], scores[i + 1], scores[i + 2], scores[i + 3]);
        const uint32_t before = (rank + Parts - of) % Parts;
        if (before != 0) part = load_shared4(buffer + (Parts - 1 - before) * SlotBytes + mine + i * 128);
        sum[0] = of ? sum[0] + part.x : part.x, sum[1] = of ? sum[1] + part.y : part.y;
        sum[2] = of ? sum[2] + part.z : part.z, sum[3] = of ? sum[3] + part.w : part.w;
      }
      scores[i] = sum[0], scores[i + 1] = sum[1], scores[i + 2] = sum[2], scores[i + 3] = sum[3];
    }
  }
  __syncwarp(); // all lanes have read
  if (threadIdx.x % 32 == 0) {
#pragma unroll
    for (int next = 1; next < Parts; ++next) barrier_arrive_there(shared_of(free, (rank + next) % Parts));
  }
}

} // namespace attn
