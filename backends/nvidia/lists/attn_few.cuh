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

// How many keys a sequence sees, once the pages of the blocks that keys [begin, end) are in are written, of all threads of a block. `memory` has room for
// a bit for each block, T + 32 numbers and the entries of a part. `rank` of `ranks`: whose share of what is listed is brought closer, negative: nobody's.
template <int T>
__device__ __forceinline__ int attn_list_part(const AttnLists &f, int *memory, int sequence, int begin, int end, int rank, int ranks) {
  const int words = (f.blocks + 31) / 32, t = threadIdx.x, heads = f.heads * f.repeat;
  unsigned *const bitmap = reinterpret_cast<unsigned *>(memory);
  int *const sums = memory + words, *const keys_seen = sums + T, *const sorted = keys_seen + 32;
  const int l = sequence % f.lists, head = sequence / f.lists % heads, b = sequence / f.lists / heads;
  const int *const from = f.index + b * f.stride_b + head / f.repeat * f.stride_h + l * f.stride_l;
  const int each = f.sequences ? f.each : 1, first = begin / f.keys, last = min(f.count, (end - 1) / f.keys + 1);
  const int base = (b * f.key_step + head / f.key_group) * f.blocks;
  int limit = f.kv_len, owner = 0, wrong = -1;
#pragma unroll 1
  for (int w = t; w < words; w += T) bitmap[w] = 0;
  if (t == 0) *keys_seen = 0;
  if (f.sequences) owner = attn_owner(f, f.lists > 1 ? l : b, &limit);
  if (f.causal) limit = max(min(min((l + 1) * f.queries, f.q_len) + f.shift, f.kv_len), 0);
  __syncthreads();
#pragma unroll 1
  for (int i = t; i < f.count; i += kAhead * T) {
    int entries[kAhead]; // all on their way before one is looked at
#pragma unroll
    for (int n = 0; n < kAhead; ++n) entries[n] = i + n * T < f.count ? from[(i + n * T) * f.stride_n] : -1;
#pragma unroll
    for (int n = 0; n < kAhead; ++n) {
      const int e = entries[n];
      if ((unsigned)e < (unsigned)f.blocks)
        atomicOr(&bitmap[e >> 5], 1u << (e & 31));
      else if (e != -1)
        wrong = e;
    }
  }
  if (rank >= 0 && f.ahead_pages) {
#pragma unroll 1
    for (int i = rank * T + t; i < f.count * each; i += ranks * T) {
      const int e = from[i / each * f.stride_n];
      if ((unsigned)e >= (unsigned)f.blocks || e * f.keys >= limit) continue;
      const int page = f.sequences ? attn_place(f, owner, head, e * each + i % each) : base + e;
      if (page < 0 || page >= f.ahead_pages) continue;
      attn_bring(f.ahead[0] + page * f.ahead_step[0], f.ahead_bytes[0]);
      if (f.ahead[1]) attn_bring(f.ahead[1] + page * f.ahead_step[1], f.ahead_bytes[1]);
    }
  }
  if (wrong != -1 && f.wrong) {
    f.wrong[1] = f.blocks;
    f.wrong[2] = f.keys;
    __threadfence_system(); // the host reads these once it sees the number
    f.wrong[0] = wrong;     // which is never 0
  }
  __syncthreads();
  const int own = (words + T - 1) / T, low = min(t * own, words), high = min(low + own, words);
  int bits = 0;
#pragma unroll 1
  for (int w = low; w < high; ++w) bits += __popc(bitmap[w]);
  int all, place = attn_before<T>(bits, sums, &all), below = 0;
#pragma unroll 1
  for (int w = low; w < high; ++w) {
    unsigned left = bitmap[w];
#pragma unroll 1
    for (; left; left &= left - 1, ++place) {
      const int e = w * 32 + __ffs((int)left) - 1;
      if (place >= first && place < last) sorted[place - first] = e;
      below += max(min(limit - e * f.keys, f.keys), 0);
    }
  }
  if (below) atomicAdd(keys_seen, below);
  __syncthreads();
  int *const to = f.pages + ((attn_wide)sequence * f.count + first) * each;
#pragma unroll 1
  for (int i = t; i < (min(last, all) - first) * each; i += T) {
    const int e = sorted[i / each];
    to[i] = f.sequences ? attn_place(f, owner, head, e * each + i % each) : base + e;
  }
  return *keys_seen;
}
