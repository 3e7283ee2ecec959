#pragma once
namespace attn {

// Windows of captured tensors that idle warps of the producer bring into shared memory, in their own type. Rows are `Pitch` bytes apart, so
// that what a warp reads at a time lies in different banks: four pairs of eight rows, or eight elements of four second rows. (Swizzled rows
// would need no room, but an address for every column: consumers have no registers for that.)

// A word; zeros behind so many bytes of it.
ATTN_DEVICE void copy_word(uint32_t to, const void *from, int bytes) {
  asm volatile("cp.async.ca.shared.global [%0], [%1], 4, %2;" ::"r"(to), "l"(from), "r"(bytes) : "memory");
}
// Arrives when all copies that this thread has started are done.
ATTN_DEVICE void arrive_when_copied(uint32_t barrier) {
  asm volatile("cp.async.mbarrier.arrive.noinc.shared::cta.b64 [%0];" ::"r"(barrier) : "memory");
}
// A whole number of 16 bytes, of which the barrier is told.
ATTN_DEVICE void copy_bulk(uint32_t to, const void *from, uint32_t bytes, uint32_t barrier) {
  asm volatile("mbarrier.expect_tx.relaxed.cta.shared::cta.b64 [%0], %1;" ::"r"(barrier), "r"(bytes) : "memory");
  asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(to), "l"(from), "r"(bytes),
               "r"(barrier)
               : "memory");
}

template <typename Element, int Rows, int Columns, int Threads, int Pitch>
ATTN_DEVICE void copy_rows(const Element *from, long long stride, int first, int rows, int columns, uint32_t to, int thread) {
  constexpr int kWords = Columns * sizeof(Element) / 4, kElements = 4 / sizeof(Element);
#pragma unroll 1
  for (int n = thread; n < Rows * kWords; n += Threads) {
    const int row = n / kWords, column = n % kWords * kElements, left = columns - column;
    const Element *at = from + min(first + row, rows - 1) * stride + (left > 0 ? column : 0);
    const int bytes = max(0, min(left * static_cast<int>(sizeof(Element)), 4));
    copy_word(to + row * Pitch + n % kWords * 4, at, bytes);
  }
}
ATTN_DEVICE void store_element(uint32_t to, float value) { store_shared(to, value); }
template <typename Half> ATTN_DEVICE void store_element(uint32_t to, Half value) {
  asm volatile("st.shared.b16 [%0], %1;" ::"r"(to), "h"(reinterpret_cast<const unsigned short &>(value)) : "memory");
}
// How the copies of a thread get there: by TMA, which tells the barrier itself, by asynchronous copies, or by ordinary writes.
enum Copies { kBulk = 0, kAsynchronous = 1, kWritten = 2 };

// Rows `first` to `first + Rows` of a window that begins at `from`; those from `rows` on repeat the last one, what is behind the last column is
// left as it is or becomes zeros. Rows are copied whole by TMA where they lie at multiples of 16 bytes, else in words, or by elements where
// columns are apart or begin at odd addresses. Each thread arrives once afterwards (`window_arrive`).
template <typename Element, int Rows, int Columns, int Threads, int Pitch>
ATTN_DEVICE void load_window(const Element *from, long long row_stride, long long column_stride, int first, int rows, int columns, uint32_t to,
                             int thread, uint32_t barrier, int &copies) {
  const unsigned bytes = min(columns, Columns) * sizeof(Element), bits = static_cast<unsigned>(reinterpret_cast<uintptr_t>(from)) |
                                                                        static_cast<unsigned>(row_stride * sizeof(Element));
  if (column_stride == 1 && (bits | bytes) % 16 == 0) {
    fence_proxy_async(); // what lay there may have been written, and was read, by ordinary accesses
#pragma unroll 1
    for (int row = thread; row < Rows; row += Threads)
      copy_bulk(to + row * Pitch, from + min(first + row, rows - 1) * row_stride, bytes, barrier);
  } else if (column_stride == 1 && bits % 4 == 0) {
    copies |= kAsynchronous;
    copy_rows<Element, Rows, Columns, Threads, Pitch>(from, row_stride, first, rows, columns, to, thread);
  } else {
    copies |= kWritten;
#pragma unroll 1
    for (int n = thread; n < Rows * Columns; n += Threads) {
      const int row = n / Columns, column = n % Columns;
      const Element *at = from + min(first + row, rows - 1) * row_stride + min(column, columns - 1) * column_stride;
      store_element(to + row * Pitch + column * sizeof(Element), *at);
    }
  }
}
ATTN_DEVICE void window_arrive(uint32_t barrier, int copies) {
  if (copies == kAsynchronous) {
    arrive_when_copied(barrier);
  } else {
    if (copies & kAsynchronous) asm volatile("cp.async.wait_all;" ::: "memory");
    barrier_arrive(barrier);
  }
}
// Two neighbouring columns. The order of these reads stays: reads of many columns ahead would take registers that consumers do not have.
ATTN_DEVICE void window_pair(uint32_t from, float, float &a, float &b) {
  const float2 pair = load_shared2(from);
  a = pair.x, b = pair.y;
}
ATTN_DEVICE void window_pair(uint32_t from, __half, float &a, float &b) {
  const int pair = load_shared_int(from);
  const float2 wide = __half22float2(reinterpret_cast<const __half2 &>(pair));
  a = wide.x, b = wide.y;
}
ATTN_DEVICE void window_pair(uint32_t from, __nv_bfloat16, float &a, float &b) {
  const int pair = load_shared_int(from);
  a = __int_as_float(pair << 16), b = __int_as_float(pair & static_cast<int>(0xffff0000)); // a bf16 is the upper half of a float
}

ATTN_DEVICE float window_element(uint32_t from, float) { return load_shared(from); }
template <typename Half> ATTN_DEVICE Half load_shared_half(uint32_t from) {
  unsigned short bits;
  asm volatile("ld.shared.b16 %0, [%1];" : "=h"(bits) : "r"(from) : "memory");
  return reinterpret_cast<const Half &>(bits);
}
ATTN_DEVICE float window_element(uint32_t from, __half) { return __half2float(load_shared_half<__half>(from)); }
ATTN_DEVICE float window_element(uint32_t from, __nv_bfloat16) { return __bfloat162float(load_shared_half<__nv_bfloat16>(from)); }

} // namespace attn
