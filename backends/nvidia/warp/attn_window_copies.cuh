#pragma once
namespace attn {

// Windows of captured tensors in shared memory, in their own type: swizzle atoms of 128 bytes of columns, whose rows follow each other and whose
// chunks of 16 bytes are where TMA's swizzle of 128 bytes puts them. Each lane of the warp that brings one arrives once at its barrier.

// Whether the copy engine can read the tensor: else its description begins with zeros.
ATTN_DEVICE bool is_described(const CUtensorMap &map) { return *reinterpret_cast<const unsigned long long *>(&map) != 0; }
// Where byte `byte` of row `row` of a window of so many rows lies.
template <int Rows> ATTN_DEVICE uint32_t window_place(int row, int byte) {
  return byte / 128 * (Rows * 128) + row * 128 + (byte % 128 ^ row % 8 * 16);
}
ATTN_DEVICE void store_element(uint32_t to, float value) { store_shared(to, value); }
template <typename Half> ATTN_DEVICE void store_element(uint32_t to, Half value) {
  asm volatile("st.shared.b16 [%0], %1;" ::"r"(to), "h"(reinterpret_cast<const unsigned short &>(value)) : "memory");
}
// What TMA cannot read: `from` is where row 0 and column 0 of a plane of `rows` x `columns` elements are, of which the window begins at `row` and
// `column`; zeros where it leaves the plane. In words where its rows begin at addresses of words, else by elements.
template <typename Element, int Rows, int Columns>
ATTN_DEVICE void copy_window(const Element *from, long long row_stride, long long column_stride, int row, int column, int rows, int columns,
                             uint32_t to, uint32_t barrier, int lane) {
  constexpr int kSize = sizeof(Element), kWord = 4 / kSize, kWords = Columns / kWord;
  const unsigned bits = static_cast<unsigned>(reinterpret_cast<uintptr_t>(from + column)) | static_cast<unsigned>(row_stride * kSize);
  if (column_stride == 1 && bits % 4 == 0 && column >= 0) {
#pragma unroll 2
    for (int n = lane; n < Rows * kWords; n += 32) {
      const int r = n / kWords, c = n % kWords * kWord, left = columns - column - c;
      const bool exists = row + r >= 0 && row + r < rows && left > 0;
      const Element *const at = from + (exists ? (row + r) * row_stride + column + c : column % kWord); // a word's address, too
      asm volatile("cp.async.ca.shared.global [%0], [%1], 4, %2;" ::"r"(to + window_place<Rows>(r, c * kSize)), "l"(at),
                   "r"(exists ? min(left, kWord) * kSize : 0)
                   : "memory");
    }
    asm volatile("cp.async.mbarrier.arrive.noinc.shared::cta.b64 [%0];" ::"r"(barrier) : "memory");
    return;
  }
#pragma unroll 2
  for (int n = lane; n < Rows * Columns; n += 32) {
    const int r = n / Columns, c = n % Columns;
    const bool exists = row + r >= 0 && row + r < rows && column + c >= 0 && column + c < columns;
    store_element(to + window_place<Rows>(r, c * kSize), exists ? from[(row + r) * row_stride + (column + c) * column_stride] : Element{});
  }
  barrier_arrive(barrier);
}

} // namespace attn
