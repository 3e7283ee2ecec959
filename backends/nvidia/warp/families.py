"""Which forms of kernels the `warp` dialect makes in place of the Hopper emitter, as they were measured side by side, and how.

A form that is not listed is the Hopper emitter's: docs/notes/warp-families-h100.md says of each what is missing. `Provenance` is that of
`thresholds.py`.
"""

from typing import Annotated

from attn_mlir.backends.nvidia.thresholds import Provenance

_BOTH = Provenance("2026-11-27", "H100, H200", "docs/notes/warp-families-h100.md")
_LATER = Provenance("2026-11-28", "H200", "docs/notes/warp-families-told.md")
Kinds = frozenset[tuple[str, int, int, int, int]]
"""What weights of kernels are (`warp/preferred.py`), columns of q and k and of v, and blocks: rows of q and keys, or keys and queries."""


def _kinds(words: dict[tuple[int, int, int, int], str]) -> Kinds:
    return frozenset((each, *sizes) for sizes, listed in words.items() for each in listed.split(", "))


UNPADDED: Annotated[frozenset[int], _LATER] = frozenset({8, 88, 104, 120})
"""Columns of no multiple of 16 that do not stand for those of the next one: some shape had 0.95 to 0.98; 8 were not measured."""
WARP_LAZY: Annotated[Kinds, _BOTH] = _kinds({
    (64, 64, 192, 128): "capped masked, softmax biases32, softmax biases32 masked, softmax biases16, softmax biases16 masked",
    (160, 160, 128, 80): "softmax, capped",
    (192, 192, 128, 80): "softmax, softmax masked, capped",
    (192, 128, 128, 80): "softmax, softmax masked",
    (256, 256, 128, 64): "softmax, softmax masked, softmax window masked, capped, capped masked",
})  # fmt: skip
"""Those of the next ones that keep the maxima of rows, though the Hopper emitter has no registers for it: 0.99 to 1.20."""
WARP_ALIGNED: Annotated[Kinds, Provenance("2026-11-22", "H200", "docs/notes/hopper-tried.md, Narrow heads")] = _kinds({
    (columns, columns, 192, 128): "softmax masked, softmax window masked, "
                                 "softmax offset masked, softmax divided masked" for columns in (16, 32, 48, 64)
})  # fmt: skip
"""Those whose short block of rows is the first one where it sees the fewest keys: 1.01 at 16384 keys, 1.05 to 1.11 at 1024."""
WARP_APART: Annotated[Kinds, _BOTH] = _kinds({
    (64, 64, 192, 128): "plain passes, softmax keys, softmax exact keys, softmax exact biases32 masked, "
                        "softmax exact biases16 masked, softmax numbers places masked, capped exact masked",
    (96, 96, 128, 128): "softmax, softmax exact",
    (128, 128, 128, 128): "plain passes, softmax keys, rectified, passes exact, capped exact, rectified masked",
    (160, 160, 128, 80): "capped",
    (192, 192, 128, 80): "capped",
    (256, 256, 128, 64): "plain passes, softmax keys, softmax exact keys, capped, capped exact",
})  # fmt: skip
"""Those whose loops over whole blocks and over the last one stay apart: 0.99 to 1.23, joined 0.90 to 1.20."""
WARP_LATER: Annotated[Kinds, _LATER] = _kinds({
    (16, 16, 192, 128): "softmax masked, softmax window masked", (96, 96, 128, 128): "softmax numbers places masked",
    (64, 64, 192, 128): "softmax numbers places masked, absolute masked, capped exact, capped exact masked, softmax offset masked, "
                        "softmax divided masked",
    (128, 128, 128, 128): "softmax exact numbers places masked, softmax exact documents masked, passes exact, capped exact, "
                          "rectified masked",
})  # fmt: skip
"""Those made since queries have two stages, all of them told: 0.98 to 1.41."""
WARP_ROWS: Annotated[Kinds, _BOTH] = WARP_LAZY | WARP_APART | WARP_LATER | _kinds({
    (32, 32, 192, 128): "softmax, softmax masked, softmax exact, softmax exact masked, softmax window masked",
    (48, 48, 192, 128): "softmax masked, softmax exact, softmax exact masked, softmax window masked, quotient masked",
    (64, 64, 192, 128): "softmax, softmax masked, softmax exact, softmax exact masked, softmax window masked, "
                        "softmax exact window masked, capped, quotient, quotient masked, rectified, rectified masked, "
                        "passes exact masked, softmax sums, softmax exact sums, softmax exact biases32, softmax exact biases16",
    (80, 80, 128, 128): "softmax, softmax masked, softmax exact, softmax exact masked, softmax window masked, "
                        "softmax exact window masked, capped masked, quotient masked",
    (96, 96, 128, 128): "softmax masked, softmax exact, softmax window masked, capped masked, quotient masked",
    (112, 112, 128, 128): "softmax, softmax masked, softmax exact, softmax window masked, quotient masked",
    (128, 128, 128, 128): "softmax, softmax masked, softmax exact, softmax exact masked, softmax window masked, "
                          "softmax exact window masked, softmax keys, softmax exact keys, softmax lengths masked, "
                          "softmax exact lengths masked, softmax exact documents, capped, capped masked, quotient, quotient masked, "
                          "rectified, passes exact masked",
    (128, 128, 128, 96): "softmax biases32, softmax biases32 masked, softmax exact biases32 masked",
    (192, 192, 128, 80): "softmax exact, softmax exact masked",
    (192, 128, 128, 80): "softmax exact, softmax exact masked",
    (256, 256, 128, 64): "capped exact, capped exact masked, quotient, quotient masked, rectified, rectified masked",
    (64, 64, 128, 64): "softmax tangent, softmax tangent masked",
    (128, 128, 128, 64): "softmax tangent, softmax tangent masked",
})  # fmt: skip
"""Forward passes and tangents that the `warp` dialect makes: 0.98 to 1.40 of the Hopper emitter's speed; others: the notes' table."""
_SHARED = Provenance("2026-11-28", "H200", "docs/notes/dropout-h100.md")
_DROPPED = "softmax, softmax masked, softmax window masked, softmax exact, softmax exact masked, softmax exact window masked"
WARP_DROPPED: Annotated[Kinds, _SHARED] = _kinds({
    **{(n, n, 192, 128): _DROPPED for n in (16, 32, 48, 64)}, **{(n, n, 128, 128): _DROPPED for n in (80, 96, 112, 128)},
})  # fmt: skip
"""Forward passes with dropout whose bits the lanes of a warp share (`warp-share-dropout`): 0.99 to 1.22 with 32, 64, 96, 128 columns."""
WARP_DROPPED_JOINED: Annotated[Kinds, _SHARED] = _kinds({
    **{(n, n, 192, 128): "softmax window masked, softmax exact window masked" for n in (16, 32, 48, 64)},
    (128, 128, 128, 128): "softmax masked",
})  # fmt: skip
"""Of these, those whose loops over whole blocks and over others are joined: 0.99 to 1.22, apart 0.90 to 1.17."""
WARP_LONG: Annotated[Kinds, _BOTH] = frozenset({("softmax", 128, 128, 128, 128), ("softmax exact", 128, 128, 128, 128)})
"""Those that are faster than the Hopper emitter's blocks of 192 keys below:"""
WARP_LONGER: Annotated[int, _BOTH] = 49152
"""Keys from which on the Hopper emitter's blocks of 192 keys are taken instead, without a mask: 1.00 to 1.04 at 65536."""
_TOLD = Provenance("2026-11-27", "H100, H200", "docs/notes/narrow-windows.md")
WARP_TOLD: Annotated[Kinds, _TOLD] = _kinds({
    (64, 64, 192, 128): "softmax, softmax masked, softmax exact, softmax exact masked, softmax window masked",
    (128, 128, 128, 128): "softmax, softmax masked, softmax window masked",
})  # fmt: skip
"""Whose drawing thread tells all warps their tiles: 1.01 to 1.07 times as fast at 1024 keys, 0.995 and more above, windows 1.02 to 1.09."""
WARP_PAIRS: Annotated[Kinds, _BOTH] = _kinds({
    (64, 64, 128, 64): "softmax masked, sigmoid masked, sigmoid, softmax window masked",
    (64, 64, 128, 128): "softmax documents, softmax documents masked, capped masked, rectified masked, softmax positions masked",
    (128, 128, 128, 64): "softmax documents masked, softmax window masked, sigmoid masked, capped masked, rectified masked, "
                        "softmax keys, softmax lengths masked, linear masked",
})  # fmt: skip
"""Backward passes that the `warp` dialect makes. In units of the Hopper emitter's speed: causal softmax 1.00 to 1.06, sigmoid 1.02 to
1.09, documents 1.02 to 1.63, softcap 1.02 to 1.05, normalised relu 1.02 to 1.03, windows 1.04 to 1.05, of 128 columns 1.01 to 1.02. Left
out: all keys of 64 columns (0.94 to 1.00), and a fixed order (0.60 to 0.70)."""
_WIDE_PAIRS = Provenance("2026-11-28", "H200", "docs/notes/warp-pairs-128.md")
WARP_NAMED: Annotated[Kinds, _WIDE_PAIRS] = _kinds({
    (128, 128, 128, 64): "sigmoid masked, rectified masked, softmax keys, capped masked, linear masked",
})  # fmt: skip
"""Of `WARP_ADDED`, those whose consumers tell each other of weights by named barriers."""
WARP_LANES: Annotated[Kinds, _WIDE_PAIRS] = _kinds({
    (128, 128, 128, 64): "capped masked, linear masked, softmax lengths masked, softmax window masked",
})  # fmt: skip
"""Of `WARP_ADDED`, those whose addresses are made of unsigned lanes; the others were not timed so beside what they were."""
WARP_ADDED: Annotated[Kinds, _WIDE_PAIRS] = WARP_NAMED | WARP_LANES | _kinds({(64, 64, 128, 128): "softmax positions masked"})
"""Of those, what has warps that only add, of 128 columns makes dq an iteration late, and stores first sums where the Hopper emitter does:
0.98 to 1.07 of its speed. Causal softmax of 128 columns, with and without ALiBi, has 0.96 to 1.01, the least in groups of heads."""
HOPPER_FEW: Annotated[Kinds, Provenance("2026-11-28", "H200", "docs/notes/backward-claims.md")] = _kinds({
    (64, 64, 128, 64): "softmax masked",
})  # fmt: skip
"""Of these, those that stay with the Hopper emitter for few keys, whose first sums are stored: 1.07 times as fast at S 1024."""
_PACKED = Provenance("2026-11-28", "H100", "docs/notes/warp-families-later.md")
_FOUR = "softmax, softmax masked, softmax exact, softmax exact masked"
_MORE = "softmax window masked, softmax exact window masked, softmax keys, softmax exact keys, capped, capped exact, quotient"
WARP_PACKED: Annotated[Kinds, _PACKED] = _kinds({
    (32, 32, 192, 128): _FOUR, (96, 96, 128, 128): _FOUR, (192, 192, 128, 80): "softmax, softmax masked", (256, 256, 128, 64): "softmax",
    (64, 64, 192, 128): f"{_FOUR}, {_MORE}, quotient masked, rectified, rectified masked",
    (128, 128, 128, 128): f"softmax, softmax masked, softmax exact masked, {_MORE}, quotient masked, capped masked, capped exact masked, "
                          "rectified masked",
    (64, 64, 128, 64): "softmax, softmax masked, softmax window masked, sigmoid, sigmoid masked",
    (64, 64, 128, 128): "capped masked, rectified masked",
})  # fmt: skip
"""Kernels on packed sequences that it makes: forward, told, 0.99 to 1.65 times as fast, backward 0.99 to 1.15; of 128 columns 0.88."""
_PAGES = Provenance("2026-11-28", "H200", "docs/notes/serving-h200.md")
WARP_PAGED: Annotated[Kinds, _PAGES] = _kinds({
    (32, 32, 192, 128): "softmax, softmax masked", (96, 96, 128, 128): "softmax, softmax masked",
    (64, 64, 192, 128): "softmax, softmax masked, softmax window masked, capped masked",
    (128, 128, 128, 128): "softmax, softmax masked, softmax window masked, quotient masked, capped masked",
    (192, 192, 128, 80): "softmax, softmax masked", (256, 256, 128, 64): "softmax, softmax masked",
})  # fmt: skip
"""Those whose keys lie in pages: 0.98 to 2.2 times as fast, but for two lines of the note, at the card's most power."""
PAGED_STAGES: Annotated[dict[int, int], _PAGES] = {64: 4}
"""Of keys and values in pages, by their columns, in place of 3: 1.00 to 1.02."""
