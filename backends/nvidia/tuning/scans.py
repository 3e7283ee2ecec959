"""Chunk scans (linear attention): what a schedule depends on, the schedules there are, and what each needs and takes.

A program goes through its chunks one after another, so that what counts is how long one chunk takes from its loads to the state after it,
and how many programs a multiprocessor works on in the meantime. The numbers rank schedules; they predict nothing.
"""

import itertools
import math

from attn_mlir.backends.fields import Fields
from attn_mlir.backends.nvidia import thresholds
from attn_mlir.backends.nvidia.target import RESERVED_BYTES, NvidiaTarget
from attn_mlir.backends.nvidia.tuning.chunk_scan_facts import ATOM, NvidiaScanFacts
from attn_mlir.backends.nvidia.tuning.delta_memory import shared_delta
from attn_mlir.backends.tuning.space import Cost, Workload, number

_HOPPER_CHUNK = 64
"""Positions of a chunk of the emitter "hopper"."""
_BLOCK = 16
"""Positions whose pairs are computed one by one where channels have decays."""
_AHEAD = 7
"""Chunks in shared memory at the same time where value channels have decays of their own."""
_MOST_PROGRAMS = 3
_SHORTEST = 32
"""Positions that four warps can share a product of."""
_REFINEMENTS: dict[str, dict[str, tuple[int, ...]]] = {
    "hopper": {"occupancy": (1, 2, 3), "stages": (2, 3)},
    "tilelang": {"threads": (128, 256), "stages": (1, 2)},
    "scans": {"occupancy": (1, 2), "stages": (1, 2), "warps": (4, 8)},
}
"""What a schedule can be changed in, one at a time, once its blocks are known."""


def untuned(facts: NvidiaScanFacts, target: NvidiaTarget) -> Fields:
    """The blocks that are used without tuning.

    Where channels of k have decays, the programs of a head would all compute its weights: one works on 128 columns of v.
    """
    if facts.delta:
        return _of_delta(facts, target)
    if facts.single:
        return _of_pieces(facts, target)
    if facts.prepared and target.bulk_copies:
        return {"block_q": facts.prepared, "block_kv": 128 if facts.values % 128 == 0 else 64}
    if facts.channels and not (facts.factor or facts.segment) and facts.keys == 128 and facts.values % 128 == 0:
        return {"block_q": facts.chunk, "block_kv": 128, "threads": 256}
    return {"block_q": facts.chunk, "block_kv": _state_columns(facts)}


def _state_columns(facts: NvidiaScanFacts) -> int:
    """Columns of v that a program takes: states of more are shared by programs, which find place on a multiprocessor."""
    if facts.plain and facts.values % 128 == 0:
        return 128
    # Two pieces of a larger state do not fit into shared memory.
    most = 64 if facts.keys <= 256 or not (facts.compensated or facts.channels) else 32
    return next((size for size in (64, 48, 32, 16) if size <= most and facts.values % size == 0), facts.values)


def _of_pieces(facts: NvidiaScanFacts, target: NvidiaTarget) -> Fields:
    """The largest blocks whose pieces fit into shared memory: chunks of 64 positions are products of a whole warpgroup."""
    columns = [size for size in (128, *range(64, 7, -8)) if facts.values % size == 0] or [facts.values]
    blocks = [(chunk, size) for chunk in dict.fromkeys((facts.chunk, 32)) for size in columns]
    fitting = (block for block in blocks if 8 * _shared_pieces(facts, *block) <= 7 * target.shared_bytes)
    chunk, size = next(fitting, blocks[-1])
    return {"block_q": chunk, "block_kv": size}


def _shared_pieces(facts: NvidiaScanFacts, chunk: int, columns: int) -> int:
    """Bytes of the pieces of q (or of the state's rows), and of k or the state, whichever has more; sums of channels' decays and k."""
    keys, width = (size if size == chunk else -(-size // 64) * 64 if size > 32 else 32 for size in (facts.keys, columns))
    return 6 * keys * (chunk + max(chunk, width)) + (12 * chunk * keys if facts.channels else 0)


def _of_delta(facts: NvidiaScanFacts, target: NvidiaTarget) -> Fields:
    """The largest blocks of a delta rule that fit into shared memory.

    Every program of a head solves the systems of its chunks again, so that columns go before positions. Where sequences are cut into
    segments there are programs enough for two warpgroups in each, which wait in turn and share what they load.
    """
    wide = facts.segment and facts.solves and facts.keys in thresholds.DELTA_KEYS and facts.values % 128 == 0
    wide = wide and not (facts.single or facts.apart)
    if wide and target.bulk_copies:
        return {"block_q": _SHORTEST if facts.channels else facts.chunk, "block_kv": 128}
    columns = [size for size in (64, 32) if facts.values % size == 0] or [facts.values]
    sizes = [*((facts.chunk, size) for size in columns if size >= 64), *((_SHORTEST, size) for size in columns)]
    blocks = [(chunk, size) for chunk, size in dict.fromkeys(sizes) if not facts.whole or facts.whole % chunk == 0]
    chunk, size = next((block for block in blocks if shared_delta(facts, *block) <= target.shared_bytes), blocks[-1])
    return {"block_q": chunk, "block_kv": size}


def emitter_of(facts: NvidiaScanFacts, choices: Fields, target: NvidiaTarget) -> str:
    """Who makes a scan where its choices do not tell."""
    known = (facts.plain or facts.prepared > 0) and target.bulk_copies
    return str(choices.get("emitter", "hopper" if known else "scans" if _is_shared(facts) else "tilelang"))


def _is_shared(facts: NvidiaScanFacts) -> bool:
    """Whether a scan is of a delta rule and has tiles that the warps of the emitter "scans" share."""
    return facts.delta and facts.keys % _SHORTEST == 0 and facts.values % _SHORTEST == 0


def is_prepared(facts: NvidiaScanFacts, choices: Fields, target: NvidiaTarget) -> bool:
    """Whether decays of channels take the form that the emitter "hopper" knows."""
    return facts.prepared > 0 and emitter_of(facts, choices, target) == "hopper"


def scan_space(facts: NvidiaScanFacts, target: NvidiaTarget) -> list[Fields]:
    """Emitters, chunks and columns of a program, whether they fit or not."""
    found: list[Fields] = []
    if (facts.plain or facts.prepared) and target.bulk_copies and (facts.whole % _HOPPER_CHUNK) == 0:
        maker: Fields = {"emitter": "hopper"} if facts.factor or facts.prepared else {}  # the warp dialect makes scans without products
        found += [{**maker, "block_q": facts.prepared or _HOPPER_CHUNK, "block_kv": columns} for columns in (64, 128)]
    if _is_shared(facts):  # TileLang takes a minute to compile some of these, and makes none that is faster
        found += [{"emitter": "scans", "block_q": chunk, "block_kv": columns} for chunk in (32, 64) for columns in (32, 64, 128)]
    sizes = itertools.product((32, 64, 128), (32, 64, 128)) if not _is_shared(facts) else ()
    found += [{"emitter": "tilelang", "block_q": chunk, "block_kv": columns} for chunk, columns in sizes]
    return [each for each in found if facts.whole % number(each, "block_q", 1) == 0 and facts.values % number(each, "block_kv", 1) == 0]


def refined_scan(facts: NvidiaScanFacts, target: NvidiaTarget, work: Workload, choices: Fields) -> list[Fields]:
    """A schedule with one further decision changed, each that fits."""
    changes = _REFINEMENTS[emitter_of(facts, choices, target)]
    changed: list[Fields] = [{**choices, name: value} for name, values in changes.items() for value in values if choices.get(name) != value]
    return [each for each in changed if not scan_cost(facts, each, target, work).problem]


def scan_cost(facts: NvidiaScanFacts, choices: Fields, target: NvidiaTarget, work: Workload) -> Cost:
    """What a scan needs with these choices, and about how many cycles it takes."""
    emitter = emitter_of(facts, choices, target)
    chunk, columns = number(choices, "block_q", facts.chunk), number(choices, "block_kv", facts.values)
    stages = number(choices, "stages", 2 if emitter == "hopper" else 1)
    if is_prepared(facts, choices, target):
        return _cost_prepared(facts, choices, (chunk, columns), target, work)
    if emitter == "hopper":
        groups = columns // ATOM
        uneven = groups > 1 and (facts.keys > 128 or facts.compensated)
        threads = 128 * groups + (128 if uneven else 32)
        registers = facts.keys // 2 + 104
    elif emitter == "scans":
        threads, most = 32 * number(choices, "warps", 8), number(choices, "occupancy", 1)
        registers = min(255, target.registers // (threads * most))
    else:
        threads = number(choices, "threads", max(2 * chunk, facts.keys * columns // 128, 128))
        registers = facts.keys * columns // threads + 64
    shared = _shared(facts, emitter, chunk, columns, stages)
    most = number(choices, "occupancy", 1 if emitter == "scans" else _MOST_PROGRAMS)
    occupancy = min((target.shared_bytes + RESERVED_BYTES) // (shared + RESERVED_BYTES), target.registers // (threads * registers), most)
    problem = ""
    if shared > target.shared_bytes:
        problem = f"shared memory: {shared} bytes, but a thread block can have {target.shared_bytes}"
    elif registers > 255 or (occupancy < 1 and emitter == "tilelang"):
        problem = f"registers: about {registers} for each of {threads} threads"
    elif "occupancy" in choices and most > max(occupancy, 1):
        problem = f"occupancy: {most} programs find no place on a multiprocessor"
    occupancy = max(occupancy, 1)
    return Cost(shared, registers, occupancy, *_cycles(facts, emitter, (chunk, columns), occupancy, target, work, problem))


def _cost_prepared(facts: NvidiaScanFacts, choices: Fields, sizes: tuple[int, int], target: NvidiaTarget, work: Workload) -> Cost:
    """Of a program that prepares a chunk while it multiplies the one before; there is one schedule."""
    chunk, columns = sizes
    other = number(choices, "stages", 2) != 2 or number(choices, "occupancy", 1) != 1
    if facts.factor:
        shared = _AHEAD * chunk * (4 * facts.keys + 8 * columns) + 5632 * columns // 16
    else:
        shared = 4 * chunk * (2 * facts.keys + columns + chunk) + 16 * chunk * ATOM + 12 * chunk * ATOM
    problem = "schedule: chunk scans with decays of channels have one" if other or chunk != facts.prepared else ""
    return Cost(shared, 160, 1, *_cycles(facts, "hopper", sizes, 1, target, work, problem))


def _shared(facts: NvidiaScanFacts, emitter: str, chunk: int, columns: int, stages: int) -> int:
    """Bytes of shared memory: tiles of q, k, v and the factor in every stage, weights, sums of decays; states where they are operands."""
    if emitter == "scans" and not facts.single:
        return _shared_of_warps(facts, chunk, columns, stages)
    if facts.delta:
        return shared_delta(facts, chunk, columns)
    if facts.single:
        return _shared_pieces(facts, chunk, columns)
    loaded = 2 * chunk * (2 * facts.keys + columns * (1 + facts.factor))
    small = 5 * 4 * chunk * stages
    if emitter == "hopper":
        return stages * loaded + 2 * chunk * chunk * (1 if columns == ATOM or facts.factor else 2) * facts.weights + small
    pieces = 2 if facts.compensated else 1
    # Where channels have decays, rows of q and k also lie there with their decays, towards several positions of the chunk.
    scaled = 18 * chunk * facts.keys if facts.channels else 0
    return stages * loaded + 2 * chunk * chunk * facts.weights + 2 * pieces * columns * (facts.keys + chunk) + scaled + small


def _shared_of_warps(facts: NvidiaScanFacts, chunk: int, columns: int, stages: int) -> int:
    """Bytes of a scan of the emitter "scans" whose triangles and pairs come from memory: loaded tiles, two pieces of states and rows."""
    rows = 2 * chunk * (facts.keys * (4 if facts.apart else 2) + columns + 3 * chunk)
    decays = 4 * chunk * facts.keys if facts.channels else 0
    return stages * (rows + decays) + 4 * columns * (facts.keys + 2 * chunk)


def _cycles(
    facts: NvidiaScanFacts, emitter: str, sizes: tuple[int, int], occupancy: int, target: NvidiaTarget, work: Workload, problem: str
) -> tuple[float, str, dict[str, float]]:
    """The last fields of a `Cost`: cycles, the problem as it is given, and what each resource would take alone."""
    chunk, columns = sizes
    pieces = 2 if facts.compensated else 1
    matrix = 2.0 * chunk * (chunk * (facts.keys + facts.weights * columns) + 2 * pieces * facts.keys * columns) / target.tensor_flops
    pairs = 4.0 * _BLOCK * facts.keys if facts.channels else 6.0 * chunk
    issued = chunk * pairs / target.lanes + pieces * columns * (2.0 * chunk + facts.keys) / target.lanes
    moved = 2.0 * chunk * (2 * facts.keys + columns * (2 + facts.factor)) / target.l2_bytes
    latency = thresholds.SCAN_LATENCY[emitter]
    each = max(latency + matrix + issued, occupancy * max(matrix, issued, moved))
    programs = work.heads * (facts.values // columns)
    rounds = math.ceil(work.queries / chunk) * math.ceil(programs / (target.multiprocessors * occupancy))
    alone = {
        "latency": latency,
        "matrix": occupancy * matrix,
        "issue slots": occupancy * issued,
        "L2 bytes": occupancy * moved,
    }
    return rounds * each, problem, {name: rounds * limit for name, limit in alone.items()}
