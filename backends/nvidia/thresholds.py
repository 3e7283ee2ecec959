"""Numbers of the code generators for NVIDIA GPUs that no rule gives: measured, fitted, or found by what ptxas does with registers.

Planners, passes and the tuner's model take them from here. `Provenance` says when, on which GPU and where it is told; a commit stands
where it is told nowhere else. Schedules of whole kernels that were measured are in `tuning/table.py`, what follows from a chip is in
`target.py`, which forms of kernels the `warp` dialect makes in `warp/families.py`.
"""

from typing import Annotated, NamedTuple

from attn_mlir.backends.fields import Fields


class Provenance(NamedTuple):
    """Where a number comes from."""

    date: str
    chip: str
    """What it was measured on; "ptxas": the compiler's registers and spills; "none": chosen, and not compared with others."""
    source: str


_TRIED = "docs/notes/hopper-tried.md"
_DROPOUT = "docs/notes/dropout-h100.md"
Registers = dict[int, tuple[int, int]]
"""By the number of consumer warpgroups: registers of a consumer and of a producer thread."""

# ---- kernels over rows (`hopper/plan.py`)
ROW_REGISTERS: Annotated[Registers, Provenance("2026-11-22", "ptxas", "commit fdd07491")] = {
    1: (240, 40), 2: (232, 40), 3: (160, 32), 4: (112, 24),
}  # fmt: skip
SHARED_COLUMNS: Annotated[tuple[int, int], Provenance("2026-11-28", "H200", "docs/notes/wide-heads-h100.md")] = (384, 448)
"""Columns of v from which on two thread blocks share them, and where `column_clusters.is_heavy`: there with 384 columns slices are 1.00
(ALiBi, causal) to 1.18 times as fast (dropout, causal)."""
SCORES_AHEAD: Annotated[int, Provenance("2026-11-28", "H200", "docs/notes/wide-heads-h100.md")] = 1
"""How thread blocks that share columns send scores (`ahead`): 1.12 to 1.22 times as fast as 0; 2 is between, and spills. Heavy ones spill
with 1, and send by 0: 1.03 (a bias of keys) to 2.08 times as fast (a table of distances)."""
CLUSTER_REGISTERS: Annotated[tuple[int, int], Provenance("2026-11-28", "ptxas", "docs/notes/wide-heads-h100.md")] = (240, 24)
LOOKING_REGISTERS: Annotated[Registers, Provenance("2026-11-26", "ptxas", "commit b1a1e2f6")] = {
    **ROW_REGISTERS, 2: (224, 56), 3: (152, 56),
}  # fmt: skip
"""Where the producer scans captured tensors for blocks that are partial, besides looking for pages."""
GATHERING_REGISTERS: Annotated[Registers, Provenance("2026-11-26", "ptxas", "commit 063ea395")] = {1: (240, 72), 2: (216, 72)}
"""Where all warps of the producer copy single rows."""
COPIED_PAGES: Annotated[int, Provenance("2026-11-28", "H200", "docs/notes/serving-h200.md")] = 64
"""Pages of fewer rows are copied part by part by all warps of the producer for single queries; of more, one thread asks for few."""
LISTED_AHEAD: Annotated[int, Provenance("2026-11-28", "H100", "docs/notes/serving-h100.md")] = 48 << 20
"""Bytes of keys and values that lists name, up to which the kernel that sorts them brings them to the second level cache (50 MB)."""
BROUGHT_PAGES: Annotated[int, Provenance("2026-11-28", "H100", "docs/notes/serving-h100.md")] = 4096
"""Bytes of a page of keys and values, up to which that takes less time than it saves."""
FEW_PROGRAMS: Annotated[float, Provenance("2026-11-28", "H200", "docs/notes/few-queries.md")] = 0.5
"""Blocks of rows of single queries with lists of keys, of a multiprocessor, up to which one kernel makes lists ready and merges parts."""
FEW_PARTS: Annotated[int, Provenance("2026-11-28", "H200", "docs/notes/few-queries.md")] = 8
"""Parts of their keys at most: the thread blocks of a cluster that every GPU runs."""
WIDENING: Annotated[dict[int, tuple[int, int, int]], Provenance("2026-11-27", "ptxas", "docs/notes/fp8-hopper.md")] = {
    1: (7, 240, 72), 2: (3, 224, 56), 3: (3, 160, 32), 4: (3, 112, 24),
}  # fmt: skip
"""Where warps of the producer widen 8 bits to 16, by consumer warpgroups: how many do, a consumer's and a producer's registers."""
WIDENED_STAGES: Annotated[tuple[int, ...], Provenance("2026-11-27", "none", "docs/notes/fp8-hopper.md")] = (4, 3, 2)
"""Stages of bytes, for keys and values together: as many as there is room for."""
WIDENED_QUERIES: Annotated[int, Provenance("2026-11-27", "H100", "docs/notes/fp8-hopper.md")] = 4096
"""Queries of each key from which on 8-bit keys and values are widened before a kernel."""
WIDENED_WORK: Annotated[int, Provenance("2026-11-27", "H100", "docs/notes/fp8-hopper.md")] = 2**38
"""Pairs times columns of k and v from which on that is so: a call takes longer on the host."""
OTHER_REGISTERS: Annotated[int, Provenance("2026-11-22", "H200", "commit 57cbcaa9")] = 40
"""Of a consumer thread beside tiles, where queries are to be in registers, too."""
SHORT_SCORES: Annotated[int, Provenance("2026-11-22", "H200", "commit 57cbcaa9")] = 8
"""Operations on a pair, from scores to weights, that need no more registers where a step may be done again."""
NARROW_COLUMNS: Annotated[int, Provenance("2026-11-22", "H200", f"{_TRIED}, Narrow heads")] = 64
"""Heads of so many columns are narrow: products and exponentials take the same time, and everything else counts."""
NARROW_STAGES: Annotated[tuple[int, int], Provenance("2026-11-22", "H200", f"{_TRIED}, Narrow heads")] = (3, 4)
"""Stages of keys of narrow heads: usually, and without a mask where maxima stay."""
USUAL_STAGES: Annotated[int, Provenance("2026-11-22", "H200", f"{_TRIED}, Forward: a third stage")] = 2
HEADS_TOGETHER: Annotated[dict[str, int], Provenance("2026-11-22", "H200", f"{_TRIED}, heads a group")] = {
    "even": 8, "masked": 16, "masked 128": 32,
}  # fmt: skip
"""Heads that run together, so that their keys stay in the L2 cache: without a mask, with one, and with one for 65 to 128 columns."""
NARROW_HEADS_TOGETHER: Annotated[int, Provenance("2026-11-27", "H100", f"{_TRIED}, Narrow heads")] = 64
"""Those of narrow heads with a mask: with more of them fewer programs are left alone at the end."""
SHARED_RECIPROCALS: Annotated[str, Provenance("2026-11-22", "H200", "commit 1a209c9a")] = "each"
"""The flow of wider heads whose weights share reciprocals, as those of sigmoid."""
UNMASKED_NARROW: Annotated[str, Provenance("2026-11-22", "H200", "commit 5af58c73")] = "each"
"""The flow of narrow heads without a mask, but where maxima stay."""
WINDOW_STAGES: Annotated[tuple[int, ...], Provenance("2026-11-26", "none", "commit 71ce6591")] = (2, 1)
"""Stages of windows: two where there is room for two stages of keys as well. Narrow heads without a mask rather have four of keys."""
HEADS_OF_BIASES: Annotated[int, Provenance("2026-11-26", "H200", "docs/notes/dense-biases.md")] = 16
"""Heads of a dense bias that run together, where narrow heads have no mask."""
WINDOW_WARPS: Annotated[int, Provenance("2026-11-25", "H100", _DROPOUT)] = 3
"""Warps of the producer that bring windows, beside the one that loads."""
ROLLED_DROPOUT: Annotated[int, Provenance("2026-11-26", "H100", _DROPOUT)] = 64
"""Columns of values beyond which rounds of bits stay a loop in loops over keys that are joined."""

# ---- kernels over pairs (`hopper/pairs*.py`, `passes/split_pairs.py`, `forming/pairs.py`)
PAIR_REGISTERS: Annotated[Registers, Provenance("2026-11-21", "ptxas", "commit 3f8f7c71")] = {1: (0, 0), 2: (240, 24), 3: (160, 32)}
"""0: as at launch."""
NEIGHBOUR_REGISTERS: Annotated[tuple[int, int], Provenance("2026-11-27", "H100", "docs/notes/serving-h100.md")] = (232, 24)
"""The same where two thread blocks of one warpgroup of consumers share a multiprocessor, over lists of keys: dk and dv alone. Kernels that
add dq as well take 1.68 ms so where all of a backward took 1.44 without neighbours."""
NEIGHBOUR_SPARE: Annotated[int, Provenance("2026-11-27", "ptxas", "docs/notes/serving-h100.md")] = 244
"""Registers that tiles and addresses may need together there."""
WINDOW_REGISTERS: Annotated[tuple[int, int], Provenance("2026-11-25", "H100", _DROPOUT)] = (232, 40)
"""The same for two warpgroups, where the producer brings windows of captured tensors."""
KEY_SUM_REGISTERS: Annotated[tuple[int, int, int], Provenance("2026-11-27", "H100", "docs/notes/backward-h100.md")] = (200, 88, 24)
"""Those of two warpgroups of consumers, of the one that makes sums over keys, which 72 slow down, and of the producer."""
LATE_COLUMNS: Annotated[int, Provenance("2026-11-27", "H100", "docs/notes/backward-h100.md")] = 128
"""Those of q, k, v and do where consumers multiply dS with keys a step late: 0.98 to 1.00 of the speed at S 1024, 1.00 to 1.09 above."""
EARLY: Annotated[frozenset[tuple[bool, int]], Provenance("2026-11-27", "H100", "docs/notes/backward-h100.md")] = frozenset({
    (True, 64), (False, 80),
})  # fmt: skip
"""Whether there is a mask, and queries of a step, where consumers that multiply dS a step late hold half of the exponentials before the
second product: 1.00 to 1.03, 1.04, 1.05 times as fast at S 1024, 4096, 16384 under a mask, and 1.02, 1.02, 1.01 without one, where ptxas
spills two registers in the last step, which has fewer queries and comes once a program."""
HELD_STEPS: Annotated[dict[tuple[bool, int], int], Provenance("2026-11-27", "H200", "docs/notes/backward-sums.md")] = {(True, 64): 1}
"""Of these, steps of 16 columns of keys and of values that they hold in registers, which is what ptxas has left: with half as many more it
serialises products. 1.01 times as fast at S 1024, 1.01 to 1.03 above."""
CLAIMED_KEYS: Annotated[dict[bool, int], Provenance("2026-11-28", "H200", "docs/notes/backward-claims.md")] = {True: 3072, False: 2048}
"""By whether there is a mask: from how many keys on a warpgroup adds its sums over keys to zeros. Claims: 1.02 to 1.07 with fewer."""
TURNS: Annotated[tuple[int, int], Provenance("2026-11-28", "none", "docs/notes/dense-biases.md")] = (4, 2)
"""Batch entries that add to tiles of one gradient in turn, at most, and steps of queries that each must have for each entry: an entry is
some 2 us behind the one before, which must be short beside a program."""
SPARE_REGISTERS: Annotated[dict[int, int], Provenance("2026-11-21", "ptxas", "commit 3f8f7c71")] = {1: 250, 2: 236, 3: 156}
"""Those that tiles and addresses may need together, by the number of consumer warpgroups."""
ADDRESS_REGISTERS: Annotated[int, Provenance("2026-11-21", "ptxas", "commit 3f8f7c71")] = 20
"""Registers that a thread needs besides tiles, about."""
PROGRAMS_TOGETHER: Annotated[int, Provenance("2026-11-22", "H200", f"{_TRIED}, many heads together")] = 256
"""Programs whose heads run together under a mask, the longest ones first."""
_ORDER = Provenance("2026-11-27", "H100", "docs/notes/backward-order.md")
ORDERED_TOGETHER: Annotated[dict[tuple[str, bool], tuple[int, int, int]], _ORDER] = {
    ("descending", False): (512, 16, 16), ("descending", True): (512, 64, 16),
    ("even", False): (512, 16, 1), ("even", True): (512, 32, 1),
    ("masked", False): (1, 1, 1), ("masked", True): (1, 1, 1),
}  # fmt: skip
"""The same where sums have a fixed order: programs, heads at most, and at least, by whether steps go to the first queries under a mask
("descending"), to the last ones ("masked"), or there is none, and whether heads are narrow. Programs of one head wait for each other when
they begin, so that many heads should; the last queries of all of them are in use at once, but ascending programs are all over the heads
after a while, and leave the L2 cache: 0.62 of the speed with 16 heads of 4096 positions, 128 columns."""
BACKWARD_HEADS: Annotated[int, Provenance("2026-11-26", "H100", "docs/notes/backward-h100.md")] = 8
"""Heads that run together at most: more leave the L2 cache before other programs have read and added to what they share."""
LAST_PROGRAMS: Annotated[int, Provenance("2026-11-27", "H100", "docs/notes/backward-h100.md")] = 128
"""Programs whose heads run together at the end, if these are more: longer programs of one more head begin where nothing else is left. 1.02
to 1.03 times as fast at S 1024, 1.01 to 1.02 at S 512, 128 columns."""
PIECES: Annotated[dict[str, int], Provenance("2026-11-27", "H100", "docs/notes/backward-h100.md")] = {
    "pieces": 8, "least": 2, "gain": 3,
}  # fmt: skip
"""Where programs that do not fill all multiprocessors a last time are shared by them: pieces of a program at most, steps of a piece at
least, and steps that a thread block must have fewer for it."""
SUM_COLUMNS: Annotated[int, Provenance("2026-11-26", "ptxas", "commit 1353616f")] = 256
"""Of all sums over queries of a kernel: a thread holds half as many numbers of them, beside the products, dq and what else it needs."""
BOTH_SUMS: Annotated[int, Provenance("2026-11-28", "ptxas", "docs/notes/backward-wide.md")] = 320
"""Of two sums over queries alone, as of 192 and 128: a warpgroup has both for 64 keys, in steps of 48 queries."""
WHOLE_COLUMNS: Annotated[int, Provenance("2026-11-26", "H100", "commit 1353616f")] = 128
"""Columns of a sum up to which kernels are left as they are: those of several narrower sums have been measured whole."""

# ---- chunk scans (`hopper/scan.py`, `hopper/channel_*.py`)
SCAN_REGISTERS: Annotated[tuple[int, int], Provenance("2026-11-22", "ptxas", "commit ade95bb0")] = (104, 56)
"""Registers of a warpgroup's thread beside the state, with rows of o and without."""
SCALED_REGISTERS: Annotated[int, Provenance("2026-11-22", "ptxas", "commit cff316d7")] = 64
"""As many more where the state is scaled between products."""
ROUNDED_STEPS: Annotated[int, Provenance("2026-11-22", "ptxas", "commit ade95bb0")] = 8
"""Steps along K whose part of the state is rounded at a time (4 registers each)."""
FEW_ROUNDED_STEPS: Annotated[int, Provenance("2026-11-22", "ptxas", "commit fdd5b0d4")] = 4
"""The same where registers are few."""
STATE_INTERVAL: Annotated[int, Provenance("2026-11-22", "none", "commit e86bb0f6")] = 512
"""Positions between states that gradients of channels' decays keep: as many as where a head has one decay."""

# ---- kernels of the `warp` dialect (`passes/`, `warp/emitter.py`, `forming/`)
WARP_STAGES: Annotated[int, Provenance("2026-11-25", "none", "commit 2dcd44bb")] = 2
WARP_HEADS: Annotated[int, Provenance("2026-11-25", "H100", "docs/notes/warp-h100.md")] = 16
"""Heads whose tiles follow each other."""
COUNTING_REGISTERS: Annotated[int, Provenance("2026-11-25", "ptxas", "commit 2dcd44bb")] = 24
"""Registers of a warp that only counts and copies: the fewest that there are."""
TRANSPOSING_REGISTERS: Annotated[int, Provenance("2026-11-26", "ptxas", "commit f9c0a37e")] = 40
"""Those of one that also transposes. With more, consumers of 128 columns spilled."""
PAGED_REGISTERS: Annotated[dict[int, int], Provenance("2026-11-28", "ptxas", "docs/notes/serving-h200.md")] = {1: 40, 2: 40, 3: 32}
"""Those of warps that copy rows from pages, beside so many warpgroups of consumers."""
STATE_REGISTERS: Annotated[int, Provenance("2026-11-27", "ptxas", "docs/notes/linear-sequences.md")] = 40
"""Those of each thread at launch of a scan that gives states alone, beside a consumer's part of one: with fewer, ptxas fails."""
HOPPER_ROWS: Annotated[frozenset[tuple[int, int]], Provenance("2026-11-28", "H200", "docs/notes/linear-emitters.md")] = frozenset({
    (64, 128),
})  # fmt: skip
"""Of scans with rows that the Hopper emitter makes faster than the `warp` dialect where programs are few: columns of the state, and of rows
of one program."""
HOPPER_PRODUCTS: Annotated[frozenset[tuple[int, int]], Provenance("2026-11-28", "H200", "docs/notes/linear-emitters.md")] = frozenset({
    (128, 128), (256, 64), (256, 128),
})  # fmt: skip
"""And of those with products, of bf16 and of f16."""
WIDE_CHUNK: Annotated[int, Provenance("2026-11-28", "H200", "docs/notes/linear-emitters.md")] = 48 * 1024
"""Bytes of a chunk's tiles from which on three stages of scans with rows are as many as pay: a fourth one cost 1 to 2%."""
LATE_VALUES: Annotated[int, Provenance("2026-11-28", "H200", "docs/notes/linear-emitters.md")] = 256
"""Columns of a state from which on a scan with two stages waits for v apart: that cost 4 to 6% where columns and programs were few."""
ROWS_REGISTERS: Annotated[int, Provenance("2026-11-28", "ptxas", "docs/notes/linear-emitters.md")] = 88
"""Those of a consumer's thread beside its part of the state where a scan also gives rows."""
EIGHT_BIT_FIELDS: Annotated[Fields, Provenance("2026-11-26", "H100", "commit 8d9f0fd3")] = {"draw": 1, "ping_pong": 0}
"""What is faster for 8-bit elements: tiles from a counter, and warpgroups that do not wait for each other."""
EIGHT_BIT_SOFTMAX: Annotated[dict[int, Fields], Provenance("2026-11-27", "H100", "docs/notes/fp8-hopper.md")] = {
    128: {"block_q": 192, "block_kv": 96, "stages": 3, "uniform": 0, "producer_registers": 32, "consumer_registers": 160},
}
"""Softmax of 8-bit elements, by columns: three warpgroups hide each other's waits, and stages enough that none of them waits for a copy."""
HELD_KEYS: Annotated[Fields, Provenance("2026-11-27", "H100, H200", "docs/notes/fp8-hopper.md")] = {"first_stages": 4, "tell": 1}
"""Beside these, without a mask: one more stage of keys, held until no warp takes its step again. 1.03 times the speed at 8192 keys,
0.99 to 1.00 at 2048; under a causal mask nothing was proven. Numbers of tiles told: 1.015 and 1.007, causal 0.998 and 0.985."""
_TURNED = Provenance("2026-11-28", "H200", "docs/notes/fp8-votes.md")
TURNED_VALUES: Annotated[dict[tuple[int, bool], tuple[int, Fields]], _TURNED] = {
    (128, False): (4096, {"stages": 5, "first_stages": 5}), (128, True): (8192, {"stages": 5, "first_stages": 5, "tell": 1}),
    (64, False): (8192, {"stages": 3}), (256, False): (8192, {}), (256, True): (8192, {}),
}  # fmt: skip
"""Queries of each key from which on softmax of 8-bit elements has values transposed before its kernel, and what is chosen for that, by
columns and whether there is a mask: 1.03 to 1.05 times as fast at 128 columns, 1.08 at 64, 1.13 to 1.23 at 256."""
TURNED_WORK: Annotated[int, _TURNED] = 2**37
"""Pairs times columns of k and v from which on that is so: one more launch takes a time of its own."""
LONG_KEYS: Annotated[int, Provenance("2026-11-27", "H100", "docs/notes/fp8-hopper.md")] = 8192
"""Keys from which on softmax of 8-bit elements has the blocks of LONG_EIGHT_BIT: at 2048 the last block is a larger part."""
LONG_EIGHT_BIT: Annotated[dict[tuple[int, bool], Fields], Provenance("2026-11-27", "H100", "docs/notes/fp8-hopper.md")] = {
    (256, False): {"block_q": 128, "block_kv": 96, "consumer_registers": 240, "producer_registers": 24},
}
"""By columns, and whether there is a mask: 1.02 to 1.09 times the speed of other blocks."""
SOFTMAX_OPS: Annotated[int, Provenance("2026-11-27", "ptxas", "docs/notes/fp8-hopper.md")] = 12
"""Ops of a step of softmax, with weights scaled by 2^k; a step of more would spill there."""
BACKWARD_FIELDS: Annotated[Fields, Provenance("2026-11-26", "H100", "commit e2601a95")] = {"draw": 1, "join": 0}
"""Backward kernels: tiles from a counter, and loops over partial and whole blocks apart."""
BACKWARD_CHOICES: Annotated[dict[str, Fields], Provenance("2026-11-27", "H100", "docs/notes/warp-h100.md")] = {
    "": {"uniform": 1, "scale": 0},
    "wide": {"uniform": 0, "scale": 1},
    "masked": {"uniform": 0, "scale": 1},
    "masked wide": {"uniform": 0, "scale": 0},
    "apart": {"uniform": 0, "scale": 1},
}
"""Of those, by whether blocks of keys are seen by different queries, and rows have 128 columns or more, or sums over keys are made by a
warpgroup of their own: whether compilers are told that all lanes share the address of a factor (a reduction over the warp for each),
and whether the producer scales numbers of rows."""
ADDED_BACKWARD: Annotated[Fields, Provenance("2026-11-28", "H200", "docs/notes/warp-pairs-128.md")] = {
    "reduction_warps": 1, "scale": 1, "elect": 0,
}  # fmt: skip
"""And of those whose additions are for idle warps of the producer's warpgroup: each warp's first lane arrives at barriers."""
SYNCHRONOUS_BACKWARD: Annotated[Fields, Provenance("2026-11-27", "H100", "docs/notes/sm80-h100.md")] = {"reverse": 0, "join": 0}
"""The same of chips without TMA: the first keys, which the most queries see under a causal mask, come first."""
SYNCHRONOUS_NARROW: Annotated[Fields, Provenance("2026-11-27", "H100", "docs/notes/sm80-h100.md")] = {"together": 1}
"""And of rows of 64 columns: both tiles of an iteration are waited for together."""

# ---- what compilers do
SPILLED_BYTES: Annotated[int, Provenance("2026-11-23", "ptxas", "commit c23b11fa")] = 4
"""Bytes of spills, written and read back, for each register of a thread that are no sign of a slow kernel: half of them go to memory and
come back. Causal, windowed and document masks spill nothing, masks of constants 8 to 24 bytes. Backward passes of 100 to 620 bytes are
within it: some registers wait in memory around the loop over keys, which the products hide."""

# ---- who makes a kernel (`blocks.py`, `warp/preferred.py`), and chunk scans of delta rules (`scans`)
BRIEF_PAIRS: Annotated[tuple[int, int], Provenance("2026-11-26", "H200", "docs/notes/backward-h100.md")] = (128, 80)
"""Keys and queries of a block of full backward passes of 128 columns: 1.00 to 1.04 times the speed of 64 queries."""
NARROW_PAIRS: Annotated[tuple[int, int], Provenance("2026-11-27", "H100", "docs/notes/backward-h100.md")] = (128, 64)
"""The same of 64 columns, where a warpgroup of its own makes the sums over keys: 1.03 to 1.11 times the speed of 128 queries without it."""
PLACED_OPS: Annotated[int, Provenance("2026-11-27", "ptxas", "docs/notes/backward-h100.md")] = 8
"""Ops of a mask beside which those registers suffice."""
WINDOW_OPS: Annotated[int, Provenance("2026-11-27", "H100", "docs/notes/backward-h100.md")] = 12
"""Those of a sliding window: some bytes are spilled, and it is 1.04 to 1.07 times as fast as steps of 128 queries, which spill more."""
BRIEF_OPS: Annotated[int, Provenance("2026-11-26", "ptxas", "docs/notes/backward-h100.md")] = 10
"""Ops of such a pair: softmax has that many, and a factor of each head or query more spills."""
QUOTIENT_OPS: Annotated[int, Provenance("2026-11-27", "H100", "docs/notes/warp-h100.md")] = 19
"""Ops of a pair whose weight is a quotient, as sigmoid's: 1.04 to 1.09 times as fast in blocks of 64 queries, 64 columns, under a mask."""
_NARROW = Provenance("2026-11-27", "H100, H200", "docs/notes/narrow-windows.md")
NARROW_KEYS: Annotated[dict[str, int], _NARROW] = {"rows": 1024, "pairs": 256}
"""Keys that a row sees at most in a sliding window for which the next schedules are taken: of forward passes, and of backward ones."""
NARROW_PACKS: Annotated[tuple[int, ...], _NARROW] = (8, 1)
"""How many heads of queries are packed there: the first number that divides those of a head of keys."""
NARROW_WINDOWS: Annotated[dict[int, dict[str, Fields]], _NARROW] = {
    64: {
        "packed": {
            "block_q": 128, "block_kv": 48, "stages": 3, "ping_pong": 0, "lazy_rescale": 1, "tell": 1, "draw": 1, "group": 64,
            "consumer_registers": 104, "producer_registers": 24, "occupancy": 2,
        },
        "single": {
            "block_q": 64, "block_kv": 64, "stages": 2, "ping_pong": 0, "lazy_rescale": 1, "tell": 1, "draw": 1, "group": 64,
            "consumer_registers": 136, "producer_registers": 24, "occupancy": 3,
        },
        "pairs": {"block_q": 64, "block_kv": 64, "occupancy": 2},
        "sums": {
            "block_q": 192, "block_kv": 80, "stages": 2, "ping_pong": 0, "tell": 1, "draw": 1, "group": 64,
            "consumer_registers": 160, "producer_registers": 24,
        },
    },
    128: {
        "packed": {
            "block_q": 128, "block_kv": 80, "stages": 2, "ping_pong": 0, "lazy_rescale": 1, "tell": 1, "draw": 1, "group": 32,
            "consumer_registers": 232, "producer_registers": 40,
        },
    },
}  # fmt: skip
"""By columns of q, k and v: forward passes with packed heads, and without; sums over keys and over queries of backward passes."""
SYNCHRONOUS_COLUMNS: Annotated[dict[str, frozenset[int]], Provenance("2026-11-27", "H100", "docs/notes/sm80-h100.md")] = {
    "rows": frozenset({64, 128, 192, 256}),
    "pairs": frozenset({64, 128, 192, 256}),
}
"""Columns of q, k and v of kernels for chips without TMA that the `warp` dialect makes. In units of TileLang's speed: forward passes of 64
columns 2.3 to 3.1, causal ones of 128 1.03 to 2.0, backward passes 1.06 to 1.72. Softmax of 128 columns over all keys is at 0.94 to 0.96,
and is taken all the same: who has no TileLang has this kernel. Forward passes of 192 and 256 do not spill, and were not timed. Backward
passes of 192 and 256 are two kernels (`nvidia-split-pairs`): one spilled 2860 bytes a thread at 192, and was not formed at 256."""
SYNCHRONOUS_PRODUCTS: Annotated[dict[str, int], Provenance("2026-11-27", "ptxas", "docs/nvidia-tilelang.md")] = {"rows": 1, "pairs": 2}
"""Products of rows that weights need there. Tangents have 3, and rows of second backward passes 5: in blocks of 64 rows they do not spill
at up to 128 columns, and at 256 2900 bytes a thread; they have not been launched. Pairs of second backward passes spill 2500 bytes."""
SYNCHRONOUS_WIDE: Annotated[int, Provenance("2026-11-27", "H200", "docs/notes/sm80-h100.md")] = 128
"""Columns up to which packed sequences, and sums in a fixed order, have been launched there."""
SCAN_SCHEDULES: Annotated[dict[str, dict[str, tuple[int, ...]]], Provenance("2026-11-27", "H100", "docs/notes/delta-h200.md")] = {
    "warpgroups": {"stages": (3, 2), "in_place": (0, 1)},
    "usual": {"occupancy": (1,), "warps": (8,), "stages": (2, 1, 0)},
    "chunks": {"occupancy": (4, 3, 2, 1), "warps": (4, 8), "stages": (1, 0)},
    "chunks of channels": {"occupancy": (4, 3, 2, 1), "warps": (4, 8), "stages": (1, 0)},
}
"""What is tried for chunk scans of delta rules, one after another. Thread blocks of kernels that have chunks alone wait alternately, for
memory and for their threads; where channels have decays, two, three and four thread blocks take 896, 774 and 758 us of KDA's forward."""
COPIED_STAGES: Annotated[int, Provenance("2026-11-27", "H100", "docs/notes/delta-h200.md")] = 2
"""Up to so many stages threads copy the tiles of scans of warpgroups; with more TMA brings them."""
SCAN_GROUP_REGISTERS: Annotated[dict[int, tuple[int, int]], Provenance("2026-11-27", "ptxas", "docs/notes/delta-floors.md")] = {
    2: (232, 40)
}
"""Registers of a thread that multiplies and of one that helps in scans of so many warpgroups, where a launch gives too few."""
DELTA_TIMES: Annotated[dict[str, float], Provenance("2026-11-28", "H200", "docs/notes/delta-rows.md")] = {
    "whole": 1.8, "segments": 7.0, "round": 22.0, "state": 3.1, "launches": 0.0,
}  # fmt: skip
"""Microseconds of 64 positions in a scan of a delta rule, and in three of segments; of what these three take before and after their chunks,
for each round of programs; of a state between segments; of other launches."""
DELTA_KEYS: Annotated[tuple[int, ...], Provenance("2026-11-27", "H200", "docs/notes/delta-segments.md")] = (64, 128)
"""Columns of k of scans whose segments have programs of two warpgroups, as those of these times; the times are those of 128."""
DELTA_GAIN: Annotated[float, Provenance("2026-11-27", "H200", "docs/notes/delta-segments.md")] = 0.9
"""What segments of a delta rule must take, as a part of the time without them, to be worth their memory."""
HELD_TILES: Annotated[tuple[str, ...], Provenance("2026-11-27", "ptxas", "docs/notes/delta-loads.md")] = ("f16", "bf16")
"""Elements of tiles in shared memory that threads of kernels of one chunk hold in registers, where several maps read them."""
SCAN_WARPS: Annotated[int, Provenance("2026-11-26", "ptxas", "docs/notes/delta-h200.md")] = 16
"""Warps of such scans on a multiprocessor, so that each thread has 128 registers."""

# ---- the tuner's model (`tuning/model.py`, `tuning/scans.py`), whose numbers rank schedules and predict nothing
_FIT = Provenance("2026-11-24", "H200", "docs/tuning.md, fitted to 246 schedules")
OVERLAP: Annotated[dict[int, tuple[float, float]], _FIT] = {1: (1.0, 1.0), 2: (0.35, 0.3), 3: (0.3, 0.05), 4: (0.6, 0.1)}
"""The part of the shorter work that the longer one does not hide, by consumer warpgroups: where that is of matrices, and of vectors."""
PAIR_OVERLAP: Annotated[float, Provenance("2026-11-21", "H200", "docs/tuning.md")] = 0.9
"""The same in kernels of pairs, whose products depend on each other."""
ONE_STAGE: Annotated[float, _FIT] = 1.4
"""How much longer kernels of pairs take with one stage: nothing is loaded while products read it."""
BLOCK_CYCLES: Annotated[dict[str, float], _FIT] = {"rows": 180.0, "pairs": 700.0}
"""Cycles of barriers and latencies for each block: five dependent products take longer than two."""
TILE_CYCLES: Annotated[float, Provenance("2026-11-21", "H200", "docs/tuning.md")] = 1000.0
"""Cycles of prologue and epilogue for each tile of rows."""
MODEL_REGISTERS: Annotated[int, Provenance("2026-11-21", "ptxas", "docs/tuning.md")] = 28
"""Registers of a thread for addresses, counters and states of rows."""
SPILLED_REGISTER: Annotated[float, _FIT] = 0.05
"""How much longer a kernel takes for each register that is missing."""
SYNCHRONOUS_SPEED: Annotated[float, Provenance("2026-11-27", "none", "docs/notes/sm80-h100.md")] = 2.0
"""Speed of kernels of the `warp` dialect for chips without TMA in units of what the model says of TileLang's: enough to be measured."""
SCAN_LATENCY: Annotated[dict[str, float], Provenance("2026-11-22", "H200", "commit 71e7a732")] = {
    "hopper": 3000.0,
    "tilelang": 5000.0,
    "scans": 5000.0,
}
"""Cycles of a chunk in which a program of a scan waits: for products that depend on each other, barriers, and loads."""
