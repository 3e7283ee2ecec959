#pragma once
namespace attn {

// Rows of keys that lie apart from each other, brought by the lanes of the producer, 8 of which copy 128 bytes of a row: copies of single rows
// by TMA take as long as those of 16. The chunks of a row are permuted as TMA's 128-byte swizzle does.

// 16 bytes, or zeros.
ATTN_DEVICE void gather_chunk(uint32_t to, const void *from, bool there) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(to), "l"(from), "r"(there ? 16 : 0) : "memory");
}
// Row r is row `places[r / 32]` of page `pages[r / 32]` of lane r % 32; zeros where a page is negative. Each lane arrives when its copies are done.
template <int Rows, int Columns, typename Element>
ATTN_DEVICE void gather_rows(const Element *from, long long page_stride, long long row_stride, const int (&pages)[(Rows + 31) / 32],
                             const int (&places)[(Rows + 31) / 32], uint32_t to, uint32_t barrier, int lane) {
  const int chunk = lane % 8;
#pragma unroll
  for (int i = 0; i < Rows / 4; ++i) {
    const int row = 4 * i + lane / 8;
    const int page = __shfl_sync(0xffffffffu, pages[i / 8], row % 32), place = __shfl_sync(0xffffffffu, places[i / 8], row % 32);
    const Element *at = page < 0 ? from : from + page * page_stride + place * row_stride + chunk * 8;
    const uint32_t address = to + row * 128 + ((chunk ^ (row & 7)) << 4);
#pragma unroll
    for (int panel = 0; panel < (Columns + 63) / 64; ++panel) {
      const bool there = page >= 0 && panel * 64 + chunk * 8 < Columns;
      gather_chunk(address + panel * Rows * 128, there ? at + panel * 64 : from, there);
    }
  }
  asm volatile("cp.async.mbarrier.arrive.noinc.shared::cta.b64 [%0];" ::"r"(barrier) : "memory");
}

} // namespace attn
