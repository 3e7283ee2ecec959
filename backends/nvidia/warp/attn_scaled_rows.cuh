#pragma once
namespace attn {
// What `make` makes of N numbers of rows from `row` on and of their places there, but no more than `most`. Rows past the last of `size` have
// the number zero; each lane arrives when it has written its own.
template <int N, typename Make>
ATTN_DEVICE void make_rows_of(
  uint32_t to, const float *from, long long stride, int row, int size, uint32_t barrier, float most, const Make &make
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
    float made;
    asm("min.NaN.f32 %0, %1, %2;" : "=f"(made) : "f"(make(values[i], 32 * i + lane)), "f"(most));
    store_shared(to + 4 * (32 * i + lane), made);
  }
  barrier_arrive(barrier);
}
// Numbers of rows times `factor`.
template <int N>
ATTN_DEVICE void scale_rows(uint32_t to, const float *from, long long stride, int row, int size, uint32_t barrier, float factor, float most) {
  make_rows_of<N>(to, from, stride, row, size, barrier, most, [&](float value, int) { return value * factor; });
}
// Numbers of rows times `factor`, and `slope` times the place from `row` on, which is the last one's for rows that there are not.
template <int N>
ATTN_DEVICE void slope_rows(
  uint32_t to, const float *from, long long stride, int row, int size, uint32_t barrier, float factor, float slope, float most
) {
  make_rows_of<N>(to, from, stride, row, size, barrier, most, [&](float value, int place) {
    return fmaf(slope, static_cast<float>(min(place, size - 1 - row)), value * factor);
  });
}
} // namespace attn
