// Lists of keys as kernels of attention read them: without what is listed twice or is no block, in order, and their inverse.
//
// A bitmap of a list in shared memory sorts it, and forgets what is there twice. A group of T threads has one list.

template <int T>
__device__ __forceinline__ void attn_together() {
  if (T == 32)
    __syncwarp();
  else
    __syncthreads();
}

// What a list names is brought to the second level cache by thread blocks of its own, while another one sorts it: a kernel that starts when
// this one has ended finds it there, or on its way. Entries that are no block, and what comes after the end of what a query sees, are not.
template <int T>
__device__ __forceinline__ void attn_bring_listed(const AttnLists &f) {
  const int whole = blockIdx.x * (blockDim.x / T) + threadIdx.x / T, each = f.sequences ? f.each : 1;
  if (whole >= f.total) return;
  const int l = whole % f.lists, h = whole / f.lists % f.heads, b = whole / f.lists / f.heads;
  int owner = 0, limit = f.kv_len;
  if (f.sequences) owner = attn_owner(f, f.lists > 1 ? l : b, &limit);
  const int *const from = f.index + b * f.stride_b + h * f.stride_h + l * f.stride_l;
  for (int i = (blockIdx.y - 1) * T + threadIdx.x % T; i < f.count * each; i += (gridDim.y - 1) * T) {
    const int e = from[i / each * f.stride_n];
    if (e < 0 || e >= f.blocks || (attn_wide)e * f.keys >= limit) continue;
    for (int head = h * f.repeat; head < (h + 1) * f.repeat; head += f.key_group) {
      const attn_wide page = f.sequences ? (attn_wide)attn_place(f, owner, head, e * each + i % each)
                                         : (attn_wide)(b * f.key_step + head / f.key_group) * f.blocks + e;
      if (page < 0 || page >= f.ahead_pages) continue;
#pragma unroll
      for (int n = 0; n < 2; ++n)
        if (f.ahead[n]) attn_bring(f.ahead[n] + page * f.ahead_step[n], f.ahead_bytes[n]);
    }
  }
}

template <int T>
__device__ __forceinline__ void attn_prepare(const AttnLists &f, int *memory) {
  const int words = (f.blocks + 31) / 32, group = threadIdx.x / T, t = threadIdx.x % T;
  int *const own = memory + group * (words + f.count + T + 1);
  unsigned *const bitmap = reinterpret_cast<unsigned *>(own);
  int *const sorted = own + words, *const sums = sorted + f.count, *const keys_seen = sums + T;
  const int whole = blockIdx.x * (blockDim.x / T) + group;
  const bool there = whole < f.total;  // a group without a list meets the others
  const int number = there ? whole : 0, l = number % f.lists, h = number / f.lists % f.heads, b = number / f.lists / f.heads;
  int limit = f.kv_len, owner = 0;
  if (f.sequences) owner = attn_owner(f, f.lists > 1 ? l : b, &limit);  // on its way while the list is read
  for (int w = t; w < words; w += T) bitmap[w] = 0;
  if (t == 0) *keys_seen = 0;
  if (f.cursor && whole == 0 && t == 0) *f.cursor = 0;
  attn_together<T>();
  const int *const from = f.index + b * f.stride_b + h * f.stride_h + l * f.stride_l;
  for (int i = t; i < f.count; i += kAhead * T) {
    int entries[kAhead];  // all on their way before one is looked at
#pragma unroll
    for (int n = 0; n < kAhead; ++n) entries[n] = i + n * T < f.count ? from[(i + n * T) * f.stride_n] : -1;
#pragma unroll
    for (int n = 0; n < kAhead; ++n) {
      const int e = entries[n];
      if (e >= 0 && e < f.blocks)
        atomicOr(&bitmap[e >> 5], 1u << (e & 31));
      else if (e != -1 && f.wrong && there) {
        f.wrong[1] = f.blocks;
        f.wrong[2] = f.keys;
        __threadfence_system();  // the host reads these once it sees the number
        f.wrong[0] = e;  // which is never 0
      }
    }
  }
  attn_together<T>();
  const int each = (words + T - 1) / T, first = min(t * each, words), last = min(first + each, words);
  int bits = 0;
  for (int w = first; w < last; ++w) bits += __popc(bitmap[w]);
  int entries, place = attn_before<T>(bits, sums, &entries);
  if (f.causal) {
    const attn_wide query = min(((attn_wide)l + 1) * f.queries, (attn_wide)f.q_len) - 1;
    limit = (int)max(min(query + f.shift + 1, (attn_wide)f.kv_len), (attn_wide)0);
  }
  int below = 0;
  for (int w = first; w < last; ++w)
    for (unsigned left = bitmap[w]; left; left &= left - 1) {
      const int e = w * 32 + __ffs((int)left) - 1;
      sorted[place++] = e;
      below += (int)max(min((attn_wide)limit - (attn_wide)e * f.keys, (attn_wide)f.keys), (attn_wide)0);
    }
  if (below) atomicAdd(keys_seen, below);
  attn_together<T>();
  if (!there) return;
  const int used = *keys_seen, heads = f.heads * f.repeat;
  if (f.bits)
    for (int w = t; w < words; w += T) f.bits[((attn_wide)(b * f.heads + h) * words + w) * f.lists + l] = bitmap[w];
  for (int r = 0; r < f.repeat; ++r) {
    const int head = h * f.repeat + r;
    const attn_wide sequence = ((attn_wide)b * heads + head) * f.lists + l, begin = sequence * f.count;
    for (int i = t; f.sequences && i < f.count * f.each; i += kAhead * T) {
      int found[kAhead];
#pragma unroll
      for (int n = 0; n < kAhead; ++n) {
        const int at = min(i + n * T, f.count * f.each - 1), e = at / f.each < entries ? sorted[at / f.each] : f.blocks - 1;
        found[n] = attn_place(f, owner, head, e * f.each + at % f.each);
      }
#pragma unroll
      for (int n = 0; n < kAhead; ++n)
        if (i + n * T < f.count * f.each) f.pages[begin * f.each + i + n * T] = found[n];
    }
    const int shared = (b * f.key_step + head / f.key_group) * f.blocks;
    for (int i = t; i < f.count; i += T) {
      const int e = i < entries ? sorted[i] : f.blocks - 1;
      if (!f.sequences) f.pages[begin + i] = e + shared;
      if (f.listed) f.listed[begin + i] = e;
      if (f.shifts) f.shifts[begin + i] = (e - i) * f.keys;
    }
    if (t == 0) f.used[sequence] = used;
    if (!f.seen) continue;
    for (int i = t; i < f.queries; i += T) {  // how many keys of its list a query sees
      const attn_wide query = min((attn_wide)l * f.queries + i, (attn_wide)f.q_len - 1);
      const attn_wide end = max(min(query + f.shift + 1, (attn_wide)f.kv_len), (attn_wide)0);
      int low = 0, high = entries;
      while (low < high) {
        const int middle = (low + high) / 2;
        if ((attn_wide)sorted[middle] * f.keys < end)
          low = middle + 1;
        else
          high = middle;
      }
      attn_wide keys = 0;
      if (low > 0) keys = (attn_wide)(low - 1) * f.keys + min(end - (attn_wide)sorted[low - 1] * f.keys, (attn_wide)f.keys);
      f.seen[sequence * f.queries + i] = (int)min(keys, (attn_wide)used);
    }
  }
}

extern "C" __global__ void __launch_bounds__(128) attn_prepare_short_lists(const __grid_constant__ AttnLists form) {
  extern __shared__ int attn_memory[];
  if (blockIdx.y > 0)
    attn_bring_listed<32>(form);
  else
    attn_prepare<32>(form, attn_memory);
}

extern "C" __global__ void __launch_bounds__(256) attn_prepare_lists(const __grid_constant__ AttnLists form) {
  extern __shared__ int attn_memory[];
  if (blockIdx.y > 0)
    attn_bring_listed<256>(form);
  else
    attn_prepare<256>(form, attn_memory);
}

// For each tile of keys the lists that name it, in their order, from the bitmaps of all lists, [B H, words, lists]. A thread block has a word:
// lane n of its warps the n-th block, each warp some of the lists. Where entries lie depends on which block comes first, what they are does not.
struct AttnInverse {
  const unsigned *bits;
  int *cursor, *entries, *after;
  attn_wide *ranges;
  int lists, blocks, tiles, tiles_of_block;
};

extern "C" __global__ void __launch_bounds__(256) attn_invert_lists(const __grid_constant__ AttnInverse f) {
  __shared__ int counts[8][33], begins[33];
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, word = blockIdx.x, words = gridDim.x, block = word * 32 + lane;
  const unsigned *const row = f.bits + ((attn_wide)blockIdx.y * words + word) * f.lists;
  const int each = (f.lists + 7) / 8, first = min(warp * each, f.lists), last = min(first + each, f.lists);
  int count = 0;
#pragma unroll 8
  for (int q = first; q < last; ++q) count += row[q] >> lane & 1;
  counts[warp][lane] = count;
  __syncthreads();
  if (warp == 0) {
    int sum = 0;
    for (int w = 0; w < 8; ++w) {
      const int more = counts[w][lane];
      counts[w][lane] = sum;
      sum += more;
    }
    begins[lane] = sum;
    __syncwarp();
    if (lane == 0) {
      int whole = 0;
      for (int n = 0; n < 32; ++n) whole += begins[n];
      int begin = whole ? atomicAdd(f.cursor, whole) : 0;
      for (int n = 0; n < 32; ++n) {
        const int more = begins[n];
        begins[n] = begin;
        begin += more;
      }
    }
    __syncwarp();
    if (block < f.blocks) {
      const attn_wide own = (attn_wide)block * f.tiles_of_block;
      for (int n = 0; n < f.tiles_of_block && own + n < f.tiles; ++n) {
        attn_wide *const range = f.ranges + ((attn_wide)blockIdx.y * f.tiles + own + n) * 2;
        range[0] = begins[lane];
        range[1] = (attn_wide)begins[lane] + sum;
      }
    }
  }
  __syncthreads();
  int place = begins[lane] + counts[warp][lane];
#pragma unroll 8
  for (int q = first; q < last; ++q) {
    const unsigned listed = row[q];
    if (!(listed >> lane & 1)) continue;
    f.entries[place] = q;
    if (f.after) {  // the next block that the same list names
      unsigned left = lane == 31 ? 0 : listed >> (lane + 1) << (lane + 1);
      int w = word;
      while (!left && ++w < words) left = row[(attn_wide)(w - word) * f.lists + q];
      f.after[place] = left ? w * 32 + __ffs((int)left) - 1 : -1;
    }
    ++place;
  }
}
