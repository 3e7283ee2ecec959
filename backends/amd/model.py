"""A model of how long a compute unit takes to issue what a kernel executes. An estimate: nothing here was measured on an AMD GPU."""

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from attn_mlir.backends.amd.isa.disassembly import Instruction

QUAD = 4
"""Clocks of the model's unit of time: an instruction on 64 lanes takes a SIMD of 16 lanes so long."""
_LDS_LATENCY, _MEMORY_LATENCY, _SCALAR_LATENCY = 32, 175, 50
_SIMDS = 4
_STAGGER = 200
_LIMIT = 4_000_000
ASSUMPTIONS = (
    "waves issue in order; in 4 clocks a SIMD issues one vector or matrix instruction, one for LDS, one for memory and scalar ones, "
    "each from another wave",
    "a matrix instruction holds the matrix unit for 64 clocks (32x32x8, 32x32x2 of f32) or 32 (16x16x16, 16x16x4 of f32); exp, log, rcp, "
    "rsq and sqrt take 16 clocks, other vector instructions 4, packed f32 ones too",
    f"LDS gives 128 bytes a clock to all waves of a compute unit, {_LDS_LATENCY * QUAD} clocks later, slowed down by conflicts of banks",
    f"memory answers after {_MEMORY_LATENCY * QUAD} clocks, whatever else goes on; caches, HBM, clocks, instruction fetch are left out",
    "which lanes of a 16-byte LDS read are served together is documented for gfx942, and taken to hold for gfx90a",
)
"""What the figures rest on, in words."""

_FAMILIES = (
    ("MFMA", r"v_mfma"),
    ("transcendental", r"v_(exp|log|rcp|rsq|sqrt|sin|cos)_"),
    ("packed f32", r"v_pk_\w+_f32"),
    ("VALU", r"v_"),
    ("LDS exchange", r"ds_(b?permute|swizzle)"),
    ("LDS read", r"ds_read"),
    ("LDS write", r"ds_"),
    ("scratch", r"scratch_"),
    ("memory", r"(global|buffer|flat)_"),
    ("wait", r"s_(waitcnt|nop)"),
    ("barrier", r"s_barrier"),
    ("scalar", r"s_"),
)


def family(opcode: str) -> str:
    """Which kind of instruction it is, for people."""
    return next(name for name, pattern in _FAMILIES if re.match(pattern, opcode))


def matrix_quads(opcode: str) -> int:
    """How long it holds the matrix unit."""
    return 16 if "32x32x" in opcode else 8


def issue_clocks(opcode: str) -> int:
    """Clocks for which an instruction of a wave holds its SIMD's vector or matrix unit."""
    match family(opcode):
        case "MFMA":
            return QUAD * matrix_quads(opcode)
        case "transcendental":
            return 4 * QUAD
        case "VALU" | "packed f32":
            return QUAD
    return 0


@dataclass(frozen=True)
class _Cost:
    """What an instruction does to the model: `unit` V vector, M matrix, L LDS, G memory, K scalar memory, W wait, B barrier, S other."""

    unit: str
    quads: float = 1
    memory: int | None = None
    shared: int | None = None


def _cost(instruction: Instruction, conflicts: Mapping[str, float]) -> _Cost:
    opcode, kind = instruction.opcode, family(instruction.opcode)
    match kind:
        case "MFMA":
            return _Cost("M", matrix_quads(opcode))
        case "transcendental":
            return _Cost("V", 4)
        case "VALU" | "packed f32":
            return _Cost("V")
        case "LDS exchange":
            return _Cost("L")
        case "LDS read" | "LDS write":
            size = next((int(bits) // 8 for bits in re.findall(r"_b(\d+)", opcode)), 2) * (2 if re.search(r"(read|write)2", opcode) else 1)
            return _Cost("L", max(0.25, size * 64 / 128 / QUAD) * conflicts.get(opcode, 1.0))
        case "memory" | "scratch":
            return _Cost("G", int((re.findall(r"x(\d)$", opcode) or ["1"])[0]))
        case "barrier":
            return _Cost("B")
    if opcode == "s_nop":
        return _Cost("N", int(instruction.operands[0], 0) + 1)
    if opcode == "s_waitcnt":
        counters = {name: int(number) for name, number in re.findall(r"(vmcnt|lgkmcnt)\((\d+)\)", instruction.text)}
        return _Cost("W", 1, counters.get("vmcnt"), counters.get("lgkmcnt"))
    return _Cost("K") if opcode.startswith(("s_load", "s_buffer_load")) else _Cost("S")


@dataclass
class _Wave:
    group: int
    simd: int
    ready: float
    place: int = 0
    at_barrier: bool = False
    memory: list[float] = field(default_factory=list)
    shared: list[float] = field(default_factory=list)


@dataclass(frozen=True)
class Estimate:
    """`clocks` of the model, the share of them in which matrix units, and vector units, work, and why waves waited (in quads)."""

    clocks: int
    matrix: float
    vector: float
    stalls: Counter[str]


def estimate(trace: Sequence[Instruction], waves: int, groups: int, conflicts: Mapping[str, float]) -> Estimate:
    """Of a compute unit that runs `groups` blocks of `waves` waves, all of which execute `trace`.

    `conflicts` tells for each opcode how many times as long as without conflicts of banks it takes.
    """
    costs = [_cost(instruction, conflicts) for instruction in trace]
    return _Unit(costs, waves, groups).run()


class _Unit:
    """A compute unit, quad by quad."""

    def __init__(self, costs: Sequence[_Cost], waves: int, groups: int) -> None:
        self._costs = costs
        self._waves = [_Wave(group, (wave + group * waves) % _SIMDS, group * _STAGGER) for group in range(groups) for wave in range(waves)]
        self._vector_free = [0.0] * _SIMDS
        self._matrix_free = [0.0] * _SIMDS
        self._shared_free = self._memory_free = 0.0
        self._matrix_busy = self._vector_busy = 0.0
        self._stalls: Counter[str] = Counter()
        self._now = 0

    def run(self) -> Estimate:
        waves = self._waves
        while waves and self._now < _LIMIT:
            for group in {wave.group for wave in waves}:
                members = [wave for wave in waves if wave.group == group]
                if all(wave.at_barrier for wave in members):
                    for wave in members:
                        wave.at_barrier, wave.ready = False, self._now + 2
                        wave.place += 1
            for simd in range(_SIMDS):
                used: set[str] = set()
                for wave in sorted((w for w in waves if w.simd == simd), key=lambda w: w.place):
                    if not wave.at_barrier and wave.ready <= self._now:
                        self._issue(wave, used)
            waves = [wave for wave in waves if wave.place < len(self._costs)]
            self._now += 1
        total = max(1, _SIMDS * self._now)
        return Estimate(QUAD * self._now, self._matrix_busy / total, self._vector_busy / total, self._stalls)

    def _issue(self, wave: _Wave, used: set[str]) -> None:
        """The next instruction of a wave, if what it needs is free; `used` are the units that the SIMD has used in this quad."""
        cost, now = self._costs[wave.place], self._now
        match cost.unit:
            case "B":
                wave.at_barrier = True
                return
            case "W":
                wave.memory = [time for time in wave.memory if time > now]
                wave.shared = [time for time in wave.shared if time > now]
                if cost.memory is not None and len(wave.memory) > cost.memory:
                    self._stalls["memory"] += 1
                    return
                if cost.shared is not None and len(wave.shared) > cost.shared:
                    self._stalls["LDS"] += 1
                    return
            case "M" | "V":
                if not self._compute(wave, cost, used):
                    return
            case "L" | "G":
                if cost.unit in used:
                    return
                used.add(cost.unit)
                if cost.unit == "L":
                    self._shared_free = max(self._shared_free, now) + cost.quads
                    wave.shared.append(self._shared_free + _LDS_LATENCY)
                else:
                    self._memory_free = max(self._memory_free, now) + cost.quads
                    wave.memory.append(self._memory_free + _MEMORY_LATENCY)
            case "K":
                wave.shared.append(now + _SCALAR_LATENCY)
        wave.ready = now + (cost.quads if cost.unit in ("V", "N") else 1)
        wave.place += 1

    def _compute(self, wave: _Wave, cost: _Cost, used: set[str]) -> bool:
        simd, now = wave.simd, self._now
        matrix = cost.unit == "M"
        if matrix and self._matrix_free[simd] > now:
            self._stalls["matrix unit"] += 1
            return False
        if "V" in used or self._vector_free[simd] > now:
            self._stalls["vector issue"] += 1
            return False
        used.add("V")
        self._vector_free[simd] = now + (1 if matrix else cost.quads)
        if matrix:
            self._matrix_free[simd] = now + cost.quads
            self._matrix_busy += cost.quads
        else:
            self._vector_busy += cost.quads
        return True
