// Elements of captured tensors that kernels with matrix products read a lane's columns at a time.
#pragma once

namespace attn {

// Sixteen elements, `stride` apart, from number `first` on; behind the last of those that are `left` (less than one, too) that one repeats.
template <typename T> ATTN_DEVICE Float16x window(const T *from, long long stride, int first, int left) {
  Float16x made;
  if (stride == 1 && left >= first + 16) {
    T row[16];
    __builtin_memcpy(row, from + first, sizeof row);  // wide loads, aligned as the elements are
#pragma unroll
    for (int r = 0; r < 16; ++r) made[r] = (float)row[r];
  } else {
    // One address that moves on, since there are no registers for sixteen; a loop that is not unrolled would choose registers by M0.
    const T *at = from + (first < left ? first : left - 1) * stride;
#pragma unroll
    for (int r = 0; r < 16; ++r) {
      float one = (float)*at;
      asm volatile("" : "+v"(at), "+v"(one));
      made[r] = one;
      at += first + r + 1 < left ? stride : 0;
    }
  }
  return made;
}

}  // namespace attn
