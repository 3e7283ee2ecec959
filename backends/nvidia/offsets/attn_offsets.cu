// Where packed sequences lie, cut off at the ends of tensors, of offsets that nobody waits for.

typedef long long attn_wide;

// See `offsets/__init__.py`. `keys` are null where queries and keys have the same offsets, or keys lie in pages; `used` where offsets tell all lengths.
struct AttnOffsets {
  const int *queries, *keys, *used;
  int *made;
  attn_wide query_step, key_step, used_step;
  int count, query_rows, key_rows, paged;
};
// Of one sequence, the first query, the number of queries, the first key and the number of keys.
struct AttnSequence {
  int begin, queries, first, keys;
};

__device__ __forceinline__ int attn_inside(int x, int rows) { return min(max(x, 0), rows); }

__device__ __forceinline__ AttnSequence attn_cut(const AttnOffsets &f, int i) {
  const int begin = attn_inside(f.queries[i * f.query_step], f.query_rows), end = attn_inside(f.queries[(i + 1) * f.query_step], f.query_rows);
  const int *const keys = f.keys ? f.keys : f.queries;
  const attn_wide step = f.keys ? f.key_step : f.query_step;
  const int first = f.paged ? 0 : attn_inside(keys[i * step], f.key_rows);
  const int there = f.paged ? f.key_rows : f.used ? f.key_rows - first : attn_inside(keys[(i + 1) * step], f.key_rows) - first;
  return {begin, max(end - begin, 0), first, max(f.used ? min(f.used[i * f.used_step], there) : there, 0)};
}

__device__ __forceinline__ void attn_tell(const AttnOffsets &f, int i, const AttnSequence &sequence) {
  f.made[i] = sequence.begin;
  f.made[f.count + i] = sequence.queries;
  f.made[2 * f.count + i] = sequence.first;
  f.made[3 * f.count + i] = sequence.keys;
}

extern "C" __global__ void attn_cut_offsets(const AttnOffsets f) {
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < f.count) attn_tell(f, i, attn_cut(f, i));
}

constexpr int kMostSingle = 1024;

// The same of sequences of one query each at most, as many as there are rows: a sequence without a query gets a row of no sequence, and no keys,
// so that every row is one of a sequence, and those of no sequence come out as fully masked rows do. One thread block.
extern "C" __global__ void attn_cut_single_offsets(const AttnOffsets f) {
  __shared__ unsigned owned[kMostSingle / 32];
  __shared__ int sums[kMostSingle], rows[kMostSingle];
  const int i = threadIdx.x;
  const bool there = i < f.count;
  if (i < kMostSingle / 32) owned[i] = 0;
  __syncthreads();
  AttnSequence sequence = {0, 0, 0, 0};
  if (there) sequence = attn_cut(f, i);
  const int at = sequence.begin;
  // Of wrong offsets several sequences may name one row.
  const bool owns = there && sequence.queries > 0 && !(atomicOr(&owned[at / 32], 1u << (at % 32)) >> (at % 32) & 1);
  __syncthreads();
  const bool spare = there && !owns, left = there && !(owned[i / 32] >> (i % 32) & 1);
  const int both = int(spare) + (int(left) << 16);
  sums[i] = both;
  __syncthreads();
  for (int step = 1; step < (int)blockDim.x; step *= 2) {
    const int more = i >= step ? sums[i - step] : 0;
    __syncthreads();
    sums[i] += more;
    __syncthreads();
  }
  const int before = sums[i] - both;
  if (left) rows[before >> 16] = i;
  __syncthreads();
  if (!there) return;
  if (spare) sequence.begin = rows[before & 0xffff], sequence.keys = 0;
  sequence.queries = 1;
  attn_tell(f, i, sequence);
}
