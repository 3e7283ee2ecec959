"""What a schedule needs (shared memory, registers) and about how many cycles it takes: prunes and ranks candidates, measures nothing.

Cycles follow one block of keys (or queries) on one multiprocessor: matrix FLOPs, exponentials, other instructions and bytes each have a
rate; what overlaps how well was fitted to measurements on an H200 (docs/tuning.md). The result ranks schedules; as a prediction it
is good to about 30 %: schedules that spill are slower than it says, the best ones of narrow heads faster.
"""

import math
from collections.abc import Mapping

from attn_mlir.backends.fields import Fields
from attn_mlir.backends.nvidia import thresholds
from attn_mlir.backends.nvidia.target import NvidiaTarget
from attn_mlir.backends.tuning.facts import KernelFacts
from attn_mlir.backends.tuning.space import Cost, Workload, number

_BARRIERS = 1024


def launch_registers(threads: int, target: NvidiaTarget) -> int:
    """Registers of a thread at launch, where one thread block takes all that a multiprocessor has."""
    return min(target.registers // threads // 8 * 8, 248)


def register_problem(consumers: int, consumer: int, producer: int, target: NvidiaTarget) -> str:
    """Why warpgroups cannot take these registers (the kernel would wait for ever), or ""."""
    threads = 128 * (consumers + 1)
    available = launch_registers(threads, target) * threads
    wanted = 128 * (consumers * consumer + producer)
    if wanted > available:
        return f"{consumers} x 128 x {consumer} + 128 x {producer} registers = {wanted}, but a launch of {threads} threads has {available}"
    return ""


def role_registers(consumers: int) -> tuple[int, int]:
    """Registers of a consumer's and of the producer's thread, by consumer warpgroups."""
    return thresholds.ROW_REGISTERS[min(consumers, 4)]


def cost(facts: KernelFacts, choices: Fields, target: NvidiaTarget, work: Workload) -> Cost:
    """What a kernel needs with these choices, and about how many cycles it takes. `choices` have block_q and block_kv."""
    if facts.grid not in ("rows", "pairs"):
        return Cost(0, 32, 8, 0.0)
    block_q, block_kv, stages = number(choices, "block_q", 128), number(choices, "block_kv", 128), number(choices, "stages", 2)
    roles = choices.get("emitter", "hopper") == "hopper" and target.bulk_copies
    groups = max(block_q // 64, 1) if roles else max(number(choices, "threads", 128) // 128, 1)
    shared = _shared(facts, block_q, block_kv, stages, choices, target)
    needed = _registers(facts, block_kv, max(block_q / 64 / groups, 1.0 if roles else 0.5))
    usual = role_registers(groups)
    consumer, producer = number(choices, "consumer_registers", usual[0]), number(choices, "producer_registers", usual[1])
    available = consumer if roles else min(target.registers // (128 * groups), 255)
    hangs = register_problem(groups, consumer, producer, target) if roles else ""
    problem = f"registers: {hangs}" if hangs else ""
    if shared > target.shared_bytes:
        problem = f"shared memory: {shared} bytes, but a thread block can have {target.shared_bytes}"
    elif block_q % 64 or block_kv % 16:
        problem = f"block sizes: {block_q} x {block_kv}, but rows must be a multiple of 64, columns of 16"
    elif roles and groups > 4:
        problem = f"warpgroups: {block_q} rows, but there are at most 4 consumer warpgroups of 64"
    elif needed > 1.25 * available:
        problem = f"registers: about {needed} a thread, {available} available"
    threads = 128 * (groups + (1 if roles else 0))
    occupancy = max(min(target.shared_bytes // max(shared, 1), 2048 // threads, 1 if roles else target.registers // (threads * needed)), 1)
    limits = _block_limits(facts, target, block_q, block_kv)
    block = _block_cycles(facts, limits, groups, occupancy)
    cycles = _cycles(facts, choices, target, work, block, occupancy) * (
        thresholds.ONE_STAGE if facts.grid == "pairs" and stages == 1 else 1.0
    )
    alone = {name: cycles * limit / block for name, limit in limits.items()}
    return Cost(shared, needed, occupancy, cycles * (1 + thresholds.SPILLED_REGISTER * max(needed - available, 0)), problem, alone)


def _shared(facts: KernelFacts, block_q: int, block_kv: int, stages: int, choices: Fields, target: NvidiaTarget) -> int:
    """Bytes of shared memory; columns are padded to swizzle atoms of 128 bytes.

    A "flat" kernel over rows, which goes on from tile to tile, has two buffers of queries; others have one, and one of results unless
    those take its place. Where nothing is said, the emitter takes what fits.
    """
    width = facts.element_bytes
    atom = 128 // width

    def bytes_of(rows: int, columns: tuple[int, ...]) -> int:
        return sum(rows * -(-c // atom) * atom * width for c in columns)

    if facts.grid == "rows":
        streamed = stages * (bytes_of(block_kv, facts.scores) + bytes_of(block_kv, facts.sums))
        own = bytes_of(block_q, facts.scores)
        output = bytes_of(block_q, facts.sums)
        flat, small = streamed + 2 * max(own, output) + _BARRIERS, streamed + max(own, output) + _BARRIERS
        if choices.get("flow", "flat") == "flat":
            return small if "flow" not in choices and flat > target.shared_bytes else flat
        return small if choices.get("staging") == "query" else streamed + own + output + _BARRIERS
    streamed = stages * (bytes_of(block_kv, facts.scores) + 4 * 4 * block_kv)
    if len(facts.scores) == 1 and not target.bulk_copies:  # weights of dv alone: do, which no score needs, streams beside q
        streamed += stages * bytes_of(block_kv, facts.sums)
    weights = block_q * block_kv * width
    spread = sum(block_kv * columns * 4 for columns in facts.spread)
    return streamed + bytes_of(block_q, facts.scores) + weights + spread + _BARRIERS


def _registers(facts: KernelFacts, block_kv: int, rows: float) -> int:
    """Registers of a consumer's thread: accumulators, scores in 32 bits, weights in 16 (partly in place).

    A tile of 64 x n takes n / 2 registers of a warpgroup's thread; `rows` is how many times 64 rows a warpgroup has.
    """
    sums = sum(facts.sums) / 2
    tiles = len(facts.scores) * block_kv / 2
    weights = block_kv / (4 if facts.grid == "rows" else 8)
    return math.ceil(rows * (sums + tiles + weights)) + thresholds.MODEL_REGISTERS


def _cycles(facts: KernelFacts, choices: Fields, target: NvidiaTarget, work: Workload, block: float, occupancy: int) -> float:
    """Of the whole kernel, when one block of pairs takes `block` cycles."""
    block_q, block_kv = number(choices, "block_q", 128), number(choices, "block_kv", 128)
    over, along = (work.queries, work.keys) if facts.grid == "rows" else (work.keys, work.queries)
    blocks = math.ceil(along / block_kv)
    tiles = math.ceil(over / block_q)
    if not facts.masked or work.queries == 1:
        per_head = tiles * (blocks * block + thresholds.TILE_CYCLES)
        heaviest = blocks * block + thresholds.TILE_CYCLES
    else:
        # As if the mask were causal: the diagonal is computed whole, with more instructions.
        diagonal = math.ceil(block_q / block_kv)
        seen = sum(min(math.ceil((tile + 1) * block_q / block_kv), blocks) for tile in range(tiles))
        per_head = seen * block + tiles * (thresholds.TILE_CYCLES + 0.3 * diagonal * block)
        heaviest = blocks * block + thresholds.TILE_CYCLES
    total = per_head * work.heads
    count = tiles * work.heads
    slots = target.multiprocessors * occupancy
    order = choices.get("order", "dynamic" if facts.masked else "static")
    if facts.masked and order == "dynamic":
        return max(total / target.multiprocessors + 0.5 * heaviest / tiles, heaviest)
    waves = math.ceil(count / slots) / (count / slots)
    ragged = 1.0 if not facts.masked else 1.12 if order == "static" else 1.05
    return max(total / target.multiprocessors * (waves if not facts.masked else 1.0) * ragged, heaviest)


def _block_limits(facts: KernelFacts, target: NvidiaTarget, block_q: int, block_kv: int) -> dict[str, float]:
    """Cycles that one block of pairs would take on one multiprocessor if only one resource counted."""
    pairs = block_q * block_kv
    matrix = 2.0 * pairs * facts.columns / target.tensor_flops * (1.0 if facts.element_bytes <= 2 else 2.0)
    special = pairs * facts.exponentials / target.special_lanes
    converted = 0.5 * (len(facts.sums) + len(facts.spread))
    issued = pairs * (facts.instructions + converted + 1.0) / target.lanes
    rescaled = block_q * sum(facts.sums) / target.lanes if facts.grid == "rows" else 0.0
    moved = block_kv * (sum(facts.scores) + (sum(facts.sums) if facts.grid == "rows" else 0)) * facts.element_bytes
    moved += sum(block_kv * columns * 4 * 2 for columns in facts.spread)
    return {"matrix": matrix, "exponentials": special, "issue slots": issued + rescaled, "L2 bytes": moved / target.l2_bytes}


def _block_cycles(facts: KernelFacts, limits: Mapping[str, float], groups: int, occupancy: int) -> float:
    """Cycles of one block of pairs on one multiprocessor: what overlaps how well."""
    matrix, special, issued, moved = (limits[name] for name in ("matrix", "exponentials", "issue slots", "L2 bytes"))
    vector = max(special, issued) + 0.5 * min(special, issued)
    left = thresholds.OVERLAP[min(groups * occupancy, 4)][vector > matrix] if facts.grid == "rows" else thresholds.PAIR_OVERLAP
    return max(max(matrix, vector) + left * min(matrix, vector), moved) + thresholds.BLOCK_CYCLES[facts.grid]
