#pragma once
namespace attn {

// Windows of captured tensors that idle warps of the producer bring into shared memory, in their own type. Rows are `Pitch` bytes apart, so
// that what a warp reads at a time lies in different banks: four pairs of eight rows, or eight elements of four second rows. (Swizzled rows
// would need no room, but an address for every column: consumers have no registers for that.)

// 16 or 4 bytes; zeros behind the first `bytes` of them.
template <int Size> ATTN_DEVICE void copy_async(uint32_t to, const void *from, int bytes) {
  if constexpr (Size == 16) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(to), "l"(from), "r"(bytes) : "memory");
  } else {
    asm volatile("cp.async.ca.shared.global [%0], [%1], 4, %2;" ::"r"(to), "l"(from), "r"(bytes) : "memory");
  }
}
// Arrives when all copies that this thread has started are done.
ATTN_DEVICE void arrive_when_copied(uint32_t barrier) {
  asm volatile("cp.async.mbarrier.arrive.noinc.shared::cta.b64 [%0];" ::"r"(barrier) : "memory");
}
// A thread copies `Size` bytes at the same place of every so many rows, so that it only adds to addresses; zeros behind the last row and column.
template <int Size, typename Element, int Rows, int Columns, int Threads, int Pitch>
ATTN_DEVICE void copy_rows(const Element *from, long long stride, int rows, int columns, uint32_t to, int thread) {
  constexpr int kParts = Columns * sizeof(Element) / Size, kElements = Size / sizeof(Element);
  constexpr int kTogether = kParts < Threads ? Threads / kParts : 1, kPlaces = kParts < Threads ? kParts : Threads;
  if (thread >= kTogether * kPlaces) return;
#pragma unroll 1
  for (int part = thread % kPlaces; part < kParts; part += kPlaces) {
    const int first = thread / kPlaces, left = (columns - part * kElements) * static_cast<int>(sizeof(Element)), bytes = max(0, min(left, Size));
    const Element *at = from + (first * stride + part * kElements); // nothing is read where there are no bytes
    const uint32_t place = to + part * Size;
#pragma unroll 1
    for (int row = first; row < Rows; row += kTogether) {
      copy_async<Size>(place + row * Pitch, at, row < rows ? bytes : 0);
      at += kTogether * stride;
    }
  }
}
ATTN_DEVICE void store_element(uint32_t to, float value) { store_shared(to, value); }
template <typename Half> ATTN_DEVICE void store_element(uint32_t to, Half value) {
  asm volatile("st.shared.b16 [%0], %1;" ::"r"(to), "h"(reinterpret_cast<const unsigned short &>(value)) : "memory");
}
// Rows of a window that begins at `from`, of which `rows` and `columns` exist: `Rows` from row `first` on. What is behind these repeats the
// last ones or becomes zeros. By asynchronous copies of 16 bytes or 4, or by elements where columns are apart or begin at odd addresses:
// then `written` becomes true. (Copies of whole rows by TMA, without a descriptor, took 43 cycles each on an H100: too long for so many rows.)
template <typename Element, int Rows, int Columns, int Threads, int Pitch>
ATTN_DEVICE void load_window(const Element *from, long long row_stride, long long column_stride, int first, int rows, int columns, uint32_t to,
                             int thread, bool &written) {
  const unsigned bits = static_cast<unsigned>(reinterpret_cast<uintptr_t>(from)) | static_cast<unsigned>(row_stride * sizeof(Element));
  if (column_stride == 1 && bits % 4 == 0) {
    const int left = rows - first;
    const Element *begin = left > 0 ? from + first * row_stride : from;
    if (bits % 16 == 0) {
      copy_rows<16, Element, Rows, Columns, Threads, Pitch>(begin, row_stride, left, columns, to, thread);
    } else {
      copy_rows<4, Element, Rows, Columns, Threads, Pitch>(begin, row_stride, left, columns, to, thread);
    }
  } else {
    written = true;
#pragma unroll 1
    for (int n = thread; n < Rows * Columns; n += Threads) {
      const int row = n / Columns, column = n % Columns;
      const Element *at = from + min(first + row, rows - 1) * row_stride + min(column, columns - 1) * column_stride;
      store_element(to + row * Pitch + column * sizeof(Element), *at);
    }
  }
}
// Each thread arrives once when its copies are there, and what it has written.
ATTN_DEVICE void window_arrive(uint32_t barrier, bool written) {
  if (written) {
    asm volatile("cp.async.wait_all;" ::: "memory");
    barrier_arrive(barrier);
  } else {
    arrive_when_copied(barrier);
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
  const float2 wide = __bfloat1622float2(reinterpret_cast<const __nv_bfloat162 &>(pair));
  a = wide.x, b = wide.y;
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
