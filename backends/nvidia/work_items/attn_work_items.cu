// Lists of work of packed sequences, in one launch: which sequence each program has, and which of its rows; see `gpu.packed.items_of`.

typedef long long attn_wide;
constexpr int kMostSequences = 1024;

// See `work_items/__init__.py`. `others` are null where sequences come in their own order, `semaphore_rows` is 0 where there are none.
struct AttnWorkItems {
  const int *own, *others;
  int *items;
  attn_wide own_step, other_step;
  int count, block, most, first, semaphore_rows, semaphores;
};

// Sums up to each place, of a thread block whose threads have one each; the others meet it.
__device__ __forceinline__ attn_wide attn_sum_up(attn_wide *sums, attn_wide value, int place, bool there) {
  if (there) sums[place] = value;
  __syncthreads();
  for (int step = 1; step < (int)blockDim.x; step *= 2) {
    const attn_wide more = there && place >= step ? sums[place - step] : 0;
    __syncthreads();
    if (there) sums[place] += more;
    __syncthreads();
  }
  return there ? sums[place] : 0;
}

// Each thread block orders all sequences, and writes some of the items.
extern "C" __global__ void __launch_bounds__(1024) attn_list_work_items(const AttnWorkItems f) {
  __shared__ attn_wide sums[kMostSequences];
  __shared__ int others[kMostSequences], owners[kMostSequences], lengths[kMostSequences], blocks[kMostSequences], slots[kMostSequences];
  const int i = threadIdx.x;
  const bool there = i < f.count;
  const int own = there ? f.own[i * f.own_step] : 0, other = there && f.others ? f.others[i * f.other_step] : 0;
  int own_blocks = (own + f.block - 1) / f.block, slot = 0;
  if (f.semaphore_rows) {
    const attn_wide each = ((attn_wide)other + f.semaphore_rows - 1) / f.semaphore_rows, end = attn_sum_up(sums, each, i, there);
    slot = (int)(end - each);
    if (end > f.semaphores) own_blocks = 0;  // lengths that nobody checked may ask for more than there are
  }
  if (there) others[i] = other, lengths[i] = own, blocks[i] = own_blocks, slots[i] = slot;
  __syncthreads();
  int place = i;
  if (there && f.others) {
    place = 0;
    for (int j = 0; j < f.count; ++j) place += others[j] > other || (others[j] == other && j < i);
  }
  if (there) owners[place] = i;
  attn_sum_up(sums, own_blocks, place, there);
  const attn_wide total = sums[f.count - 1];
  for (int n = blockIdx.x * blockDim.x + i; n < f.most; n += gridDim.x * blockDim.x) {
    int low = 0, high = f.count - 1;  // the first place whose sum is larger, or the last one
    while (low < high) {
      const int middle = (low + high) / 2;
      if (sums[middle] > n)
        high = middle;
      else
        low = middle + 1;
    }
    const int owner = owners[low], length = lengths[owner];
    const attn_wide inside = f.first ? n - sums[low] + blocks[owner] : sums[low] - 1 - n;
    const attn_wide begin = n < total ? inside * f.block : length;
    int *const item = f.items + 4 * (attn_wide)n;
    item[0] = owner;
    item[1] = (int)begin;
    item[2] = (int)min(begin + f.block, (attn_wide)length);
    item[3] = slots[owner];
  }
  if (blockIdx.x == 0 && i < 4) f.items[4 * (attn_wide)f.most + i] = i ? 0 : (int)min(total, (attn_wide)f.most);
}
