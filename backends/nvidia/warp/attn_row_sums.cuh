#pragma once
namespace attn {
// The numbers of all lanes go to shared memory, N neighbouring places each; then the warp arrives.
template <int N> ATTN_DEVICE void write_rows(uint32_t to, const float (&numbers)[N], uint32_t barrier) {
  const int lane = threadIdx.x % 32;
#pragma unroll
  for (int i = 0; i < N; ++i) store_shared(to + 4 * (lane * N + i), numbers[i]);
  __syncwarp();
  if (lane == 0) barrier_arrive(barrier);
}
// Sums of the numbers of all lanes before this one and of its own so far go there.
template <int N> ATTN_DEVICE void sum_rows(uint32_t to, const float (&numbers)[N], uint32_t barrier) {
  const int lane = threadIdx.x % 32;
  float sums[N];
#pragma unroll
  for (int i = 0; i < N; ++i) sums[i] = i > 0 ? sums[i > 0 ? i - 1 : 0] + numbers[i] : numbers[i];
  float whole = sums[N - 1];
#pragma unroll
  for (int distance = 1; distance < 32; distance *= 2) {
    const float other = __shfl_up_sync(0xffffffffu, whole, distance);
    if (lane >= distance) whole += other;
  }
  const float before = __shfl_up_sync(0xffffffffu, whole, 1);
#pragma unroll
  for (int i = 0; i < N; ++i) sums[i] = lane > 0 ? before + sums[i] : sums[i];
  write_rows(to, sums, barrier);
}
} // namespace attn
