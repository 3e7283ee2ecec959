"""Philox 4x32-10 and the bits of dropout, on arrays of int64: of numpy or of torch alike, with nothing of the compiler.

`attn.kept` of the IR states the same in the words of one pair; see docs/dropout.md.
"""

from typing import Any

WORD = 0xFFFFFFFF
MULTIPLIERS = (0xD2511F53, 0xCD9E8D57)
WEYL = (0x9E3779B9, 0xBB67AE85)
ROUNDS = 10
GROUP = 16
"""Neighbouring keys that share a call: four words of four bytes."""
BITS = 7
"""Bits of a byte that count: so four bytes are compared by one sum."""
LOW = (1 << 32 - BITS) - 1
"""The bits of `drop` that are finer than that."""


def philox(counter: tuple[Any, Any, Any, Any], key: tuple[Any, Any]) -> tuple[Any, Any, Any, Any]:
    """Four words of 32 random bits, from arrays of int64 that hold words of 32 bits."""
    c0, c1, c2, c3 = counter
    k0, k1 = key
    for _ in range(ROUNDS):
        a, b = c0 * MULTIPLIERS[0], c2 * MULTIPLIERS[1]  # their 64 bits, whatever sign these make
        c0, c1, c2, c3 = (b >> 32) & WORD ^ c1 ^ k0, b & WORD, (a >> 32) & WORD ^ c3 ^ k1, a & WORD
        k0, k1 = (k0 + WEYL[0]) & WORD, (k1 + WEYL[1]) & WORD
    return c0, c1, c2, c3


def words(seed: Any, offset: Any, row: Any, q_idx: Any, group: Any) -> tuple[Any, Any, Any, Any]:
    """The words of the keys [16 group, 16 group + 16) of a query; `row` is b * heads + h."""
    return philox((group & WORD, q_idx & WORD, row & WORD, offset & WORD), (seed & WORD, (seed >> 32) & WORD))


def limit(drop: Any, four: tuple[Any, Any, Any, Any]) -> Any:
    """The least number of 7 bits that is kept among those of four words: drop / 2^25, rounded up or down as the words have it."""
    w0, w1, w2, w3 = four
    return (drop >> 32 - BITS) + (((w0 ^ w1 ^ w2 ^ w3) & LOW) < (drop & LOW))


def kept(seed: tuple[Any, Any], drop: Any, heads: Any, b: Any, h: Any, q_idx: Any, kv_idx: Any) -> Any:
    """Whether each pair is kept, as `attn.kept` says it; `seed` is (seed, offset)."""
    four = words(*seed, b * heads + h, q_idx, kv_idx >> 4)
    at = kv_idx >> 1 & 3
    word = sum(each * (at == number) for number, each in enumerate(four))
    byte = (kv_idx & 1) + (kv_idx >> 2 & 2)
    return (word >> byte * 8 & (1 << BITS) - 1) >= limit(drop, four)


def threshold(dropout_p: float) -> int:
    """`drop`: the probability in units of 2^-32."""
    return min(round(dropout_p * 2**32), WORD)
