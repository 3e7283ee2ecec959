"""What a schedule needs (LDS, registers) and about how many cycles it takes on an AMD GPU: prunes and ranks candidates, measures nothing.

A program has four waves of 32 rows (see `mfma`), or goes through chunks one after another (see `chunks`). The rates are those of `target`;
what overlaps how well is an assumption, since no AMD GPU has run these kernels yet.
"""

import math
from dataclasses import dataclass

from attn_mlir.backends.amd.blocks import ROWS
from attn_mlir.backends.amd.target import AmdTarget
from attn_mlir.backends.fields import Fields
from attn_mlir.backends.tuning.facts import KernelFacts
from attn_mlir.backends.tuning.scan_facts import ScanFacts
from attn_mlir.backends.tuning.space import Cost, Workload, number

STEP, MOST_KEYS = 32, 256
_WAVES = 4
_OTHER_REGISTERS = 40
"""Of a lane, for addresses, counters and states of rows."""
_BLOCK, _TILE = 400.0, 2500.0
"""Cycles of barriers and latencies for each block, and of prologue and epilogue for each program."""
_OVERLAP = {1: 0.7, 2: 0.4}
"""The part of the shorter of matrix and vector work that is not hidden, by programs at the same time on a compute unit."""


@dataclass(frozen=True)
class AmdScanFacts(ScanFacts):
    """What the schedule of a chunk scan depends on. `wide`: q, k and v are f32."""

    wide: bool


def cost(facts: KernelFacts, choices: Fields, target: AmdTarget, work: Workload) -> Cost:
    """What a kernel needs with these choices, and about how many cycles it takes."""
    if facts.scan is not None:
        return _scan_cost(facts.scan, choices, target, work)
    if facts.grid not in ("rows", "pairs"):
        return Cost(0, 32, 8, 0.0)
    rows, keys = number(choices, "block_q", ROWS), number(choices, "block_kv", 64)
    if rows != ROWS:
        return Cost(0, 0, 0, 0.0, f"rows: {rows}, but four waves have {ROWS}")
    if keys < STEP or keys % STEP or keys > MOST_KEYS:
        return Cost(0, 0, 0, 0.0, f"keys: {keys}, but a block has a multiple of {STEP} up to {MOST_KEYS}")
    shared, registers = _shared(facts, keys, target), _registers(facts, keys)
    problem = ""
    if shared > target.lds_bytes:
        problem = f"shared memory: {shared} bytes, but a thread block can have {target.lds_bytes}"
    elif registers > 1.25 * target.registers:
        problem = f"registers: about {registers} a lane, {target.registers} available"
    occupancy = max(min(target.lds_bytes // max(shared, 1), target.registers // registers), 1)
    limits = _limits(facts, keys, target)
    vector = limits["issue slots"] + 0.5 * limits["exponentials"]
    left = _OVERLAP[min(occupancy, 2)]
    each = max(limits["matrix"], vector) + left * min(limits["matrix"], vector)
    each = max(each, limits["LDS"], limits["L2 bytes"]) + _BLOCK / occupancy
    each *= 1 + 0.02 * max(registers - target.registers, 0)
    over, along = (work.queries, work.keys) if facts.grid == "rows" else (work.keys, work.queries)
    tiles, blocks = math.ceil(over / rows), math.ceil(along / keys)
    seen = [blocks] * tiles
    if facts.masked and over > 1:  # as if the mask were causal
        seen = [min(math.ceil((tile + 1) * rows / keys) + 0.3 * math.ceil(rows / keys), blocks) for tile in range(tiles)]
    programs = tiles * work.heads
    total = work.heads * sum(count * each + _TILE for count in seen)
    waves = math.ceil(programs / target.compute_units) * target.compute_units / programs
    cycles = max(total / target.compute_units * (1.0 if facts.masked else waves), max(seen) * each + _TILE)
    share = sum(seen) * work.heads / target.compute_units
    return Cost(shared, registers, occupancy, cycles, problem, {name: share * limit for name, limit in limits.items()})


def _limits(facts: KernelFacts, keys: int, target: AmdTarget) -> dict[str, float]:
    """Cycles that one block of pairs would take on a compute unit if only one resource counted."""
    pairs, width = ROWS * keys, facts.element_bytes
    matrix = 2.0 * pairs * facts.columns / target.matrix_flops
    rescaled = ROWS * sum(facts.sums) / target.lanes if facts.grid == "rows" else 0.0
    issued = pairs * (facts.instructions + 1.0 + len(facts.sums)) / target.lanes + rescaled
    tiles = sum(facts.scores) + sum(facts.sums) + sum(facts.spread)
    read = _WAVES * keys * tiles * width + keys * tiles * width
    moved = keys * (sum(facts.scores) + sum(facts.sums)) * width + sum(8.0 * keys * columns for columns in facts.spread)
    return {
        "matrix": matrix,
        "exponentials": pairs * facts.exponentials / target.special_lanes,
        "issue slots": issued,
        "LDS": read / target.lds_width,
        "L2 bytes": moved / target.l2_bytes,
    }


def _shared(facts: KernelFacts, keys: int, target: AmdTarget) -> int:
    """Bytes of the tiles of a block: keys and values; in kernels of pairs q and do by rows and by columns, in turn where they do not fit,
    and weights."""
    if facts.grid == "rows":
        return keys * 2 * (sum(facts.scores) + sum(facts.sums))
    tiles, weights = keys * 2 * sum(facts.scores), keys * (2 * ROWS + 8) + 16
    return 2 * tiles + weights if 2 * tiles + weights <= target.lds_bytes else tiles + weights


def _registers(facts: KernelFacts, keys: int) -> int:
    """Of a lane: sums and scores of 32 rows in 32 bits, weights and the wave's own rows in 16, the next block on its way."""
    sums, scores = sum(facts.sums) / 2, len(facts.scores) * keys / 2
    tiles = sum(facts.scores) + (sum(facts.sums) if facts.grid == "rows" else 0)
    return math.ceil(sums + scores + keys / 4 + sum(facts.scores) / 4 + keys * tiles / 512) + _OTHER_REGISTERS


def _scan_cost(facts: AmdScanFacts, choices: Fields, target: AmdTarget, work: Workload) -> Cost:
    chunk, columns = number(choices, "block_q", facts.chunk), number(choices, "block_kv", facts.values)
    width = 4 if facts.wide else 2
    # The code generator keeps more there where there is place.
    shared = chunk * (2 * facts.keys + columns + chunk) * width + (2 * chunk * facts.keys if facts.channels else 0)
    registers = facts.keys * columns // (64 * _WAVES) + 96
    problem = ""
    if chunk > facts.chunk or chunk < 16 or chunk & (chunk - 1):
        problem = f"chunk: {chunk} positions, but a chunk has a power of two from 16 to {facts.chunk}"
    elif facts.whole % chunk:
        problem = f"chunk: {chunk} positions do not end where states are stored, every {facts.whole}"
    elif facts.values % columns or columns < 8:
        problem = f"columns: {columns} do not divide the {facts.values} of v"
    elif shared > target.lds_bytes:
        problem = f"shared memory: {shared} bytes, but a thread block can have {target.lds_bytes}"
    elif registers > target.registers:
        problem = f"registers: about {registers} a lane, {target.registers} available"
    occupancy = max(min(target.lds_bytes // max(shared, 1), target.registers // registers), 1)
    flops = 2.0 * chunk * (chunk * (facts.keys + columns) + 2 * facts.keys * columns) * (4 if facts.wide else 1)
    pairs = 4.0 * 16 * facts.keys if facts.channels else 6.0 * chunk
    limits = {
        "latency": 4000.0,
        "matrix": flops / target.matrix_flops,
        "issue slots": (chunk * pairs + columns * (2.0 * chunk + facts.keys)) / target.lanes,
        "LDS": 2.0 * shared / target.lds_width,
    }
    busy = max(limits["matrix"], limits["issue slots"], limits["LDS"])
    each = max(limits["latency"] + limits["matrix"] + limits["issue slots"], occupancy * busy)
    programs = work.heads * max(facts.values // columns, 1)
    rounds = math.ceil(work.queries / chunk) * math.ceil(programs / (target.compute_units * occupancy))
    return Cost(shared, registers, occupancy, rounds * each, problem, {name: rounds * limit for name, limit in limits.items()})
