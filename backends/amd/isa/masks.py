"""Scalar instructions on masks of lanes and other 64 bits, and choices by the condition code."""

import re
from collections.abc import Callable

from attn_mlir.backends.amd.isa.disassembly import Instruction
from attn_mlir.backends.amd.isa.operands import only, scalar, set_scalar
from attn_mlir.backends.amd.isa.scalar import signed
from attn_mlir.backends.amd.isa.state import FULL, Wave
from attn_mlir.backends.amd.isa.vector import Step

_WORD = 0xFFFFFFFF


def step(instruction: Instruction) -> Step | None:
    """What the instruction does, or None where it is none of these."""
    maker = _MAKERS.get(instruction.opcode)
    return None if maker is None else maker(instruction)


def _select(words: int) -> Callable[[Instruction], Step]:
    def make(instruction: Instruction) -> Step:
        only(instruction)
        write, yes, no = set_scalar(instruction.operands[0], words), *(scalar(operand, words) for operand in instruction.operands[1:])
        return lambda wave: write(wave, yes(wave) if wave.scc else no(wave))

    return make


def _save_exec(function: Callable[[int, int], int]) -> Callable[[Instruction], Step]:
    def make(instruction: Instruction) -> Step:
        only(instruction)
        write, read = set_scalar(instruction.operands[0], 2), scalar(instruction.operands[1], 2)

        def run(wave: Wave) -> None:
            old = wave.exec
            wave.set_exec(function(read(wave), old) & FULL)
            wave.scc = int(wave.exec != 0)
            write(wave, old)

        return run

    return make


def _shift_64(function: Callable[[int, int], int], bits: int = 63) -> Callable[[Instruction], Step]:
    """`bits`: of the second operand, those that count."""

    def make(instruction: Instruction) -> Step:
        only(instruction)
        write, value, by = set_scalar(instruction.operands[0], 2), scalar(instruction.operands[1], 2), scalar(instruction.operands[2])

        def run(wave: Wave) -> None:
            result = function(value(wave), by(wave) & bits) & FULL
            write(wave, result)
            wave.scc = int(result != 0)

        return run

    return make


def _field_64(x: int, place: int) -> int:
    return x >> (place & 63) & (1 << (place >> 16 & 127)) - 1


def _move_64(instruction: Instruction) -> Step:
    only(instruction)
    write, text = set_scalar(instruction.operands[0], 2), instruction.operands[1]
    read = scalar(text, 2)
    if re.fullmatch(r"-\d+", text):
        return lambda wave: write(wave, int(text) & FULL)
    return lambda wave: write(wave, read(wave))


def _bit_test(wanted: int) -> Callable[[Instruction], Step]:
    def make(instruction: Instruction) -> Step:
        only(instruction)
        value, bit = (scalar(operand) for operand in instruction.operands)

        def run(wave: Wave) -> None:
            wave.scc = int((value(wave) >> (bit(wave) & 31) & 1) == wanted)

        return run

    return make


def _of_mask(function: Callable[[int], int], tells: bool) -> Callable[[Instruction], Step]:
    """Of 64 bits to 32."""

    def make(instruction: Instruction) -> Step:
        only(instruction)
        write, read = set_scalar(instruction.operands[0]), scalar(instruction.operands[1], 2)

        def run(wave: Wave) -> None:
            result = function(read(wave)) & _WORD
            write(wave, result)
            if tells:
                wave.scc = int(result != 0)

        return run

    return make


def _mask_of_bits(instruction: Instruction) -> Step:
    only(instruction)
    write, width, place = set_scalar(instruction.operands[0], 2), *(scalar(operand) for operand in instruction.operands[1:])
    return lambda wave: write(wave, ((1 << (width(wave) & 63)) - 1 << (place(wave) & 63)) & FULL)


_MAKERS: dict[str, Callable[[Instruction], Step]] = {
    "s_cselect_b32": _select(1),
    "s_cselect_b64": _select(2),
    "s_mov_b64": _move_64,
    "s_and_saveexec_b64": _save_exec(lambda a, old: a & old),
    "s_or_saveexec_b64": _save_exec(lambda a, old: a | old),
    "s_xor_saveexec_b64": _save_exec(lambda a, old: a ^ old),
    "s_andn2_saveexec_b64": _save_exec(lambda a, old: a & ~old),
    "s_lshl_b64": _shift_64(lambda x, by: x << by),
    "s_lshr_b64": _shift_64(lambda x, by: x >> by),
    "s_ashr_i64": _shift_64(lambda x, by: signed(x, 64) >> by),
    "s_bfe_u64": _shift_64(_field_64, 0x7F003F),
    "s_bfe_i64": _shift_64(lambda x, place: signed(_field_64(x, place), place >> 16) if place >> 16 else 0, 0x7F003F),
    "s_bitcmp0_b32": _bit_test(0),
    "s_bitcmp1_b32": _bit_test(1),
    "s_bfm_b64": _mask_of_bits,
    "s_ff1_i32_b64": _of_mask(lambda x: (x & -x).bit_length() - 1, False),
    "s_flbit_i32_b64": _of_mask(lambda x: 64 - x.bit_length() if x else -1, False),
    "s_bcnt1_i32_b64": _of_mask(int.bit_count, True),
}
