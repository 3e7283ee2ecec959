// The list of one sequence made ready by the thread blocks that read it: a few queries, for which a kernel of its own takes longer.
//
// Each thread block of a cluster sorts the whole list by a bitmap in shared memory, as `attn_prepare` does, and writes down where its own part of the
// keys is, which it alone reads afterwards. There is little code: it runs once, and would wait for its instructions.
#pragma once

// What a kernel of a few sequences takes besides tensors: the lists, keys of a part, rows of a sequence, blocks of rows that these are, and parts of a
// sequence, which are a cluster.
struct AttnFew {
  AttnLists lists;
  int length, rows, row_blocks, parts;
};

// The number of the set bit of a word of which `before` are below it.
__device__ __forceinline__ int attn_set_bit(unsigned word, int before) {
  int found = 0;
#pragma unroll
  for (int width = 16; width; width /= 2) {
    const int below = __popc(word & ((1u << width) - 1));
    const bool higher = before >= below;
    word = higher ? word >> width : word;
    found += higher ? width : 0;
    before -= higher ? below : 0;
  }
  return found;
}

// How many keys a sequence sees, once the pages of the blocks that keys [begin, end) are in are written, of all threads of a block. `memory` has room for
// a bit for each block and an eighth more, and 2 T + 64 numbers.
template <int T>
__device__ __forceinline__ int attn_list_part(const AttnLists &f, int *memory, int sequence, int begin, int end) {
  const int words = (f.blocks + 31) / 32, t = threadIdx.x, heads = f.heads * f.repeat;
  int shift = 3; // a thread has 2^shift words one after another, and one that is not used, by which threads read different banks
  while (T << shift < words) ++shift;
  int *const sums = memory, *const before = memory + 32;
  unsigned *const bitmap = reinterpret_cast<unsigned *>(before + T + 1);
  const int l = sequence % f.lists, head = sequence / f.lists % heads, b = sequence / f.lists / heads;
  const int *const from = f.index + b * f.stride_b + head / f.repeat * f.stride_h + l * f.stride_l;
  const int each = f.sequences ? f.each : 1, first = begin / f.keys, last = min(f.count, (end - 1) / f.keys + 1);
  const int base = (b * f.key_step + head / f.key_group) * f.blocks;
  int limit = f.kv_len, owner = 0, wrong = -1;
  int entries[kAhead]; // all on their way before one is looked at
#pragma unroll
  for (int n = 0; n < kAhead; ++n) entries[n] = t + n * T < f.count ? from[(t + n * T) * f.stride_n] : -1;
#pragma unroll 4
  for (int w = t; w < T + (T << shift); w += T) bitmap[w] = 0;
  if (f.sequences) owner = attn_owner(f, f.lists > 1 ? l : b, &limit);
  if (f.causal) limit = max(min(min((l + 1) * f.queries, f.q_len) + f.shift, f.kv_len), 0);
  __syncthreads();
#pragma unroll 1
  for (int i = t;;) {
#pragma unroll
    for (int n = 0; n < kAhead; ++n) {
      const int e = entries[n];
      if ((unsigned)e < (unsigned)f.blocks)
        atomicOr(&bitmap[(e >> 5) + (e >> (5 + shift))], 1u << (e & 31));
      else if (e != -1)
        wrong = e;
    }
    i += kAhead * T;
    if (i - t >= f.count) break;
#pragma unroll
    for (int n = 0; n < kAhead; ++n) entries[n] = i + n * T < f.count ? from[(i + n * T) * f.stride_n] : -1;
  }
  if (wrong != -1 && f.wrong) {
    f.wrong[1] = f.blocks;
    f.wrong[2] = f.keys;
    __threadfence_system(); // the host reads these once it sees the number
    f.wrong[0] = wrong;     // which is never 0
  }
  __syncthreads();
  const int own = t * ((1 << shift) + 1);
  int bits = 0, all;
#pragma unroll 8
  for (int w = 0; w < 1 << shift; ++w) bits += __popc(bitmap[own + w]);
  before[t] = attn_before<T>(bits, sums, &all);
  if (t == 0) before[T] = all;
  __syncthreads();
  int *const to = f.pages + ((attn_wide)sequence * f.count + first) * each;
#pragma unroll 1
  for (int i = t; i < (min(last, all) - first) * each; i += T) {  // each thread looks for an entry
    const int place = first + i / each;
    int low = 0;
#pragma unroll
    for (int step = T > 256 ? 256 : T / 2; step; step /= 2) low += before[min(low + step, T)] <= place ? step : 0;
    int w = 0, left = place - before[low], at = 0;
    const unsigned *const of_thread = bitmap + low * ((1 << shift) + 1);
    unsigned word = 0;
#pragma unroll 1
    for (int chunk = 0; chunk < 1 << shift; chunk += 8) {
#pragma unroll
      for (int n = 0; n < 8; ++n) { // without branches: all words are on their way together
        const unsigned next = of_thread[chunk + n];
        const int count = __popc(next);
        const bool inside = left >= 0 && left < count;
        word = inside ? next : word;
        w = inside ? chunk + n : w;
        at = inside ? left : at;
        left -= count; // below 0 behind it
      }
    }
    const int e = ((low << shift) + w) * 32 + attn_set_bit(word, at);
    to[i] = f.sequences ? attn_place(f, owner, head, e * each + i % each) : base + e;
  }
  // Keys that are seen: those of blocks before the one that the limit is in, and some of this one.
  const int whole = limit / f.keys;
  if (whole >= f.blocks) return all * f.keys;
  const int of = whole >> (5 + shift);
  const unsigned *const words_of = bitmap + of * ((1 << shift) + 1);
  int seen = before[of];
#pragma unroll 1
  for (int w = 0; w < (whole >> 5) - (of << shift); ++w) seen += __popc(words_of[w]);
  const unsigned word = words_of[(whole >> 5) - (of << shift)], bit = 1u << (whole & 31);
  return (seen + __popc(word & (bit - 1))) * f.keys + (word & bit ? limit % f.keys : 0);
}
