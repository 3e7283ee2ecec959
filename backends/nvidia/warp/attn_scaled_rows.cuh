#pragma once
namespace attn {
// Numbers of N rows from `row` on times `factor`, and no more than `most`, those past the last of `size` made of zeros; each lane arrives
// when it has written its own.
template <int N>
ATTN_DEVICE void scale_rows(uint32_t to, const float *from, long long stride, int row, int size, uint32_t barrier, float factor, float most) {
  const int lane = threadIdx.x % 32;
  float values[N / 32];
#pragma unroll
  for (int i = 0; i < N / 32; ++i) {
    const int at = row + 32 * i + lane;
    values[i] = at >= 0 && at < size ? from[at * stride] : 0.0f;
  }
#pragma unroll
  for (int i = 0; i < N / 32; ++i) {
    float scaled;
    asm("min.NaN.f32 %0, %1, %2;" : "=f"(scaled) : "f"(values[i] * factor), "f"(most));
    store_shared(to + 4 * (32 * i + lane), scaled);
  }
  barrier_arrive(barrier);
}
} // namespace attn
