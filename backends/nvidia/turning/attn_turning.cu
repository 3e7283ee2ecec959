// 8-bit values as transposed tiles, in the bytes that shared memory has of them where wgmma reads them.

typedef unsigned long long attn_turn_size;

// See `turning/__init__.py`. Strides are in words of four bytes, `groups` thirty-twos of keys of a head, whole tiles of them.
struct AttnTurning {
  const unsigned *values;
  uint4 *tiles;
  attn_turn_size batch_stride, head_stride, key_stride, all;
  int keys, heads, groups, columns, tile, swizzle;
};

// What of two words of four keys' bytes goes to one of a column's: bytes of column n of four keys.
__device__ __forceinline__ void attn_turn_four(const unsigned *keys, unsigned *columns) {
  const unsigned low = __byte_perm(keys[0], keys[1], 0x5140), high = __byte_perm(keys[0], keys[1], 0x7362);
  const unsigned other_low = __byte_perm(keys[2], keys[3], 0x5140), other_high = __byte_perm(keys[2], keys[3], 0x7362);
  columns[0] = __byte_perm(low, other_low, 0x5410);
  columns[1] = __byte_perm(low, other_low, 0x7632);
  columns[2] = __byte_perm(high, other_high, 0x5410);
  columns[3] = __byte_perm(high, other_high, 0x7632);
}

// A thread has sixteen keys of four columns. Threads beside each other have sixteen keys beside each other, so that both write a whole
// sector of memory; pairs of them read whole sectors together. Word t of sixteen places has keys 2 t, 2 t + 1, and both + 8.
extern "C" __global__ void attn_turn_values(const AttnTurning f) {
  const attn_turn_size number = attn_turn_size(blockIdx.x) * blockDim.x + threadIdx.x;
  const unsigned threads = unsigned(f.columns) / 2;
  const attn_turn_size group = number / threads;
  if (group >= f.all) return;
  const unsigned own = unsigned(number % threads), half = own % 2, quad = own / 2;
  const attn_turn_size head_of_all = group / unsigned(f.groups);
  const int first = int(group % unsigned(f.groups)) * 32;
  const unsigned *const from =
      f.values + head_of_all / unsigned(f.heads) * f.batch_stride + head_of_all % unsigned(f.heads) * f.head_stride + quad;
  const int key = first + int(half) * 16;
  unsigned words[16];
#pragma unroll
  for (int i = 0; i < 16; ++i) words[i] = key + i < f.keys ? from[attn_turn_size(key + i) * f.key_stride] : 0;
  uint4 turned[4];
#pragma unroll
  for (int t = 0; t < 4; ++t) {
    const unsigned four[4] = {words[2 * t], words[2 * t + 1], words[2 * t + 8], words[2 * t + 9]};
    unsigned columns[4];
    attn_turn_four(four, columns);
#pragma unroll
    for (int n = 0; n < 4; ++n) reinterpret_cast<unsigned *>(&turned[n])[t] = columns[n];
  }
  const int place = first % f.tile + int(half) * 16;
  uint4 *const to = f.tiles + (head_of_all * unsigned(f.groups) * 32 + (first - first % f.tile)) * unsigned(f.columns) / 16;
#pragma unroll
  for (int n = 0; n < 4; ++n) {
    const int at = place / f.swizzle * f.columns * f.swizzle + (int(quad) * 4 + n) * f.swizzle + place % f.swizzle;
    to[(at ^ (at >> 3 & (f.swizzle - 16))) / 16] = turned[n];
  }
}
