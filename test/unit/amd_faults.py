"""Faults planted in the hand-written forward kernel, and how each shows."""

from dataclasses import dataclass

BY_VALUE = "value"


@dataclass(frozen=True)
class Fault:
    """Replaces `old` by `new` in the source. `shows`: part of the checker's message, or BY_VALUE: o or lse are wrong."""

    name: str
    old: str
    new: str
    shows: str


FAULTS = (
    Fault("no barrier before the store to shared memory", "    barrier();\n    store();", "    store();", "without a barrier"),
    Fault("no barrier after the store to shared memory", "    store();\n    barrier();", "    store();", "without a barrier"),
    Fault("keys fetched one block too far", "if (j + 1 < count) load(j + 1);", "load(j + 1);", "bytes at address|another work-group"),
    Fault("first block of keys not stored", "    store();\n    barrier();", "    if (j) store();\n    barrier();", BY_VALUE),
    Fault("rows of K not permuted", "const int row = permuted(l32)", "const int row = l32", BY_VALUE),
    Fault("K read without the swizzle", "(((2 * c + half) ^ sw) << 3)", "((2 * c + half) << 3)", BY_VALUE),
    Fault("V read without the swizzle", "(((4 * n + 2 * half + b / 2) ^ sw) << 3)", "((4 * n + 2 * half + b / 2) << 3)", BY_VALUE),
    Fault("V written without the swizzle", "((v_rows ^ swizzle(row)) << 3)", "(v_rows << 3)", BY_VALUE),
    Fault("mask off by one", "16 * half + r > q0 + l32", "16 * half + r >= q0 + l32", BY_VALUE),
    Fault("mask lets the next key in", "16 * half + r > q0 + l32", "16 * half + r > q0 + l32 + 1", BY_VALUE),
    Fault("last block of keys left out", "(block * BM + BM + BN - 1) / BN", "(block * BM + BM - 1) / BN", BY_VALUE),
    Fault("halves of a row do not exchange their maximum", "next = __builtin_fmaxf(next, other_half(next, lane));", "", BY_VALUE),
    Fault("halves of a row do not exchange their sum", "l += other_half(l, lane);", "l += l;", BY_VALUE),
    Fault("exchange with the wrong lane", "(lane ^ 32) << 2", "(lane ^ 16) << 2", BY_VALUE),
    Fault("exchange by half of the lanes", "l += other_half(l, lane);", "if (half) l += other_half(l, lane);", "lanes of a wave"),
    Fault("barrier in a branch", "    store();\n    barrier();", "    store();\n    if (wave) barrier();", "without a barrier"),
    Fault(
        "one wave leaves out the last barrier",
        "    barrier();\n    store();",
        "    if (j < 1 || wave) barrier();\n    store();",
        "without a barrier|waves end",
    ),
    Fault("sums not rescaled", "o[u] *= factor;", "o[u] *= 1.0f;", BY_VALUE),
    Fault("row sums not rescaled", "l *= factor;", "", BY_VALUE),
    Fault("key head of the wrong group", "head / (HQ / HKV)", "head % HKV", BY_VALUE),
    Fault("V's halves of a word change places", "0x07060302u : 0x05040100u", "0x05040100u : 0x07060302u", BY_VALUE),
    Fault("operands of a product change places", "(a.lo, q[c].lo, s[n]", "(q[c].lo, a.lo, s[n]", BY_VALUE),
    Fault("o written over its neighbour", "D + 32 * u + 16 * half + 8 * g) = w", "D + 32 * u + 16 * half + 4 * g) = w", "no multiple"),
    Fault("o written by the row of the other wave", "O + (long)(q0 + l32) * D", "O + (long)(q0 % 64 + l32) * D", "without a barrier"),
    Fault("lse not corrected for the factor of weights", " - BIAS) * 0.693", ") * 0.693", BY_VALUE),
    Fault("shared memory addressed behind its end", "Vt = Ks + BN * D", "Vt = Ks + BN * D + 8", "end of shared memory"),
    Fault("q read behind the sequence", "Q + (long)(q0 + l32) * D + 16 * c", "Q + (long)(q0 + l32 + 1) * D + 16 * c", "bytes at address"),
)
