// What kernels that read lists of keys share: how the lists lie, what becomes of them, and where what they name is.
#pragma once

typedef long long attn_wide;
constexpr int kAhead = 8; // entries that a thread looks at together

// How the lists lie, and what becomes of them; see `lists/__init__.py`. With `sequences`, those of packed tensors, each list is that of a
// query, of blocks of its own sequence, and what comes after `key_step` says where these lie; see `ListPlaces`.
struct AttnLists {
  const int *index;
  int *pages, *listed, *shifts, *used, *seen;
  unsigned *bits;
  int *cursor, *wrong;
  const int *q_begins, *q_lengths, *k_begins, *k_lengths, *table;
  const char *ahead[2];
  attn_wide stride_b, stride_h, stride_l, stride_n, of_page, of_part, of_head, ahead_step[2];
  int total, heads, lists, count, blocks, keys, kv_len, queries, q_len, causal, shift, repeat, key_group, key_step;
  int sequences, columns, parts, each, end, ahead_bytes[2], ahead_pages;
};

// The sequence of a query, and how many keys it may see, none if it is in none.
__device__ __forceinline__ int attn_owner(const AttnLists &f, int query, int *limit) {
  int low = 0, high = f.sequences;
  const int guess = min(query, high - 1);  // right where each sequence before has one query: two reads at once in place of some in turn
  const int begin = f.q_begins[guess], next = guess + 1 < high ? f.q_begins[guess + 1] : query + 1;
  if (begin <= query && query < next) {
    low = guess;
    high = guess + 1;
  }
  while (high - low > 1) {
    const int middle = (low + high) / 2;
    if (f.q_begins[middle] <= query)
      low = middle;
    else
      high = middle;
  }
  const attn_wide position = (attn_wide)query - f.q_begins[low], keys = f.k_lengths[low], length = f.q_lengths[low];
  attn_wide seen = f.end == 0 ? keys : min(keys, position + 1 + (f.end > 1 ? keys - length : 0));
  if (position < 0 || position >= length) seen = 0;
  *limit = (int)max(min(seen, (attn_wide)f.kv_len), (attn_wide)0);
  return low;
}

// The page of a part of a block of a sequence; where a table holds no page, neither is this one.
__device__ __forceinline__ int attn_place(const AttnLists &f, int owner, int head, int part) {
  attn_wide found = head / f.key_group * f.of_head;
  if (f.table) {
    const int page = f.table[(attn_wide)owner * f.columns + min(part / f.parts, f.columns - 1)];
    if (page < 0) return -1;
    found += page * f.of_page + part % f.parts * f.of_part;
  } else {
    found += ((attn_wide)part + f.k_begins[owner]) * f.of_part;
  }
  return (int)min(found, (attn_wide)0x7fffffff);
}

// Bytes from an address on to the second level cache, 16 of which divide both.
__device__ __forceinline__ void attn_bring(const char *from, int bytes) {
#ifdef __CUDA_ARCH__
  asm volatile("cp.async.bulk.prefetch.L2.global [%0], %1;" ::"l"(from), "r"(bytes) : "memory");
#endif
}

// The sum of what threads before this one of a group have, and of all.
template <int T>
__device__ __forceinline__ int attn_before(int own, int *sums, int *all) {
  const int lane = threadIdx.x % 32, warp = threadIdx.x % T / 32;
  int sum = own;
#pragma unroll
  for (int step = 1; step < 32; step *= 2) {
    const int more = __shfl_up_sync(0xffffffffu, sum, step);
    if (lane >= step) sum += more;
  }
  if (T == 32) {
    *all = __shfl_sync(0xffffffffu, sum, 31);
    return sum - own;
  }
  if (lane == 31) sums[warp] = sum;
  __syncthreads();
  int before = 0, whole = 0;
#pragma unroll
  for (int w = 0; w < T / 32; ++w) {
    if (w == warp) before = whole;
    whole += sums[w];
  }
  *all = whole;
  return before + sum - own;
}
