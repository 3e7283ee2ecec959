#pragma once
namespace attn {
// Numbers of N rows from `row` on times `factor`, and `slope` times the place from `row` on, but no more than `most`. Rows past the last of
// `size` have the number zero and the place of the last one; each lane arrives when it has written its own.
template <int N>
ATTN_DEVICE void slope_rows(
  uint32_t to, const float *from, long long stride, int row, int size, uint32_t barrier, float factor, float slope, float most
) {
  const int lane = threadIdx.x % 32;
  float values[N / 32];
#pragma unroll
  for (int i = 0; i < N / 32; ++i) {
    const int at = row + 32 * i + lane;
    values[i] = at >= 0 && at < size ? from[at * stride] : 0.0f;
  }
#pragma unroll
  for (int i = 0; i < N / 32; ++i) {
    const float place = static_cast<float>(min(32 * i + lane, size - 1 - row));
    float sum;
    asm("min.NaN.f32 %0, %1, %2;" : "=f"(sum) : "f"(fmaf(slope, place, values[i] * factor)), "f"(most));
    store_shared(to + 4 * (32 * i + lane), sum);
  }
  barrier_arrive(barrier);
}
} // namespace attn
