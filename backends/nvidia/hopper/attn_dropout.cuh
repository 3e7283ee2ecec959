namespace attn {

// Bits of dropout that lanes of the consumers make for their warp: of each row and 64 keys four words, one for each lane that shares the row. The keys 16 g + 8 u + 2 n + e of these 64 have bit 7 - g of byte e + 2 u of word n, which is 1 where the pair is kept.
//
// Philox's counter is (group of 16 keys, query, batch entry and head, offset). Of ten rounds with two products each the first one and a half
// depend on the query or on the keys alone: five products that are made once for 32 rows, or once for 16 keys. 15 are left for each call.

constexpr uint32_t kPhilox0 = 0xD2511F53, kPhilox1 = 0xCD9E8D57, kWeyl0 = 0x9E3779B9, kWeyl1 = 0xBB67AE85;

struct Dropout {
  uint32_t key0, key1, offset, drop, row; // the last one is that of the batch entry and the head
};

ATTN_DEVICE uint32_t high(uint64_t value) { return static_cast<uint32_t>(value >> 32); }
ATTN_DEVICE uint32_t low(uint64_t value) { return static_cast<uint32_t>(value); }
ATTN_DEVICE uint64_t wide(uint32_t a, uint32_t b) { return static_cast<uint64_t>(a) * b; }

// What rounds 0 to 2 make of a group of keys.
ATTN_DEVICE uint4 philox_keys(const Dropout &of, uint32_t group) {
  const uint64_t a0 = wide(group, kPhilox0), b1 = wide(high(a0) ^ of.offset ^ of.key1, kPhilox1);
  const uint64_t a2 = wide(high(b1) ^ low(wide(of.row, kPhilox1)) ^ (of.key0 + kWeyl0), kPhilox0);
  return make_uint4(low(a0) ^ (of.key1 + kWeyl1), low(b1) ^ (of.key0 + 2 * kWeyl0), high(a2) ^ (of.key1 + 2 * kWeyl1), low(a2));
}
// What rounds 0 and 1 make of a query.
ATTN_DEVICE uint64_t philox_query(const Dropout &of, uint32_t query) {
  return wide(high(wide(of.row, kPhilox1)) ^ query ^ of.key0, kPhilox0);
}
// The other rounds of `Calls` calls beside each other, `Unroll` of seven in a row. In straight code ptxas puts one call after the other to
// save registers, so that each waits for its own products; in a loop over rounds it cannot.
template <int Unroll, int Calls>
ATTN_DEVICE void philox_rounds(const Dropout &of, const uint64_t (&query)[Calls], const uint4 (&keys)[Calls], uint32_t (&c0)[Calls],
                               uint32_t (&c1)[Calls], uint32_t (&c2)[Calls], uint32_t (&c3)[Calls]) {
#pragma unroll
  for (int i = 0; i < Calls; ++i) {
    const uint64_t b = wide(high(query[i]) ^ keys[i].x, kPhilox1);
    c0[i] = high(b) ^ keys[i].y, c1[i] = low(b), c2[i] = low(query[i]) ^ keys[i].z, c3[i] = keys[i].w;
  }
  uint32_t key0 = of.key0 + 3 * kWeyl0, key1 = of.key1 + 3 * kWeyl1;
#pragma unroll Unroll
  for (int round = 3; round < 10; ++round) {
#pragma unroll
    for (int i = 0; i < Calls; ++i) {
      const uint64_t a = wide(c0[i], kPhilox0), b = wide(c2[i], kPhilox1);
      c0[i] = high(b) ^ c1[i] ^ key0, c1[i] = low(b);
      c2[i] = high(a) ^ c3[i] ^ key1, c3[i] = low(a);
    }
    key0 += kWeyl0, key1 += kWeyl1;
  }
}
// What carries into the highest bit of a byte whose lower bits are at least the limit.
ATTN_DEVICE uint32_t philox_carry(const Dropout &of, uint32_t c0, uint32_t c1, uint32_t c2, uint32_t c3) {
  const uint32_t down = (128 - (of.drop >> 25)) * 0x01010101u, up = down - 0x01010101u;
  return ((c0 ^ c1 ^ c2 ^ c3) & 0x1ffffffu) < (of.drop & 0x1ffffffu) ? up : down;
}
// The bits of a query and `Calls` groups, the last one first; they move into `bits` from above.
template <int Unroll, int Calls>
ATTN_DEVICE void philox_bits(const Dropout &of, uint64_t query, const uint4 (&keys)[Calls], uint32_t (&bits)[4]) {
  uint32_t c0[Calls], c1[Calls], c2[Calls], c3[Calls];
  uint64_t same[Calls];
#pragma unroll
  for (int i = 0; i < Calls; ++i) same[i] = query;
  philox_rounds<Unroll>(of, same, keys, c0, c1, c2, c3);
#pragma unroll
  for (int i = Calls - 1; i >= 0; --i) {
    const uint32_t carry = philox_carry(of, c0[i], c1[i], c2[i], c3[i]);
    const uint32_t four[4] = {c0[i], c1[i], c2[i], c3[i]};
#pragma unroll
    for (int n = 0; n < 4; ++n) bits[n] = (((four[n] & 0x7f7f7f7fu) + carry) & 0x80808080u) | (bits[n] >> 1 & 0x7f7f7f7fu);
  }
}
// The bits of one group and 64 queries for each of `Words`: word m of a lane has those of 64 m + 2 `lane` and, four bits lower, of the next
// one. The keys 8 u + 2 n + e have bit 7 - n of byte e + 2 u.
template <int Queries, int Calls, typename QueryOf>
ATTN_DEVICE void dropout_of_keys(const Dropout &of, uint32_t group, uint32_t to, const QueryOf &query_of) {
  warp_sync(); // all lanes have read those of the block before
  const uint4 same = philox_keys(of, group);
#pragma unroll 1
  for (int first = 0; first < Queries; first += 32 * Calls) {
    uint64_t queries[Calls];
    uint4 keys[Calls];
    uint32_t c0[Calls], c1[Calls], c2[Calls], c3[Calls], four[Calls];
#pragma unroll
    for (int i = 0; i < Calls; ++i) queries[i] = philox_query(of, query_of(first + i / 2 * 64 + i % 2)), keys[i] = same;
    philox_rounds<1>(of, queries, keys, c0, c1, c2, c3);
#pragma unroll
    for (int i = 0; i < Calls; ++i) {
      const uint32_t carry = philox_carry(of, c0[i], c1[i], c2[i], c3[i]);
      const uint32_t early = (((c0[i] & 0x7f7f7f7fu) + carry) & 0x80808080u) | (((c1[i] & 0x7f7f7f7fu) + carry) >> 1 & ~0x80808080u);
      const uint32_t late = (((c2[i] & 0x7f7f7f7fu) + carry) & 0x80808080u) | (((c3[i] & 0x7f7f7f7fu) + carry) >> 1 & ~0x80808080u);
      four[i] = (early & 0xc0c0c0c0u) | (late >> 2 & ~0xc0c0c0c0u);
    }
#pragma unroll
    for (int i = 0; i < Calls; i += 2)
      store_shared_int(to + (first + 32 * i) * 2 + threadIdx.x % 32 * 4, (four[i] & 0xf0f0f0f0u) | (four[i + 1] >> 4 & ~0xf0f0f0f0u));
  }
  warp_sync();
}
// The same of 16 keys of which the first is within a group. It is rare, and must not take registers from the rest.
ATTN_DEVICE void philox_bits_within(const Dropout &of, uint64_t query, uint32_t first, uint32_t (&bits)[4]) {
  uint32_t both[4] = {0, 0, 0, 0}; // their bits 7 and 6 of each byte
#pragma unroll 1
  for (int group = 1; group >= 0; --group) {
    const uint4 keys[1] = {philox_keys(of, first / 16 + group)};
    philox_bits<1>(of, query, keys, both);
  }
#pragma unroll 1
  for (uint32_t n = 0; n < 4; ++n) {
    uint32_t made = bits[0] >> 1 & 0x7f7f7f7fu;
#pragma unroll 1
    for (uint32_t byte = 0; byte < 4; ++byte) {
      const uint32_t at = first % 16 + 2 * n + byte % 2 + byte / 2 * 8;
      const uint32_t from = at & 4 ? (at & 2 ? both[3] : both[2]) : (at & 2 ? both[1] : both[0]);
      made |= (from >> (at % 2 * 8 + at / 8 % 2 * 16 + 7 - at / 16) & 1) << (8 * byte + 7);
    }
    bits[0] = bits[1], bits[1] = bits[2], bits[2] = bits[3], bits[3] = made;
  }
}

// The words of this thread's two rows for the `4 * N` keys of `packed`, of which a part of 64 keys takes two.
template <int Rows, int N> ATTN_DEVICE void dropout_words(uint32_t (&words)[2 * ((N + 15) / 16)], uint32_t bits) {
  const int thread = thread_again();
  const uint32_t from = bits + thread / 32 * 256 + thread % 32 * 4;
#pragma unroll
  for (int i = 0; i < 2 * ((N + 15) / 16); ++i) words[i] = load_shared_int(from + (i / 2 * Rows + i % 2 * 8) * 16);
}
// Makes the packed weights 0 that the words of `dropout_words` drop.
template <int N> ATTN_DEVICE void drop_packed(uint32_t (&packed)[N], const uint32_t (&words)[2 * ((N + 15) / 16)]) {
#pragma unroll
  for (int c = 0; c < N; ++c) {
    uint32_t mask; // of two numbers of 16 bits, by the highest bits of the lower or upper two bytes
    const uint32_t word = words[c / 16 * 2 + c % 2] << c % 16 / 4;
    asm("prmt.b32 %0, %1, %1, %2;" : "=r"(mask) : "r"(word), "r"(c % 4 / 2 ? 0xbbaa : 0x9988));
    packed[c] &= mask;
  }
}

// Makes the packed weights of this thread's two rows 0 that the bits of `dropout_of_warp` drop.
template <int Rows, int N> ATTN_DEVICE void drop_own(uint32_t (&packed)[N], uint32_t bits) {
  uint32_t words[2 * ((N + 15) / 16)];
  warp_sync();
  dropout_words<Rows, N>(words, bits);
  drop_packed(packed, words);
}

// The bits of this warp's 16 rows and `Keys` keys from `first` on: a lane makes those of one row and 64 keys.
template <int Rows, int Keys, int Unroll, typename QueryOf>
ATTN_DEVICE void dropout_of_warp(const Dropout &of, uint32_t first, uint32_t to, const QueryOf &query_of) {
  static_assert(Keys % 128 == 0);
  const int thread = thread_again(), lane = thread % 32, row = thread / 32 * 16 + lane % 16;
  const uint64_t query = philox_query(of, query_of(row));
  warp_sync(); // all lanes have read the bits of the block before
#pragma unroll
  for (int step = 0; step < Keys / 128; ++step) {
    const int part = 2 * step + lane / 16;
    uint32_t bits[4] = {0, 0, 0, 0};
    if (first % 16 == 0) {
      uint4 keys[4];
#pragma unroll
      for (int i = 0; i < 4; ++i) keys[i] = philox_keys(of, first / 16 + 4 * part + i);
      philox_bits<Unroll>(of, query, keys, bits);
    } else {
#pragma unroll 1
      for (int g = 3; g >= 0; --g) philox_bits_within(of, query, first + 64 * part + 16 * g, bits);
    }
    store_shared_int4(to + (part * Rows + row) * 16, bits[0], bits[1], bits[2], bits[3]);
  }
}

} // namespace attn
