// Device helpers of kernels over pairs whose two warpgroups of consumers have a weight each: the scores of one go to the other one.
#pragma once

namespace attn {

// Writes a fragment where the thread of the same number in another warpgroup takes it over: 16 bytes of each thread side by side.
template <int N> ATTN_DEVICE void hand_over(const float (&values)[N], uint32_t place) {
  static_assert(N % 4 == 0, "16 bytes are stored at a time");
  place += threadIdx.x % 128 * 16;
#pragma unroll
  for (int i = 0; i < N; i += 4)
    asm volatile("st.shared.v4.f32 [%0], {%1, %2, %3, %4};" ::"r"(place + 512 * i), "f"(values[i]), "f"(values[i + 1]), "f"(values[i + 2]),
                 "f"(values[i + 3])
                 : "memory");
}
template <int N> ATTN_DEVICE void take_over(float (&values)[N], uint32_t place) {
  static_assert(N % 4 == 0, "16 bytes are read at a time");
  place += threadIdx.x % 128 * 16;
#pragma unroll
  for (int i = 0; i < N; i += 4)
    asm volatile("ld.shared.v4.f32 {%0, %1, %2, %3}, [%4];"
                 : "=f"(values[i]), "=f"(values[i + 1]), "=f"(values[i + 2]), "=f"(values[i + 3])
                 : "r"(place + 512 * i)
                 : "memory");
}

} // namespace attn
