"""Shared memory (LDS): loads, stores, exchanges across lanes, and the conflicts of its 32 banks."""

import re
from typing import Any

import numpy as np

from attn_mlir.backends.amd.isa.disassembly import Instruction
from attn_mlir.backends.amd.isa.functions import U32
from attn_mlir.backends.amd.isa.memory import Move
from attn_mlir.backends.amd.isa.operands import only, register_of, source, unknown
from attn_mlir.backends.amd.isa.state import LANES, InterpreterError, Wave
from attn_mlir.backends.amd.isa.vector import Step

_LANE = np.arange(LANES)
_BANKS = 32
_FORM = re.compile(r"ds_(read|write)(2?)(st64)?_(b32|b64|b96|b128|[iu]16|b16|[iu]8|b8)(_d16|_d16_hi)?")
_QUADS = [(half + a, half + b) for half in (0, 32) for a, b in ((0, 20), (4, 16), (8, 28), (12, 24))]
_WIDE_READS = np.array([[*range(a, a + 4), *range(b, b + 4)] for a, b in _QUADS])
"""Lanes that are served together by a read of 16 bytes, as AMD documents it for gfx942; assumed for gfx90a."""


def step(instruction: Instruction) -> Step | None:
    """What the instruction does, or None where it is none of these."""
    if instruction.opcode in ("ds_bpermute_b32", "ds_permute_b32", "ds_swizzle_b32"):
        return _exchange(instruction)
    found = _FORM.fullmatch(instruction.opcode)
    if found is None:
        return None
    kind, two, far, type_, half = found.groups()
    move = Move(kind == "write", int(type_[1:]) // 8, type_.startswith("i"), half or "")
    if two:
        only(instruction, "offset0", "offset1")
        unit = move.size * (64 if far else 1)
        offsets = [instruction.number("offset0") * unit, instruction.number("offset1") * unit]
    else:
        only(instruction, "offset")
        offsets = [instruction.number("offset")]
    base = source(instruction, 0 if move.store else 1)
    registers = [
        register_of(instruction, 1 + i) if move.store else register_of(instruction, 0) + i * move.words for i in range(len(offsets))
    ]

    def run(wave: Wave) -> None:
        if not wave.exec:
            return
        start = np.broadcast_to(np.asarray(base(wave), np.int64), LANES)[wave.mask]
        for offset, register in zip(offsets, registers, strict=True):
            _access(wave, instruction.opcode, move, start + offset, register)

    return run


def _access(wave: Wave, opcode: str, move: Move, places: Any, register: int) -> None:
    group = wave.group
    if (places % min(move.size, 16 if move.size == 16 else 8)).any():
        raise InterpreterError(f"an access of {move.size} bytes of shared memory that is not aligned")
    group.touch(wave.number, places, move.size, move.store)
    if group.conflicts is not None and len(places) == LANES:
        group.conflicts[opcode, cycles(places, move.size, move.store)] += 1
    index = places[:, None] + np.arange(move.size)
    if move.store:
        group.shared[index] = move.take(wave, register, wave.mask)
    else:
        move.put(wave, register, wave.mask, group.shared[index])


def cycles(places: Any, size: int, store: bool) -> float:
    """How many times as long as without conflicts of banks an access of all lanes takes."""
    together = min(128 // max(size, 4), 32)
    groups = _WIDE_READS if size == 16 and not store else _LANE.reshape(-1, together)
    total = 0
    for lanes in groups:
        words = np.unique((places[lanes][:, None] + np.arange(0, max(size, 4), 4)).ravel() // 4)
        total += int(np.bincount(words % _BANKS, minlength=_BANKS).max())
    return round(total / len(groups), 2)


def _exchange(instruction: Instruction) -> Step:
    register = register_of(instruction, 0)
    if instruction.opcode == "ds_swizzle_b32":
        only(instruction, "offset")
        lanes, read = _swizzled(instruction), source(instruction, 1)
        return lambda wave: wave.write(register, read(wave)[lanes])
    only(instruction, "offset")
    address, value, offset = source(instruction, 1), source(instruction, 2), U32(instruction.number("offset"))
    if instruction.opcode == "ds_permute_b32":
        raise unknown(instruction)

    def run(wave: Wave) -> None:
        values = np.where(wave.mask, value(wave), U32(0))
        wave.write(register, values[(address(wave) + offset >> U32(2)) & U32(63)])

    return run


def _swizzled(instruction: Instruction) -> Any:
    text = instruction.modifiers.get("offset", "0")
    found = re.fullmatch(r"swizzle\(SWAP,(\d+)\)", text)
    if found:
        return _LANE ^ int(found.group(1))
    try:
        pattern = int(text, 0)
    except ValueError:
        raise unknown(instruction) from None
    if pattern & 0x8000:
        return _LANE & ~3 | pattern >> 2 * (_LANE & 3) & 3
    return _LANE & 32 | (_LANE & 31 & (pattern & 31) | pattern >> 5 & 31) ^ (pattern >> 10 & 31)
