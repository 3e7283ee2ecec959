#pragma once
namespace attn {

// Rows of keys that lie apart from each other, brought by the warps of the producer, 8 lanes of which copy 128 bytes of a row: copies of single
// rows by TMA take as long as those of 16. The chunks of a row are permuted as TMA's 128-byte swizzle does.

constexpr int kGatherers = 4; // warps

// 16 bytes, or zeros.
ATTN_DEVICE void gather_chunk(uint32_t to, const void *from, bool there) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(to), "l"(from), "r"(there ? 16 : 0) : "memory");
}
// Brings what a next block will ask a table for.
ATTN_DEVICE void gather_ahead(const void *table) { asm volatile("prefetch.global.L1 [%0];" ::"l"(table)); }
// The number of a page, and of which power of two its size is, or -1: a division by what a kernel is told takes long before the first copies.
ATTN_DEVICE int gather_shift(int size) { return size & (size - 1) ? -1 : 31 - __clz(size); }
ATTN_DEVICE int gather_page(int at, int size, int shift) { return shift < 0 ? at / size : at >> shift; }
// Where a row is: its page, negative if there is none, and its place in it.
ATTN_DEVICE void gather_tell(uint32_t message, int row, int page, int place) {
  asm volatile("st.shared.v2.s32 [%0], {%1, %2};" ::"r"(message + row * 8), "r"(page), "r"(place) : "memory");
}
// The share of one warp in the rows that a message tells of; each lane arrives when its copies are done.
template <int Rows, int Columns, typename Element>
ATTN_DEVICE void gather_rows(const Element *from, long long page_stride, long long row_stride, uint32_t message, uint32_t to, uint32_t barrier,
                             int gatherer, int lane) {
  constexpr int kEach = Rows / (4 * kGatherers);
  const int chunk = lane % 8;
  int pages[kEach], places[kEach]; // all before the first copy, as copies and reads stay in order
#pragma unroll
  for (int i = 0; i < kEach; ++i) {
    const int row = (i * kGatherers + gatherer) * 4 + lane / 8;
    asm volatile("ld.shared.v2.s32 {%0, %1}, [%2];" : "=r"(pages[i]), "=r"(places[i]) : "r"(message + row * 8) : "memory");
  }
#pragma unroll
  for (int i = 0; i < kEach; ++i) {
    const int row = (i * kGatherers + gatherer) * 4 + lane / 8, page = pages[i], place = places[i];
    const Element *at = from + (page < 0 ? 0 : page * page_stride + place * row_stride) + chunk * 8;
    const uint32_t address = to + row * 128 + ((chunk ^ (row & 7)) << 4);
#pragma unroll
    for (int atom = 0; atom < (Columns + 63) / 64; ++atom) {
      const bool there = page >= 0 && atom * 64 + chunk * 8 < Columns;
      gather_chunk(address + atom * Rows * 128, there ? at + atom * 64 : from, there);
    }
  }
  asm volatile("cp.async.mbarrier.arrive.noinc.shared::cta.b64 [%0];" ::"r"(barrier) : "memory");
}

} // namespace attn
