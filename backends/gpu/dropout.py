"""C++ of the bits of dropout: of one pair, and of two groups of 16 keys.

`philox_group` makes the bits of 16 keys: key k's is bit 7 - k / 2 % 4 of byte k % 2 + 2 (k / 8). So a shift by the number of a word brings
its four bits to the tops of the bytes. On Hopper the lanes of a warp make those of its tile and hand them to each other: a call of Philox
serves 16 pairs, whichever way round the tile lies.
"""

from attn_mlir.philox import BITS, LOW, MULTIPLIERS, ROUNDS, WEYL

_START = "static __device__ __forceinline__ "
_ARGUMENTS = "unsigned k0, unsigned k1, unsigned offset, unsigned drop, unsigned row, unsigned query, unsigned group"

_GROUP = f"""{_START}unsigned philox_group({_ARGUMENTS}) {{
  unsigned c0 = group, c1 = query, c2 = row, c3 = offset;
#pragma unroll
  for (int round = 0; round < {ROUNDS}; ++round) {{
    const unsigned long long a = (unsigned long long)c0 * {MULTIPLIERS[0]}u, b = (unsigned long long)c2 * {MULTIPLIERS[1]}u;
    c0 = (unsigned)(b >> 32) ^ c1 ^ k0, c1 = (unsigned)b, c2 = (unsigned)(a >> 32) ^ c3 ^ k1, c3 = (unsigned)a;
    k0 += {WEYL[0]}u, k1 += {WEYL[1]}u;
  }}
  // What carries into the highest bit of a byte whose lower bits are at least the limit.
  const unsigned down = ({1 << BITS}u - (drop >> {32 - BITS})) * 0x01010101u, up = down - 0x01010101u;
  const unsigned carry = ((c0 ^ c1 ^ c2 ^ c3) & {LOW:#x}u) < (drop & {LOW:#x}u) ? up : down;
  const unsigned t0 = (c0 & 0x7f7f7f7fu) + carry, t1 = (c1 & 0x7f7f7f7fu) + carry;
  const unsigned t2 = (c2 & 0x7f7f7f7fu) + carry, t3 = (c3 & 0x7f7f7f7fu) + carry;
  const unsigned early = (t0 & 0x80808080u) | (t1 >> 1 & ~0x80808080u), late = (t2 & 0x80808080u) | (t3 >> 1 & ~0x80808080u);
  return (early & 0xc0c0c0c0u) | (late >> 2 & ~0xc0c0c0c0u);  // and something in the lower halves of the bytes
}}"""

_PAIR = f"""{_START}bool philox_kept(
    long long seed, long long offset, long long drop, long long heads, long long b, long long h, long long query, long long key) {{
  const unsigned bits = philox_group((unsigned)seed, (unsigned)((unsigned long long)seed >> 32), (unsigned)offset, (unsigned)drop,
                                     (unsigned)(b * heads + h), (unsigned)query, (unsigned)(key >> 4));
  const unsigned k = (unsigned)key % 16;
  return (bits >> (k % 2 * 8 + k / 8 * 16 + 7 - k / 2 % 4) & 1u) != 0;
}}"""

_TWO = f"""// The bits of two times 16 keys, the second in the lower halves of the bytes.
{_START}unsigned philox_two(unsigned k0, unsigned k1, unsigned offset, unsigned drop, unsigned row, unsigned query,
                                          unsigned other_query, unsigned key, unsigned other_key) {{
  const unsigned first = philox_group(k0, k1, offset, drop, row, query, key / 16);
  const unsigned second = philox_group(k0, k1, offset, drop, row, other_query, other_key / 16);
  return (first & 0xf0f0f0f0u) | (second >> 4 & ~0xf0f0f0f0u);
}}"""

_WITHIN = f"""// The same for keys that begin within a group.
{_START}unsigned philox_within(unsigned k0, unsigned k1, unsigned offset, unsigned drop, unsigned row, unsigned query,
                                             unsigned other_query, unsigned key, unsigned other_key) {{
  unsigned bits = 0;
#pragma unroll 1
  for (unsigned half = 0; half < 2; ++half) {{
    const unsigned q = half ? other_query : query, first = half ? other_key : key;
    const unsigned both = philox_two(k0, k1, offset, drop, row, q, q, first, first + 16);
#pragma unroll 1
    for (unsigned k = 0; k < 16; ++k) {{
      const unsigned at = first % 16 + k, of = at % 16;
      const unsigned bit = both >> (of % 2 * 8 + of / 8 * 16 + 7 - of / 2 % 4 - at / 16 * 4) & 1u;
      bits |= bit << (k % 2 * 8 + k / 8 * 16 + 7 - k / 2 % 4 - half * 4);
    }}
  }}
  return bits;
}}"""

_MASK = f"""// A mask of two numbers of 16 bits, by the highest bits of the lower or upper two bytes.
{_START}unsigned philox_mask(unsigned bits, int upper) {{
  unsigned mask;
  asm("prmt.b32 %0, %1, %1, %2;" : "=r"(mask) : "r"(bits), "r"(upper ? 0xbbaa : 0x9988));
  return mask;
}}"""

HELPERS = {"philox_group": _GROUP, "philox_kept": _PAIR, "philox_two": _TWO, "philox_within": _WITHIN, "philox_mask": _MASK}
NEEDS = {"philox_kept": ("philox_group",), "philox_two": ("philox_group",), "philox_within": ("philox_group", "philox_two")}
