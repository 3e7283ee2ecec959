"""Loads, stores and atomic additions: global memory, buffers, scratch. Addresses need no alignment, as code for HSA may assume."""

import re
from collections.abc import Callable
from typing import Any

import numpy as np

from attn_mlir.backends.amd.isa.disassembly import Instruction
from attn_mlir.backends.amd.isa.functions import F32, I32, U16, U32, U64
from attn_mlir.backends.amd.isa.operands import Read, only, register_of, scalar, scalar_register, source, unknown
from attn_mlir.backends.amd.isa.state import LANES, SCRATCH_MARK, InterpreterError, Wave
from attn_mlir.backends.amd.isa.vector import Step

_SIZES = {"dword": 4, "short": 2, "ushort": 2, "sshort": 2, "byte": 1, "ubyte": 1, "sbyte": 1}
Addresses = Callable[[Wave], Any]


def step(instruction: Instruction) -> Step | None:
    """What the instruction does, or None where it is none of these."""
    name = instruction.opcode
    found = re.fullmatch(r"s_load_dword(?:x(\d+))?", name)
    if found:
        return _scalar_load(instruction, int(found.group(1) or 1))
    if re.fullmatch(r"(global|flat)_atomic_add_f32", name):
        return _atomic(instruction)
    if name == "global_atomic_cmpswap":
        return _compare_and_swap(instruction)
    found = re.fullmatch(r"(global|flat|buffer|scratch)_(load|store)_(dword|[us]?short|[us]?byte)(?:x(\d))?(_d16|_d16_hi)?", name)
    if found is None:
        return None
    space, kind, type_, words, half = found.groups()
    move = Move(kind == "store", _SIZES[type_] * int(words or 1), type_ in ("sshort", "sbyte"), half or "")
    make = {"buffer": _buffer, "scratch": _own}.get(space, _global)
    return make(instruction, move)


class Move:
    """Bytes between registers and memory: `size` of them for each lane; `half` is where 16 bits go in a register."""

    def __init__(self, store: bool, size: int, signed: bool, half: str) -> None:
        self.store, self.size, self.signed, self.half = store, size, signed, half
        self.words = max(size // 4, 1)

    def put(self, wave: Wave, register: int, lanes: Any, data: Any) -> None:
        """What was loaded, [lanes, size], into registers."""
        if self.size >= 4:
            values = np.ascontiguousarray(data).view(U32)
            for word in range(self.words):
                wave.v[register + word][lanes] = values[:, word]
            return
        value = (np.ascontiguousarray(data).view(U16) if self.size == 2 else data)[:, 0].astype(U32)
        if self.signed:
            shift = U32(32 - 8 * self.size)
            value = ((value << shift).view(I32) >> I32(shift)).view(U32)
        old = wave.v[register][lanes]
        if self.half == "_d16":
            value = old & U32(0xFFFF0000) | value & U32(0xFFFF)
        elif self.half == "_d16_hi":
            value = old & U32(0xFFFF) | value << U32(16)
        wave.v[register][lanes] = value

    def take(self, wave: Wave, register: int, lanes: Any) -> Any:
        """The inverse."""
        words = np.stack([wave.v[register + word][lanes] for word in range(self.words)], 1)
        data = np.ascontiguousarray(words).view(np.uint8)
        return data[:, 2 : 2 + self.size] if self.half == "_d16_hi" else data[:, : self.size]


def _scalar_load(instruction: Instruction, words: int) -> Step:
    only(instruction, "glc")
    target, base, offset = instruction.operands
    first, start, by = scalar_register(target), scalar(base, 2), scalar(offset)
    if first is None:
        raise unknown(instruction)

    def run(wave: Wave) -> None:
        address = start(wave) + by(wave)
        if address % 4:
            raise InterpreterError("a scalar load at an address that is no multiple of 4")
        data = wave.group.memory.load(np.array([address], np.int64), 4 * words)
        wave.s[first : first + words] = data.view(U32)[0].tolist()

    return run


def _addresses(instruction: Instruction, lanes: int, base: int) -> Addresses:
    """Addresses of a global instruction from its operands with numbers `lanes` and `base`."""
    offset = instruction.number("offset")
    offset = offset - (1 << 16) if offset >= 1 << 15 else offset
    low = source(instruction, lanes, 0)
    text = instruction.operands[base] if base < len(instruction.operands) else "off"
    if text == "off":
        high = source(instruction, lanes, 1)
        return lambda wave: (np.asarray(low(wave), U64) | np.asarray(high(wave), U64) << U64(32)).astype(np.int64) + offset
    start = scalar(text, 2)
    return lambda wave: np.asarray(low(wave), np.int64) + start(wave) + offset


def _global(instruction: Instruction, move: Move) -> Step:
    only(instruction, "offset", "glc", "slc", "scc")
    addresses = _addresses(instruction, 0 if move.store else 1, 2)
    register = register_of(instruction, 1 if move.store else 0)

    def run(wave: Wave) -> None:
        if not wave.exec:
            return
        places = np.broadcast_to(addresses(wave), LANES)[wave.mask]
        if move.store:
            wave.group.memory.store(places, move.take(wave, register, wave.mask))
        else:
            move.put(wave, register, wave.mask, wave.group.memory.load(places, move.size))

    return run


def _atomic(instruction: Instruction) -> Step:
    only(instruction, "offset")
    addresses, register = _addresses(instruction, 0, 2), register_of(instruction, 1)

    def run(wave: Wave) -> None:
        if wave.exec:
            places = np.broadcast_to(addresses(wave), LANES)[wave.mask]
            wave.group.memory.add(places, wave.v[register][wave.mask].view(F32))

    return run


def _compare_and_swap(instruction: Instruction) -> Step:
    """Of the operands: with glc what was there before, addresses, the new value and the one that must be there."""
    only(instruction, "offset", "glc")
    returns = "glc" in instruction.modifiers
    addresses, register = _addresses(instruction, int(returns), 2 + returns), register_of(instruction, 1 + returns)
    result = register_of(instruction, 0) if returns else -1

    def run(wave: Wave) -> None:
        places = np.broadcast_to(addresses(wave), LANES)
        for lane in np.flatnonzero(wave.mask):
            place = places[lane : lane + 1]
            old = wave.group.memory.load(place, 4).view(U32)[0, 0]
            if old == wave.v[register + 1, lane]:
                wave.group.memory.store(place, wave.v[register : register + 1, lane : lane + 1].copy().view(np.uint8))
            if returns:
                wave.v[result, lane] = old

    return run


def _buffer(instruction: Instruction, move: Move) -> Step:
    only(instruction, "offset", "offen", "glc", "slc")
    register, descriptor = register_of(instruction, 0), scalar_register(instruction.operands[2])
    if descriptor is None:
        raise unknown(instruction)
    first, fixed, scalar_offset = descriptor, instruction.number("offset"), scalar(instruction.operands[3])
    none: Read = lambda wave: U32(0)  # noqa: E731
    lane_offset = source(instruction, 1) if "offen" in instruction.modifiers else none

    def run(wave: Wave) -> None:
        if not wave.exec:
            return
        places = np.broadcast_to(np.asarray(lane_offset(wave), np.int64), LANES) + fixed + scalar_offset(wave)
        if wave.s[first + 1] & 0xFFFF == SCRATCH_MARK:
            _scratch(wave, move, register, places)
            return
        base, limit = wave.s[first] | (wave.s[first + 1] & 0xFFFF) << 32, wave.s[first + 2]
        if move.store:
            inside = wave.mask & (places + move.size <= limit)
            if inside.any():
                wave.group.memory.store(places[inside] + base, move.take(wave, register, inside))
            return
        # Each word beyond the end reads as zero.
        data = np.zeros((LANES, move.size), np.uint8)
        piece = min(move.size, 4)
        for start in range(0, move.size, piece):
            inside = wave.mask & (places + start + piece <= limit)
            if inside.any():
                data[inside, start : start + piece] = wave.group.memory.load(places[inside] + base + start, piece)
        move.put(wave, register, wave.mask, data[wave.mask])

    return run


def _own(instruction: Instruction, move: Move) -> Step:
    """Scratch memory through its own instructions, as gfx942 does."""
    only(instruction, "offset")
    register, lanes, base = register_of(instruction, 1 if move.store else 0), 0 if move.store else 1, instruction.operands[2]
    offset = instruction.number("offset")
    by_lane = None if instruction.operands[lanes] == "off" else source(instruction, lanes)
    start = None if base == "off" else scalar(base)

    def run(wave: Wave) -> None:
        if wave.exec:
            place = offset + (0 if start is None else start(wave))
            own = np.zeros(LANES, np.int64) if by_lane is None else np.asarray(by_lane(wave), np.int64)
            _scratch(wave, move, register, np.broadcast_to(own, LANES) + place)

    return run


def _scratch(wave: Wave, move: Move, register: int, places: Any) -> None:
    """Memory of each lane's own."""
    lanes = np.flatnonzero(wave.mask)
    if places[lanes].max(initial=0) + move.size > wave.scratch.shape[1]:
        raise InterpreterError("scratch memory out of bounds")
    index = places[lanes][:, None] + np.arange(move.size)
    if move.store:
        wave.scratch[lanes[:, None], index] = move.take(wave, register, wave.mask)
    else:
        move.put(wave, register, wave.mask, wave.scratch[lanes[:, None], index])
