"""About how many cycles a schedule takes on a core, and why some cannot be: ranks candidates, measures nothing.

A program takes a block of queries (in kernels of pairs: of keys) through all blocks of keys. Products are broadcasts of one element into
vectors of rows, so that multiplying units, reads and, where the tile that is read again for every few columns outgrows the L1 cache, the L2
cache bound them. What the numbers were fitted to is in docs/tuning.md.
"""

import math

from attn_mlir.backends.cpu.target import CpuTarget
from attn_mlir.backends.cpu.tuning.chunk_scan_facts import CpuScanFacts
from attn_mlir.backends.fields import Fields
from attn_mlir.backends.tuning.facts import KernelFacts
from attn_mlir.backends.tuning.space import Cost, Workload, number

MOST_ROWS, MOST_KEYS, MOST_CHUNK = 256, 1024, 128
_EXPONENTIAL = 11.0
"""Instructions of an exponential beyond the one that is counted."""
_TILE = 1500.0
"""Cycles of a program beside its blocks, and of a block beside its pairs; those of a chunk."""
_BLOCK, _CHUNK = 150.0, 400.0
_LAUNCH = 2500.0
"""Cycles until a further thread works, and until it is known that it has ended."""
_STACK = 4 << 20
"""Where tiles lie; threads have 8 MiB as a rule."""
_L1_SHARE = 0.75
"""The part of the L1 cache that a tile may take before its reads come from the L2 cache."""


def problem_of(facts: KernelFacts, choices: Fields, target: CpuTarget, least: int = 1) -> str:
    """Why a schedule cannot be, "what: why", or "". `least`: the fewest rows that a block may have."""
    threads = number(choices, "threads", 1)
    if threads < 1:
        return f"threads: {threads}, but at least one thread works"
    if facts.scan is not None:
        return _scan_problem(facts.scan, choices)
    lanes = target.vector_bytes // _width(facts)
    rows, keys = number(choices, "block_q", lanes), number(choices, "block_kv", 64)
    if rows < least or rows > MOST_ROWS or rows & (rows - 1):
        return f"rows: {rows}, but vectors hold {lanes}, and a block a power of two of rows from {least} to {MOST_ROWS}"
    if keys < 16 or keys % 16 or keys > MOST_KEYS:
        return f"keys: {keys}, but a block has a multiple of 16 up to {MOST_KEYS}"
    tiles = (rows * (keys * (2 + len(facts.scores)) + _columns(facts)) + keys * _columns(facts)) * _width(facts)
    if tiles > _STACK:
        return f"stack: about {tiles} bytes of tiles, but a thread has {_STACK} for them"
    return ""


def _scan_problem(scan: CpuScanFacts, choices: Fields) -> str:
    chunk, columns = number(choices, "block_q", scan.chunk), number(choices, "block_kv", scan.values)
    if chunk < 4 or chunk > MOST_CHUNK or chunk & (chunk - 1):
        return f"chunk: {chunk} positions, but a chunk has a power of two from 4 to {MOST_CHUNK}"
    if scan.whole % chunk:
        return f"chunk: {chunk} positions do not end where states are stored, every {scan.whole}"
    if scan.one_chunk and chunk != scan.chunk:
        return f"chunk: {chunk} positions, but sums of the gradients of decays are over chunks of {scan.chunk}"
    if columns < 1 or scan.values % columns:
        return f"columns: {columns} do not divide the {scan.values} of v"
    if scan.whole_columns and columns < scan.values:
        return f"columns: {columns}, but a scan that adds up decays' gradients, or shares states, works on all {scan.values} of v"
    return ""


def cost(facts: KernelFacts, choices: Fields, target: CpuTarget, work: Workload, threads: int, least: int = 1) -> Cost:
    """What a kernel needs with these choices on `threads` threads at most, and about how many cycles it takes."""
    problem = problem_of(facts, choices, target, least)
    used = max(min(number(choices, "threads", threads), threads), 1)
    if problem or (facts.scan is None and facts.grid not in ("rows", "pairs")):
        return Cost(0, 0, 1, 0.0, problem)
    if facts.scan is not None:
        return _scan_cost(facts, facts.scan, choices, target, work, used)
    rows, keys = number(choices, "block_q", 32), number(choices, "block_kv", 64)
    over, along = (work.queries, work.keys) if facts.grid == "rows" else (work.keys, work.queries)
    block = min(keys, -(-along // 16) * 16)
    limits = _block_limits(facts, rows, block, target)
    rescaled = 1.5 * rows * sum(facts.sums) * _width(facts) / target.vector_bytes
    each = sum(limits.values()) + rescaled + _BLOCK
    fetched = (
        block * _columns(facts) * facts.element_bytes / (target.memory_width if _reads(facts, along) > target.l2_bytes else target.l2_width)
    )
    each = max(each, fetched)
    tiles, blocks = math.ceil(over / rows), math.ceil(along / keys)
    seen = [blocks] * tiles
    if facts.masked and over > 1:  # as if the mask were causal
        seen = [min(math.ceil((tile + 1) * rows / keys), blocks) for tile in range(tiles)]
    diagonal = 0.2 * each * math.ceil(rows / keys) if facts.masked else 0.0
    programs = [count * each + diagonal + _TILE for count in seen]
    cycles = _on_threads(sum(programs) * work.heads, max(programs), tiles * work.heads, used)
    shared = rows * (sum(facts.scores) * facts.element_bytes + sum(facts.sums) * _width(facts)) + rows * keys * _width(facts)
    share = sum(seen) * work.heads / used
    alone = {name: share * limit for name, limit in limits.items()} | {"memory": share * fetched, "threads": _LAUNCH * (used - 1)}
    return Cost(shared, target.rows_per_step(rows, _width(facts)), 1, cycles, "", alone)


def _block_limits(facts: KernelFacts, rows: int, keys: int, target: CpuTarget) -> dict[str, float]:
    """Cycles of one block by what they go to: multiplying, reading operands again from the L2 cache, other instructions."""
    width, paired = _width(facts), facts.element == "bf16" and "avx512_bf16" in target.features
    vectors = max(rows * width / target.vector_bytes, 1.0)
    step = target.rows_per_step(rows, width)
    multiplied = cached = 0.0
    products = [(columns, keys) for columns in facts.scores] + [(keys, columns) for columns in (*facts.sums, *facts.spread)]
    for inner, outer in products:
        turns = math.ceil(outer / step) * inner / (2 if paired else 1)
        busy = max(step * vectors / target.ports, (step + vectors) / target.loads)
        own = width // 2 if paired else width
        again = rows * (2 * own if paired else own) / target.l2_width if rows * inner * own > _L1_SHARE * target.l1_bytes else 0.0
        multiplied += turns * busy
        cached += turns * max(0.0, 1.2 * again - 0.3 * busy)
    instructions = facts.instructions + _EXPONENTIAL * facts.exponentials + 2.0 * len(products)
    issued = keys * vectors * instructions / target.ports
    return {"multiplying": multiplied, "L2 cache": cached, "instructions": issued}


def _scan_cost(facts: KernelFacts, scan: CpuScanFacts, choices: Fields, target: CpuTarget, work: Workload, threads: int) -> Cost:
    """Programs go through their chunks one after another."""
    chunk, columns, width = number(choices, "block_q", scan.chunk), number(choices, "block_kv", scan.values), _width(facts)
    chunk = min(chunk, max(work.queries, 1))
    lanes = target.vector_bytes // width
    padded = math.ceil(columns / lanes) * lanes
    # A row of a tile is read again for every few columns of the result.
    rate = 0.6 * lanes * target.ports
    pairs = chunk * chunk * (scan.keys + padded) * (0.6 if chunk >= 8 else 1.0)
    state = chunk * scan.keys * padded * (3 if scan.products else 2)
    multiplied = (pairs + state) / rate
    passes = 3.0 * scan.keys * padded / lanes / target.loads
    held = scan.keys * padded * width
    cached = 3.0 * held / target.l2_width if held > _L1_SHARE * target.l1_bytes else 0.0
    exponentials = chunk * scan.keys * (2 + chunk / 8) if scan.channels else chunk * chunk
    issued = exponentials * (_EXPONENTIAL + 3.0) / lanes / target.ports
    each = multiplied + passes + cached + issued + _CHUNK
    programs, chunks = work.heads * (scan.values // columns), math.ceil(work.queries / chunk)
    cycles = _on_threads(programs * (chunks * each + _TILE), chunks * each + _TILE, programs, threads)
    share = programs * chunks / threads
    alone = {"multiplying": share * multiplied, "L2 cache": share * cached, "instructions": share * issued, "state": share * passes}
    return Cost(held, 0, 1, cycles, "", alone | {"threads": _LAUNCH * (threads - 1)})


def _on_threads(total: float, longest: float, programs: int, threads: int) -> float:
    """Cycles until all programs have ended, which threads take one after another."""
    used = min(threads, programs)
    rounds = math.ceil(programs / used) * total / programs
    shared = total / used + 0.5 * longest * (used - 1) / used
    return max(min(rounds, shared), longest) + _LAUNCH * (used - 1)


def _width(facts: KernelFacts) -> int:
    """Bytes of what kernels compute with."""
    return 8 if facts.element == "f64" else 4


def _columns(facts: KernelFacts) -> int:
    """Columns of a key that a block reads."""
    return sum(facts.scores) + (sum(facts.sums) if facts.grid == "rows" else sum(facts.spread))


def _reads(facts: KernelFacts, along: int) -> int:
    """Bytes that programs of a head read again and again."""
    return along * _columns(facts) * facts.element_bytes
