#pragma once
namespace attn {

// Keys that lie in pages, in parts of 16 rows, each of which is in one page. A thread takes as long to ask for a box of 16 rows as for one of 64:
// so warps share the parts of a tile.

constexpr int kPartRows = 16;

// The number of the page of a row, by the reciprocal of the parts that a page has. Positions are less than 2^24, so that the quotient of parts is
// more than 3 of its errors away from the next integer; a division of integers would take as long as the copies.
ATTN_DEVICE int page_of(int row, float reciprocal) {
  return static_cast<int>(fmaf(static_cast<float>(row / kPartRows), reciprocal, 0.5f * reciprocal));
}
// Lane l looks for the page of part l of a tile, and for its place there; nothing is read of parts from `end` on.
template <int Parts>
ATTN_DEVICE void find_pages(const int *table, long long step, int size, int row, int end, int lane, int &page, int &place) {
  const float reciprocal = 1.f / static_cast<float>(size / kPartRows);
  const int first = row + min(lane, Parts - 1) * kPartRows, number = page_of(first, reciprocal);
  page = first < end ? table[number * step] : 0;
  place = first - number * size;
}

// A part of a page, of which the rows from `left` on are zeros, as a page may hold anything there: they are copied from columns that a tensor does
// not have, those of a part in which a sequence ends one by one. `whole` describes boxes of 16 rows and `Columns` columns, `single` of one row;
// `to` is where the first of `Atoms` boxes goes, the next one so many bytes after it.
template <int Atoms, int Columns, int RowBytes, int AtomBytes>
ATTN_DEVICE void copy_part(uint32_t to, const CUtensorMap *whole, const CUtensorMap *single, uint32_t barrier, int left, int at, int head, int page) {
  if (left <= 0 || left >= kPartRows) {
    const int outside = left <= 0 ? Atoms * Columns : 0;
#pragma unroll
    for (int atom = 0; atom < Atoms; ++atom) tma_load(to + atom * AtomBytes, whole, barrier, outside + atom * Columns, at, head, page);
    return;
  }
#pragma unroll 1
  for (int one = 0; one < kPartRows; ++one) {
    const int outside = one >= left ? Atoms * Columns : 0;
#pragma unroll 1
    for (int atom = 0; atom < Atoms; ++atom)
      tma_load(to + one * RowBytes + atom * AtomBytes, single, barrier, outside + atom * Columns, at + one, head, page);
  }
}

// The share of one of `Warps` warps in a tile of `Rows` rows, of which those from `left` on are zeros; pages have `size` rows. One lane asks for all,
// and arrives before, for the bytes of its warp. All lanes are there then, as the stage may be used again before another one has seen that it was
// free. Where pages have whole boxes of `kTall` rows, described by `tall`, a warp asks for these, one atom each.
template <int Rows, int Atoms, int Columns, int RowBytes, int Warps>
ATTN_DEVICE void copy_pages(uint32_t to, const CUtensorMap *tall, const CUtensorMap *whole, const CUtensorMap *single, int size, int page, int place,
                            int head, int left, uint32_t barrier, int warp) {
  constexpr int kParts = Rows / kPartRows, kEach = (kParts + Warps - 1) / Warps, kAtom = Rows * RowBytes, kTall = 64;
  constexpr int kBoxes = Rows % kTall ? 0 : Rows / kTall * Atoms, kShare = kBoxes > Warps ? (kBoxes + Warps - 1) / Warps : 1;
  if (kBoxes > 0 && size % kTall == 0 && left >= Rows) {
    int pages[kShare], places[kShare];
#pragma unroll
    for (int turn = 0; turn < kShare; ++turn) {
      const int part = (turn * Warps + warp) / Atoms * (kTall / kPartRows);
      pages[turn] = __shfl_sync(0xffffffffu, page, part);
      places[turn] = __shfl_sync(0xffffffffu, place, part);
    }
    if (elect_one()) {
      const int own = max(0, (kBoxes - warp + Warps - 1) / Warps);
      barrier_arrive_expect(barrier, own * (kTall * RowBytes));
#pragma unroll
      for (int turn = 0; turn < kShare; ++turn) {
        const int box = turn * Warps + warp;
        if (box < kBoxes)
          tma_load(to + box % Atoms * kAtom + box / Atoms * (kTall * RowBytes), tall, barrier, box % Atoms * Columns, places[turn], head, pages[turn]);
      }
    }
  } else {
    int pages[kEach], places[kEach];
#pragma unroll
    for (int turn = 0; turn < kEach; ++turn) {
      pages[turn] = __shfl_sync(0xffffffffu, page, turn * Warps + warp);
      places[turn] = __shfl_sync(0xffffffffu, place, turn * Warps + warp);
    }
    if (elect_one()) {
      const int own = kParts % Warps == 0 || warp < kParts % Warps ? kEach : kEach - 1;
      barrier_arrive_expect(barrier, own * (kPartRows * Atoms * RowBytes));
#pragma unroll
      for (int turn = 0; turn < kEach; ++turn) {
        const int part = turn * Warps + warp;
        if (part < kParts)
          copy_part<Atoms, Columns, RowBytes, kAtom>(to + part * (kPartRows * RowBytes), whole, single, barrier, left - part * kPartRows,
                                                     places[turn], head, pages[turn]);
      }
    }
  }
  __syncwarp();
}

} // namespace attn
