#pragma once
namespace attn {

// Windows of captured tensors that idle warps of the producer bring into shared memory, in their own type: in swizzle atoms of 128 bytes of columns,
// whose rows follow each other and whose 16-byte chunks TMA's 128-byte swizzle permutes. So boxes are copied as they are, and what a warp
// reads at a time lies in different banks: eight rows of a chunk.

// Where byte `byte` of row `row` of a window of so many rows lies.
template <int Rows> ATTN_DEVICE uint32_t window_place(int row, int byte) {
  return byte / 128 * (Rows * 128) + row * 128 + (byte % 128 ^ row % 8 * 16);
}
// Whether the copy engine can read the tensor: else its description begins with zeros.
ATTN_DEVICE bool is_described(const CUtensorMap &map) { return *reinterpret_cast<const unsigned long long *>(&map) != 0; }
// Announces what TMA brings, in the thread that sends it; this thread arrives later.
ATTN_DEVICE void window_expect(uint32_t barrier, uint32_t bytes) {
  fence_proxy_async(); // what lay there may have been written by ordinary accesses
  asm volatile("mbarrier.expect_tx.relaxed.cta.shared::cta.b64 [%0], %1;" ::"r"(barrier), "r"(bytes) : "memory");
}
// 16 bytes; zeros behind so many of them.
ATTN_DEVICE void copy_chunk(uint32_t to, const void *from, int bytes) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(to), "l"(from), "r"(bytes) : "memory");
}
// A word; zeros behind so many bytes of it.
ATTN_DEVICE void copy_word(uint32_t to, const void *from, int bytes) {
  asm volatile("cp.async.ca.shared.global [%0], [%1], 4, %2;" ::"r"(to), "l"(from), "r"(bytes) : "memory");
}
// Arrives when all copies that this thread has started are done.
ATTN_DEVICE void arrive_when_copied(uint32_t barrier) {
  asm volatile("cp.async.mbarrier.arrive.noinc.shared::cta.b64 [%0];" ::"r"(barrier) : "memory");
}

template <typename Element, int Rows, int Columns, int Threads, int Bytes>
ATTN_DEVICE void copy_rows(const Element *from, long long stride, int first, int rows, int columns, uint32_t to, int thread) {
  constexpr int kCopies = (Columns * static_cast<int>(sizeof(Element)) + Bytes - 1) / Bytes;
#pragma unroll 1
  for (int n = thread; n < Rows * kCopies; n += Threads) {
    const int row = n / kCopies, byte = n % kCopies * Bytes, left = columns * static_cast<int>(sizeof(Element)) - byte;
    const Element *at = from + min(first + row, rows - 1) * stride + (left > 0 ? byte / static_cast<int>(sizeof(Element)) : 0);
    const uint32_t place = to + window_place<Rows>(row, byte);
    if (Bytes == 16) copy_chunk(place, at, max(0, min(left, 16)));
    else copy_word(place, at, max(0, min(left, 4)));
  }
}
ATTN_DEVICE void store_element(uint32_t to, float value) { store_shared(to, value); }
template <typename Half> ATTN_DEVICE void store_element(uint32_t to, Half value) {
  asm volatile("st.shared.b16 [%0], %1;" ::"r"(to), "h"(reinterpret_cast<const unsigned short &>(value)) : "memory");
}
// How the copies of a thread get there: by TMA, which tells the barrier itself, by asynchronous copies, or by ordinary writes.
enum Copies { kBulk = 0, kAsynchronous = 1, kWritten = 2 };

// Rows `first` to `first + Rows` of a window that begins at `from`; those from `rows` on repeat the last one, what is behind the last column is
// left as it is or becomes zeros. This is for windows that TMA does not copy: in chunks of 16 bytes where rows begin at multiples of these,
// else in words, or by elements where columns are apart or begin at odd addresses. Each thread arrives once afterwards (`window_arrive`).
template <typename Element, int Rows, int Columns, int Threads>
ATTN_DEVICE void load_window(const Element *from, long long row_stride, long long column_stride, int first, int rows, int columns, uint32_t to,
                             int thread, int &copies) {
  const unsigned bits = static_cast<unsigned>(reinterpret_cast<uintptr_t>(from)) | static_cast<unsigned>(row_stride * sizeof(Element));
  if (column_stride == 1 && bits % 16 == 0) {
    copies |= kAsynchronous;
    copy_rows<Element, Rows, Columns, Threads, 16>(from, row_stride, first, rows, columns, to, thread);
  } else if (column_stride == 1 && bits % 4 == 0) {
    copies |= kAsynchronous;
    copy_rows<Element, Rows, Columns, Threads, 4>(from, row_stride, first, rows, columns, to, thread);
  } else {
    copies |= kWritten;
#pragma unroll 1
    for (int n = thread; n < Rows * Columns; n += Threads) {
      const int row = n / Columns, column = n % Columns;
      const Element *at = from + min(first + row, rows - 1) * row_stride + min(column, columns - 1) * column_stride;
      store_element(to + window_place<Rows>(row, column * static_cast<int>(sizeof(Element))), *at);
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
// Two neighbouring numbers of 16 bits.
ATTN_DEVICE void window_floats(uint32_t pair, __half, float &a, float &b) {
  const float2 wide = __half22float2(reinterpret_cast<const __half2 &>(pair));
  a = wide.x, b = wide.y;
}
ATTN_DEVICE void window_floats(uint32_t pair, __nv_bfloat16, float &a, float &b) {
  a = __uint_as_float(pair << 16), b = __uint_as_float(pair & 0xffff0000u); // a bf16 is the upper half of a float
}
// Two neighbouring columns. The order of these reads stays: reads of many columns ahead would take registers that consumers do not have.
ATTN_DEVICE void window_pair(uint32_t from, float, float &a, float &b) {
  const float2 pair = load_shared2(from);
  a = pair.x, b = pair.y;
}
template <typename Half> ATTN_DEVICE void window_pair(uint32_t from, Half kind, float &a, float &b) {
  window_floats(static_cast<uint32_t>(load_shared_int(from)), kind, a, b);
}
// ---- gradients that take a window's place ----------------------------------------------------------------------------------------------

ATTN_DEVICE float window_element(uint32_t from, float) { return load_shared(from); }
template <typename Half> ATTN_DEVICE Half load_shared_half(uint32_t from) {
  unsigned short bits;
  asm volatile("ld.shared.b16 %0, [%1];" : "=h"(bits) : "r"(from) : "memory");
  return reinterpret_cast<const Half &>(bits);
}
ATTN_DEVICE float window_element(uint32_t from, __half) { return __half2float(load_shared_half<__half>(from)); }
ATTN_DEVICE float window_element(uint32_t from, __nv_bfloat16) { return __bfloat162float(load_shared_half<__nv_bfloat16>(from)); }
// Makes a warp's sixteen columns 0 from column `count` on.
template <typename Element, int Rows> ATTN_DEVICE void clear_columns(uint32_t window, int first, int count, int lane) {
  const Element zero{};
  warp_sync();
#pragma unroll 1
  for (int row = lane; row < Rows; row += 32)
#pragma unroll 1
    for (int column = max(first, count); column < first + 16; ++column)
      store_element(window + window_place<Rows>(row, column * static_cast<int>(sizeof(Element))), zero);
}
// Makes columns `first` to `first + 64` of the first rows 0, those below `columns`: rows have multiples of 16 bytes. A warp does.
template <typename Element>
ATTN_DEVICE void clear_rows(Element *to, long long row_stride, int first, int rows, int columns, int lane) {
  constexpr int kNumbers = 16 / static_cast<int>(sizeof(Element)), kChunks = 64 / kNumbers;
  const int column = first + lane % kChunks * kNumbers;
  if (column >= columns) return;
  to += column + lane / kChunks * row_stride;
#pragma unroll 4
  for (int row = lane / kChunks; row < rows; row += 32 / kChunks, to += 32 / kChunks * row_stride)
    asm volatile("st.global.v4.b32 [%0], {%1, %1, %1, %1};" ::"l"(to), "r"(0) : "memory");
}
// Adds a warpgroup's 64 columns to memory that TMA does not add to: `to` is where row 0 and column 0 of the window belong.
template <typename Element, int Rows>
ATTN_DEVICE void add_window(float *to, long long row_stride, long long column_stride, uint32_t window, int first, int rows, int columns,
                            unsigned thread) {
  constexpr int kSize = sizeof(Element);
  const bool fours = column_stride == 1 && row_stride % 4 == 0 && reinterpret_cast<uintptr_t>(to) % 16 == 0;
#pragma unroll 1
  for (int n = thread; n < Rows * 16; n += 128) {
    const int row = n / 16, column = first + (fours ? n % 16 * 4 : n % 16), step = fours ? 1 : 16;
    if (row >= rows) break;
    float value[4];
#pragma unroll
    for (int i = 0; i < 4; ++i) value[i] = window_element(window + window_place<Rows>(row, (column + step * i) * kSize), Element());
    float *const at = to + row * row_stride + column * column_stride;
    if (fours && column + 4 <= columns) {
      add_global(at, value[0], value[1], value[2], value[3]);
    } else {
#pragma unroll
      for (int i = 0; i < 4; ++i)
        if (column + step * i < columns) add_global(at + step * i * column_stride, value[i]);
    }
  }
}

} // namespace attn
