"""Vector instructions with carries and masks of lanes, and exchanges across lanes."""

import re
from collections.abc import Callable
from typing import Any

import numpy as np

from attn_mlir.backends.amd.isa.disassembly import Instruction
from attn_mlir.backends.amd.isa.functions import F16, F32, U16, U32, U64, fused
from attn_mlir.backends.amd.isa.operands import FLOAT, only, register_of, scalar, set_scalar, source, unknown
from attn_mlir.backends.amd.isa.pairs import pair_of
from attn_mlir.backends.amd.isa.state import LANES, Wave, bits_of, lanes_of
from attn_mlir.backends.amd.isa.vector import Step, floats

_LANE = np.arange(LANES)
_COMPARISONS: dict[str, Callable[[Any, Any], Any]] = {
    "eq": np.equal,
    "ne": np.not_equal,
    "lg": lambda a, b: (a < b) | (a > b),
    "neq": lambda a, b: ~np.equal(a, b),
    "lt": np.less,
    "le": np.less_equal,
    "gt": np.greater,
    "ge": np.greater_equal,
    "nlt": lambda a, b: ~np.less(a, b),
    "nle": lambda a, b: ~np.less_equal(a, b),
    "ngt": lambda a, b: ~np.greater(a, b),
    "nge": lambda a, b: ~np.greater_equal(a, b),
    "nlg": lambda a, b: ~((a < b) | (a > b)),
    "o": lambda a, b: ~(np.isnan(a) | np.isnan(b)),
    "u": lambda a, b: np.isnan(a) | np.isnan(b),
}
_TYPES: dict[str, Any] = {"f32": F32, "i32": np.int32, "u32": U32, "f16": F16, "u16": U16, "i16": np.int16, "u64": U64, "i64": np.int64}


def step(instruction: Instruction) -> Step | None:
    """What the instruction does, or None where it is none of these."""
    found = re.fullmatch(r"v_cmp(x?)_(\w+)_(f32|i32|u32|f16|u16|i16|u64|i64)", instruction.opcode)
    if found and found.group(2) in _COMPARISONS:
        return _compare(instruction, found.group(2), found.group(3), bool(found.group(1)))
    maker = _MAKERS.get(instruction.opcode)
    return None if maker is None else maker(instruction)


def _compare(instruction: Instruction, comparison: str, kind: str, sets_exec: bool) -> Step:
    only(instruction, "src0_sel", "src1_sel")
    function, type_ = _COMPARISONS[comparison], _TYPES[kind]
    if kind.endswith("64"):
        reads = [pair_of(instruction, i) for i in (1, 2)]
    else:
        reads = [source(instruction, i, 0, FLOAT if kind == "f32" else 0x8000 if kind == "f16" else 0) for i in (1, 2)]

    def value(x: Any) -> Any:
        if kind.endswith("16"):
            return (np.asarray(x) & U32(0xFFFF)).astype(U16).view(type_)
        return np.asarray(x).view(type_)

    write = set_scalar(instruction.operands[0], 2)

    def run(wave: Wave) -> None:
        mask = np.broadcast_to(function(value(reads[0](wave)), value(reads[1](wave))), LANES) & wave.mask
        write(wave, bits_of(mask))
        if sets_exec:
            wave.set_exec(bits_of(mask))

    return run


def _choose(instruction: Instruction) -> Step:
    only(instruction, "src0_sel", "src1_sel", "dst_sel", "dst_unused")
    if instruction.modifiers.get("dst_sel", "DWORD") != "DWORD":
        raise unknown(instruction)
    sign = FLOAT if instruction.encoding == "e64" else 0
    no, yes, mask = source(instruction, 1, 0, sign), source(instruction, 2, 0, sign), scalar(instruction.operands[3], 2)
    register = register_of(instruction, 0)
    return lambda wave: wave.write(register, np.where(lanes_of(mask(wave)), yes(wave), no(wave)))


def _carrying(subtract: bool, takes: bool, reverse: bool = False) -> Callable[[Instruction], Step]:
    def make(instruction: Instruction) -> Step:
        only(instruction)
        register, carry = register_of(instruction, 0), set_scalar(instruction.operands[1], 2)
        first, second = source(instruction, 3 if reverse else 2), source(instruction, 2 if reverse else 3)
        given = scalar(instruction.operands[4], 2) if takes else None

        def run(wave: Wave) -> None:
            a, b = np.asarray(first(wave), np.int64), np.asarray(second(wave), np.int64)
            extra = lanes_of(given(wave)).astype(np.int64) if given else 0
            result = a - b - extra if subtract else a + b + extra
            carry(wave, bits_of(np.broadcast_to((result < 0) | (result >> 32 != 0), LANES) & wave.mask))
            wave.write(register, (result & 0xFFFFFFFF).astype(U32))

        return run

    return make


def _accumulate(instruction: Instruction) -> Step:
    only(instruction)
    register, a, b = register_of(instruction, 0), *(floats(source(instruction, i, 0, FLOAT)) for i in (1, 2))
    return lambda wave: wave.write(register, fused(a(wave), b(wave), wave.v[register].view(F32)).view(U32))


def _count_bits(offset: int) -> Callable[[Instruction], Step]:
    def make(instruction: Instruction) -> Step:
        only(instruction)
        register, mask, start = register_of(instruction, 0), source(instruction, 1), source(instruction, 2)
        below = np.array([(1 << min(max(lane - offset, 0), 32)) - 1 for lane in range(LANES)], U64)

        def run(wave: Wave) -> None:
            masked = np.broadcast_to(np.asarray(mask(wave), U64), LANES) & below
            wave.write(register, np.array([int(x).bit_count() for x in masked], U32) + start(wave))

        return run

    return make


def _read_lane(instruction: Instruction) -> Step:
    only(instruction)
    write, read = set_scalar(instruction.operands[0]), source(instruction, 1)
    if instruction.opcode == "v_readfirstlane_b32":
        return lambda wave: write(wave, int(np.broadcast_to(read(wave), LANES)[int(np.argmax(wave.mask))]))
    lane = scalar(instruction.operands[2])
    return lambda wave: write(wave, int(np.broadcast_to(read(wave), LANES)[lane(wave) & 63]))


def _write_lane(instruction: Instruction) -> Step:
    only(instruction)
    register, value, lane = register_of(instruction, 0), scalar(instruction.operands[1]), scalar(instruction.operands[2])

    def run(wave: Wave) -> None:
        wave.v[register, lane(wave) & 63] = value(wave)

    return run


def _scaled(instruction: Instruction) -> Step:
    only(instruction)
    register, x, by = register_of(instruction, 0), floats(source(instruction, 1, 0, FLOAT)), source(instruction, 2)
    return lambda wave: wave.write(register, np.ldexp(x(wave), np.asarray(by(wave)).view(np.int32)).astype(F32).view(U32))


def _division_scale(instruction: Instruction) -> Step:
    """For numbers far from the ends of the range, which need no scale."""
    only(instruction)
    register, mask, x = register_of(instruction, 0), set_scalar(instruction.operands[1], 2), floats(source(instruction, 2, 0, FLOAT))

    def run(wave: Wave) -> None:
        wave.write(register, np.broadcast_to(x(wave), LANES).view(U32).copy())
        mask(wave, 0)

    return run


def _division_sum(instruction: Instruction) -> Step:
    only(instruction)
    register, reads = register_of(instruction, 0), [floats(source(instruction, i, 0, FLOAT)) for i in (1, 2, 3)]
    return lambda wave: wave.write(register, fused(*[read(wave) for read in reads]).view(U32))


_MAKERS: dict[str, Callable[[Instruction], Step]] = {
    "v_cndmask_b32": _choose,
    "v_add_co_u32": _carrying(False, False),
    "v_addc_co_u32": _carrying(False, True),
    "v_sub_co_u32": _carrying(True, False),
    "v_subrev_co_u32": _carrying(True, False, True),
    "v_subb_co_u32": _carrying(True, True),
    "v_subbrev_co_u32": _carrying(True, True, True),
    "v_fmac_f32": _accumulate,
    "v_mbcnt_lo_u32_b32": _count_bits(0),
    "v_mbcnt_hi_u32_b32": _count_bits(32),
    "v_readfirstlane_b32": _read_lane,
    "v_readlane_b32": _read_lane,
    "v_writelane_b32": _write_lane,
    "v_ldexp_f32": _scaled,
    "v_div_scale_f32": _division_scale,
    "v_div_fmas_f32": _division_sum,
}
