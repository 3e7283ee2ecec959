#pragma once
namespace attn {

// Windows of captured tensors that idle warps of the producer bring into shared memory, in their own type. Rows are longer by four pairs, so
// that the four neighbouring pairs of eight rows, which a warp reads at a time, lie in different banks. (Swizzled rows would need no room, but
// an address for every column: consumers have no registers for that.)

template <int Size> ATTN_DEVICE void copy_async(uint32_t to, const void *from, int bytes) { // zeros behind so many bytes
  if constexpr (Size == 16) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(to), "l"(from), "r"(bytes) : "memory");
  } else {
    asm volatile("cp.async.ca.shared.global [%0], [%1], %3, %2;" ::"r"(to), "l"(from), "r"(bytes), "n"(Size) : "memory");
  }
}
// Arrives when all copies that this thread has started are done.
ATTN_DEVICE void arrive_when_copied(uint32_t barrier) {
  asm volatile("cp.async.mbarrier.arrive.noinc.shared::cta.b64 [%0];" ::"r"(barrier) : "memory");
}
template <typename Element, int Columns> ATTN_DEVICE constexpr int window_pitch() { return (Columns + 8) * sizeof(Element); }

template <int Size, typename Element, int Rows, int Columns, int Threads>
ATTN_DEVICE void copy_rows(const Element *from, long long stride, int first, int rows, int columns, uint32_t to, int thread) {
  constexpr int kParts = Columns * sizeof(Element) / Size, kElements = Size / sizeof(Element);
#pragma unroll 1
  for (int n = thread; n < Rows * kParts; n += Threads) {
    const int row = n / kParts, column = n % kParts * kElements, left = columns - column;
    const Element *at = from + min(first + row, rows - 1) * stride + (left > 0 ? column : 0);
    const int bytes = max(0, min(left * static_cast<int>(sizeof(Element)), Size));
    copy_async<Size>(to + row * window_pitch<Element, Columns>() + n % kParts * Size, at, bytes);
  }
}
ATTN_DEVICE void store_element(uint32_t to, float value) { store_shared(to, value); }
template <typename Half> ATTN_DEVICE void store_element(uint32_t to, Half value) {
  asm volatile("st.shared.b16 [%0], %1;" ::"r"(to), "h"(reinterpret_cast<const unsigned short &>(value)) : "memory");
}
// Rows `first` to `first + Rows` of a window that begins at `from`; those from `rows` on repeat the last one, columns from `columns` on are
// zeros. With copies of 16 or 4 bytes, or by elements where columns are apart or begin at odd addresses.
template <typename Element, int Rows, int Columns, int Threads>
ATTN_DEVICE void load_window(const Element *from, long long row_stride, long long column_stride, int first, int rows, int columns, uint32_t to,
                             int thread, bool &copied) {
  const unsigned bits = static_cast<unsigned>(reinterpret_cast<uintptr_t>(from)) | static_cast<unsigned>(row_stride * sizeof(Element));
  if (column_stride == 1 && bits % 16 == 0) {
    copy_rows<16, Element, Rows, Columns, Threads>(from, row_stride, first, rows, columns, to, thread);
  } else if (column_stride == 1 && bits % 4 == 0) {
    copy_rows<4, Element, Rows, Columns, Threads>(from, row_stride, first, rows, columns, to, thread);
  } else {
    copied = false;
#pragma unroll 1
    for (int n = thread; n < Rows * Columns; n += Threads) {
      const int row = n / Columns, column = n % Columns;
      const Element *at = from + min(first + row, rows - 1) * row_stride + min(column, columns - 1) * column_stride;
      store_element(to + row * window_pitch<Element, Columns>() + column * sizeof(Element), *at);
    }
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

} // namespace attn
