// The list of one sequence made ready by the thread blocks that read it: a few queries, for which a kernel of its own takes longer.
//
// Each thread block of a cluster sorts the whole list by a bitmap in shared memory, as `attn_prepare` does, and writes down where its own part of the keys
// is, which it reads afterwards, it alone.
#pragma once

// What a kernel of a few sequences takes besides tensors: the lists, keys of a part (the parts of a sequence are a cluster), rows of a sequence, and blocks of
// rows that these are.
struct AttnFew {
  AttnLists lists;
  int length, rows, row_blocks, parts;
};

// How many keys a sequence sees, once the pages of the blocks that keys [begin, end) are in are written, of all threads of a block. `memory` has room for
// a bit for each block, T + 32 numbers and each entry. `rank` of `ranks`: whose share of what is listed is brought closer, negative: nobody's.
template <int T>
__device__ __forceinline__ int attn_list_part(const AttnLists &f, int *memory, int sequence, int begin, int end, int rank, int ranks) {
  const int words = (f.blocks + 31) / 32, t = threadIdx.x, heads = f.heads * f.repeat;
  unsigned *const bitmap = reinterpret_cast<unsigned *>(memory);
  int *const sums = memory + words, *const keys_seen = sums + T, *const sorted = keys_seen + 32;
  const int l = sequence % f.lists, head = sequence / f.lists % heads, b = sequence / f.lists / heads;
  const int *const from = f.index + b * f.stride_b + head / f.repeat * f.stride_h + l * f.stride_l;
  const int each = f.sequences ? f.each : 1, first = begin / f.keys, last = min(f.count, (end - 1) / f.keys + 1);
  int entries[kAhead]; // on their way while all else is made ready
#pragma unroll
  for (int n = 0; n < kAhead; ++n) entries[n] = t + n * T < f.count ? from[(t + n * T) * f.stride_n] : -1;
  int limit = f.kv_len, owner = 0;
  if (f.sequences) owner = attn_owner(f, f.lists > 1 ? l : b, &limit);
  if (f.causal) {
    const attn_wide query = min(((attn_wide)l + 1) * f.queries, (attn_wide)f.q_len) - 1;
    limit = (int)max(min(query + f.shift + 1, (attn_wide)f.kv_len), (attn_wide)0);
  }
  for (int w = t; w < words; w += T) bitmap[w] = 0;
  if (t == 0) *keys_seen = 0;
  __syncthreads();
  for (int i = t;;) {
#pragma unroll
    for (int n = 0; n < kAhead; ++n) {
      const int e = entries[n];
      if (e >= 0 && e < f.blocks) {
        atomicOr(&bitmap[e >> 5], 1u << (e & 31));
        if (f.ahead_pages && (attn_wide)e * f.keys < limit && (i / 32 + n * (T / 32)) % ranks == rank) {
          for (int p = 0; p < each; ++p) {
            const attn_wide page = f.sequences ? (attn_wide)attn_place(f, owner, head, (attn_wide)e * each + p)
                                               : (attn_wide)(b * f.key_step + head / f.key_group) * f.blocks + e;
            if (page < 0 || page >= f.ahead_pages) continue;
#pragma unroll
            for (int x = 0; x < 2; ++x)
              if (f.ahead[x]) attn_bring(f.ahead[x] + page * f.ahead_step[x], f.ahead_bytes[x]);
          }
        }
      } else if (e != -1 && f.wrong) {
        f.wrong[1] = f.blocks;
        f.wrong[2] = f.keys;
        __threadfence_system(); // the host reads these once it sees the number
        f.wrong[0] = e;         // which is never 0
      }
    }
    i += kAhead * T;
    if (i - t >= f.count) break;
#pragma unroll
    for (int n = 0; n < kAhead; ++n) entries[n] = i + n * T < f.count ? from[(i + n * T) * f.stride_n] : -1;
  }
  __syncthreads();
  const int own = (words + T - 1) / T, low = min(t * own, words), high = min(low + own, words);
  int bits = 0;
  for (int w = low; w < high; ++w) bits += __popc(bitmap[w]);
  int all, place = attn_before<T>(bits, sums, &all), below = 0;
  for (int w = low; w < high; ++w)
    for (unsigned left = bitmap[w]; left; left &= left - 1) {
      const int e = w * 32 + __ffs((int)left) - 1;
      if (place >= first && place < last) sorted[place - first] = e;
      ++place;
      below += (int)max(min((attn_wide)limit - (attn_wide)e * f.keys, (attn_wide)f.keys), (attn_wide)0);
    }
#pragma unroll
  for (int step = 16; step; step /= 2) below += __shfl_xor_sync(0xffffffffu, below, step);
  if (t % 32 == 0 && below) atomicAdd(keys_seen, below);
  __syncthreads();
  const int used = *keys_seen, pages = (min(last, all) - first) * each;
  int *const to = f.pages + (attn_wide)sequence * f.count * each + first * each;
  for (int i = t; i < pages; i += T) {
    const int e = sorted[i / each];
    to[i] = f.sequences ? attn_place(f, owner, head, (attn_wide)e * each + i % each) : (b * f.key_step + head / f.key_group) * f.blocks + e;
  }
  __syncthreads(); // who copies rows reads the pages
  return used;
}
