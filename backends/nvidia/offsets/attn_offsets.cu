// Where packed sequences lie, cut off at the ends of tensors, of offsets that nobody waits for.

typedef long long attn_wide;

// See `offsets/__init__.py`. `keys` are null where queries and keys have the same offsets, or keys lie in pages; `used` where offsets tell all lengths.
struct AttnOffsets {
  const int *queries, *keys, *used;
  int *made;
  attn_wide query_step, key_step, used_step;
  int count, query_rows, key_rows, paged;
};

__device__ __forceinline__ int attn_inside(int x, int rows) { return min(max(x, 0), rows); }

extern "C" __global__ void attn_cut_offsets(const AttnOffsets f) {
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i >= f.count) return;
  const int begin = attn_inside(f.queries[i * f.query_step], f.query_rows), end = attn_inside(f.queries[(i + 1) * f.query_step], f.query_rows);
  f.made[i] = begin;
  f.made[f.count + i] = max(end - begin, 0);
  const int *const keys = f.keys ? f.keys : f.queries;
  const attn_wide step = f.keys ? f.key_step : f.query_step;
  const int first = f.paged ? 0 : attn_inside(keys[i * step], f.key_rows);
  const int there = f.paged ? f.key_rows : f.used ? f.key_rows - first : attn_inside(keys[(i + 1) * step], f.key_rows) - first;
  f.made[2 * f.count + i] = first;
  f.made[3 * f.count + i] = max(f.used ? min(f.used[i * f.used_step], there) : there, 0);
}
