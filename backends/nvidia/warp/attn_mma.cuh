// Matrix products of single warps (mma.sync, sm_80 and newer), and the copies that bring their factors (cp.async).
//
// Tiles in shared memory are those of attn_hopper.cuh: swizzle atoms of 64 columns of 16 bits, whose 16-byte chunks are permuted by `swizzle_128`.
// Two elements of 8 bits are a column here.
#pragma once

namespace attn {

// `unrolled`: how many steps along the depth of a product are unrolled.
struct F16 {
  static constexpr int unrolled = 64;
};
struct BF16 {
  static constexpr int unrolled = 64;
};

// sum += a b for 16 x 16 elements of a in registers and 16 x 8 of b.
ATTN_DEVICE void mma_16816(F16, float *sum, const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
  asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
      : "+f"(sum[0]), "+f"(sum[1]), "+f"(sum[2]), "+f"(sum[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}
ATTN_DEVICE void mma_16816(BF16, float *sum, const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
  asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
      : "+f"(sum[0]), "+f"(sum[1]), "+f"(sum[2]), "+f"(sum[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}
// Two 8x8 matrices, of which lanes 0 to 15 give the rows; as they are, or each transposed (attn_hopper.cuh has four).
ATTN_DEVICE void load_two_matrices(uint32_t address, uint32_t &a, uint32_t &b) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x2.shared.b16 {%0, %1}, [%2];" : "=r"(a), "=r"(b) : "r"(address) : "memory");
}
ATTN_DEVICE void load_two_matrices_transposed(uint32_t address, uint32_t &a, uint32_t &b) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x2.trans.shared.b16 {%0, %1}, [%2];" : "=r"(a), "=r"(b) : "r"(address) : "memory");
}
ATTN_DEVICE void store_pair(uint32_t address, uint32_t pair) { asm volatile("st.shared.b32 [%0], %1;" ::"r"(address), "r"(pair) : "memory"); }
ATTN_DEVICE float of_lane(float value, int lane) { return __shfl_sync(0xffffffffu, value, lane); }

// A tile in shared memory, `atom` bytes from one swizzle atom to the next, whose rows have 128 bytes, or 64.
struct Atoms {
  uint32_t address;
  int atom, row = 128;
  // The 8 elements from column + 8 * half on of row first + own. `first` is a multiple of 8, `column` of 16: what is permuted follows from
  // `own` and `half`, which are the lane's, so that each step of a product adds a constant, and flips constant bits.
  ATTN_DEVICE uint32_t at(int first, int own, int column, int half) const {
    const int chunk = row == 64 ? own >> 1 & 3 : own & 7;
    return address + column / (row / 2) * atom + (first + own) * row + ((column % (row / 2) * 2) ^ ((half ^ chunk) << 4));
  }
};
// Two tiles side by side, the first of which has so many columns, a multiple of 16.
template <int First, class A, class B> struct Beside {
  A a;
  B b;
  ATTN_DEVICE uint32_t at(int first, int own, int column, int half) const {
    return column < First ? a.at(first, own, column, half) : b.at(first, own, column - First, half);
  }
};

// Factor a of a product: 16 rows, block by block of a warp's, and 16 columns from k on.
template <int Registers, int Blocks> struct HeldFactor {
  const uint32_t (&held)[Registers];
  ATTN_DEVICE void load(int k, int block, uint32_t (&a)[4]) const {
#pragma unroll
    for (int i = 0; i < 4; ++i) a[i] = held[Registers / Blocks * block + k / 4 + i];
  }
};
template <int Registers> ATTN_DEVICE HeldFactor<Registers, 1> held_1(const uint32_t (&a)[Registers]) { return {a}; }
template <int Registers> ATTN_DEVICE HeldFactor<Registers, 2> held_2(const uint32_t (&a)[Registers]) { return {a}; }
// From row `first` of the tile on, or, of one that is stored the other way, from that column on.
struct SharedFactor {
  Atoms tile;
  int first, lane;
  ATTN_DEVICE void load(int k, int block, uint32_t (&a)[4]) const {
    load_matrices(tile.at(first + 16 * block, lane % 16, k, lane / 16), a);
  }
};
struct TransposedFactor {
  Atoms tile;
  int first, lane;
  ATTN_DEVICE void load(int k, int block, uint32_t (&a)[4]) const {
    load_matrices_transposed(tile.at(k, lane / 16 * 8 + lane % 8, first + 16 * block, lane / 8 % 2), a);
  }
};

// sum += a b, N columns and a depth of K, for so many blocks of 16 rows. Rows of b's tile are columns of b where `Rows`, else they run along K.
template <class Element, int N, int K, int Blocks, bool Rows, class A, class B>
ATTN_DEVICE void multiply(float (&sum)[Blocks * N / 2], const A &left, const B &b, int lane) {
#pragma unroll Element::unrolled
  for (int k = 0; k < K; k += 16) {
    uint32_t a[Blocks][4];
#pragma unroll
    for (int block = 0; block < Blocks; ++block) left.load(k, block, a[block]);
#pragma unroll
    for (int n = 0; n < N; n += 16) {
      uint32_t m[4];
      if (N - n == 8) {
        if (Rows) load_two_matrices(b.at(n, lane % 8, k, lane / 8 % 2), m[0], m[1]);
        else load_two_matrices_transposed(b.at(k, lane % 16, n, 0), m[0], m[1]);
      } else {
        if (Rows) load_matrices(b.at(n, lane / 16 * 8 + lane % 8, k, lane / 8 % 2), m);
        else load_matrices_transposed(b.at(k, lane % 16, n, lane / 16), m);
      }
#pragma unroll
      for (int block = 0; block < Blocks; ++block) {
        float *to = &sum[block * (N / 2) + n / 2];
        mma_16816(Element{}, to, a[block], m[0], m[1]);
        if (N - n > 8) mma_16816(Element{}, to + 4, a[block], m[2], m[3]);
      }
    }
  }
}

// A warp's rows of a tile, for so many blocks of 16: factor a of a product.
template <int N, int Blocks> ATTN_DEVICE void load_factor(uint32_t (&tile)[Blocks * N / 4], const SharedFactor &from) {
#pragma unroll
  for (int block = 0; block < Blocks; ++block)
#pragma unroll
    for (int k = 0; k < N; k += 16) {
      uint32_t a[4];
      from.load(k, block, a);
#pragma unroll
      for (int i = 0; i < 4; ++i) tile[block * (N / 4) + k / 4 + i] = a[i];
    }
}
// The same the other way: each lane writes its pairs of columns, 8 rows of them to all 32 banks.
template <int N, int Blocks> ATTN_DEVICE void store_factor(const uint32_t (&tile)[Blocks * N / 4], const SharedFactor &to) {
#pragma unroll
  for (int i = 0; i < Blocks * N / 4; ++i) {
    const int block = i / (N / 4), column = i % (N / 4) / 2 * 8, half = i % 2 * 8;
    const uint32_t address = to.tile.at(to.first + 16 * block + half, to.lane / 4, column / 16 * 16, column / 8 % 2) + to.lane % 4 * 4;
    store_pair(address, tile[i]);
  }
}

// Calls f(register, place) for each pair of columns that this lane has of the rows that exist, from `row` on, of `size`; `to` is row 0's first element.
template <int N, int Blocks, class Element, class F>
ATTN_DEVICE void each_pair(Element *to, long long stride, int row, int size, int warp, int lane, const F &f) {
#pragma unroll
  for (int h = 0; h < 2 * Blocks; ++h) {
    const int at = row + warp * 16 * Blocks + 8 * h + lane / 4;
    if (at < 0 || at >= size) continue;
    Element *const line = to + at * stride + lane % 4 * 2;
#pragma unroll
    for (int c = 0; c < N / 8; ++c) f(h / 2 * (N / 4) + 2 * c + h % 2, line + 8 * c);
  }
}
// Lanes exchange columns first, so that an addition of a warp is one to 8 columns of 4 rows, whole sectors of 32 bytes: half as many for L2.
template <int N, int Blocks>
ATTN_DEVICE void add_pairs(const float (&tile)[Blocks * N / 2], float *to, long long stride, int row, int size, int warp, int lane) {
#pragma unroll
  for (int h = 0; h < 2 * Blocks; ++h) {
#pragma unroll 1
    for (int half = 0; half < 2; ++half) {
      const int own = 4 * half + lane / 8, from = 4 * own + lane % 8 / 2, at = row + warp * 16 * Blocks + 8 * h + own;
      float *const line = to + at * stride + lane % 8;
#pragma unroll
      for (int c = 0; c < N / 8; ++c) {
        const int pair = h / 2 * (N / 4) + 2 * c + h % 2;
        const float even = of_lane(tile[2 * pair], from), odd = of_lane(tile[2 * pair + 1], from);
        if (at >= 0 && at < size) add_global(line + 8 * c, lane % 2 ? odd : even);
      }
    }
  }
}
template <int N, int Blocks>
ATTN_DEVICE void store_pairs(const float (&tile)[Blocks * N / 2], float *to, long long stride, int row, int size, int warp, int lane) {
  each_pair<N, Blocks>(to, stride, row, size, warp, lane, [&](int pair, float *place) {
    *reinterpret_cast<float2 *>(place) = make_float2(tile[2 * pair], tile[2 * pair + 1]);
  });
}
template <int N, int Blocks, class Element>
ATTN_DEVICE void store_pairs(const uint32_t (&tile)[Blocks * N / 4], Element *to, long long stride, int row, int size, int warp, int lane) {
  each_pair<N, Blocks>(to, stride, row, size, warp, lane, [&](int pair, Element *place) { *reinterpret_cast<uint32_t *>(place) = tile[pair]; });
}

// 4 or 16 bytes from global to shared memory, zeros where they do not exist.
ATTN_DEVICE void copy_4(uint32_t to, const void *from, bool exists) {
  asm volatile("cp.async.ca.shared.global [%0], [%1], 4, %2;" ::"r"(to), "l"(from), "r"(exists ? 4 : 0) : "memory");
}
ATTN_DEVICE void copy_16(uint32_t to, const void *from, bool exists) {
  asm volatile("cp.async.cg.shared.global.L2::128B [%0], [%1], 16, %2;" ::"r"(to), "l"(from), "r"(exists ? 16 : 0) : "memory");
}
// A warp's share of `Rows` rows from `row` on and `Atoms_` swizzle atoms of 64 columns, those past the last of `size` zeros; rows and `from` begin at
// multiples of 16 bytes.
template <int Rows, int Atoms_, class Element>
ATTN_DEVICE void copy_lanes(Atoms to, const Element *from, long long stride, int row, int size, int warp, int lane) {
  const int own = warp * (Rows / 4) + lane / 8, chunk = lane % 8;
#pragma unroll
  for (int i = 0; i < Rows / 4; i += 4) {
    const int at = row + own + i;
    const bool exists = at >= 0 && at < size;
    const Element *line = from + (exists ? at : 0) * stride + chunk * 8;
#pragma unroll
    for (int p = 0; p < Atoms_; ++p) copy_16(to.address + p * to.atom + swizzle_128((own + i) * 128 + chunk * 16), line + p * 64, exists);
  }
}
// A warp's share of `Count` numbers from `row` on, those past the last of `size` zeros.
template <int Count> ATTN_DEVICE void copy_numbers(uint32_t to, const float *from, long long stride, int row, int size, int warp, int lane) {
#pragma unroll
  for (int i = 0; i < Count / 4; i += 32) {
    const int own = warp * (Count / 4) + i + lane;
    const bool exists = row + own >= 0 && row + own < size;
    if (i + lane < Count / 4) copy_4(to + 4 * own, from + (exists ? row + own : 0) * stride, exists);
  }
}
ATTN_DEVICE void copy_commit() { asm volatile("cp.async.commit_group;" ::: "memory"); }
// Waits until all but the newest `Pending` groups of copies of this thread are done.
template <int Pending> ATTN_DEVICE void copy_wait() { asm volatile("cp.async.wait_group %0;" ::"n"(Pending) : "memory"); }

// Lets thread block `number` go on: it sees what the threads that this one has met had added.
ATTN_DEVICE void semaphore_release(int *semaphore, int number) {
  asm volatile("fence.acq_rel.gpu;\nst.release.gpu.global.s32 [%0], %1;" ::"l"(semaphore), "r"(number) : "memory");
}

} // namespace attn
