"""Scalar instructions: integers of a whole wave, branches."""

import re
from collections.abc import Callable

from attn_mlir.backends.amd.isa.disassembly import Instruction
from attn_mlir.backends.amd.isa.operands import only, scalar, set_scalar
from attn_mlir.backends.amd.isa.state import VCC, Wave
from attn_mlir.backends.amd.isa.vector import Step

_WORD = 0xFFFFFFFF
_IGNORED = ("s_waitcnt", "s_nop", "s_setprio", "s_sleep", "s_sethalt", "s_waitcnt_depctr", "s_inst_prefetch", "s_code_end", "v_nop")
_BRANCHES: dict[str, Callable[[Wave], bool]] = {
    "s_branch": lambda wave: True,
    "s_cbranch_scc0": lambda wave: not wave.scc,
    "s_cbranch_scc1": lambda wave: bool(wave.scc),
    "s_cbranch_vccz": lambda wave: not wave.s[VCC] | wave.s[VCC + 1],
    "s_cbranch_vccnz": lambda wave: bool(wave.s[VCC] | wave.s[VCC + 1]),
    "s_cbranch_execz": lambda wave: not wave.exec,
    "s_cbranch_execnz": lambda wave: bool(wave.exec),
}
_ORDERS: dict[str, Callable[[int, int], bool]] = {
    "eq": lambda a, b: a == b,
    "lg": lambda a, b: a != b,
    "gt": lambda a, b: a > b,
    "ge": lambda a, b: a >= b,
    "lt": lambda a, b: a < b,
    "le": lambda a, b: a <= b,
}


def signed(x: int, bits: int = 32) -> int:
    """Of the two's complement."""
    x &= (1 << bits) - 1
    return x - (1 << bits) if x >> (bits - 1) else x


def _field(x: int, place: int) -> int:
    return x >> (place & 31) & (1 << (place >> 16 & 127)) - 1


_NONZERO: dict[str, Callable[..., int]] = {
    "s_and_b": lambda a, b: a & b,
    "s_or_b": lambda a, b: a | b,
    "s_xor_b": lambda a, b: a ^ b,
    "s_andn2_b": lambda a, b: a & ~b,
    "s_orn2_b": lambda a, b: a | ~b,
    "s_nand_b": lambda a, b: ~(a & b),
    "s_nor_b": lambda a, b: ~(a | b),
    "s_xnor_b": lambda a, b: ~(a ^ b),
    "s_not_b": lambda a: ~a,
}
"""With 32 or 64 bits; SCC tells whether the result is not zero."""
_NONZERO_32: dict[str, Callable[..., int]] = {
    "s_lshl_b32": lambda a, b: a << (b & 31),
    "s_lshr_b32": lambda a, b: a >> (b & 31),
    "s_ashr_i32": lambda a, b: signed(a) >> (b & 31),
    "s_bfe_u32": _field,
    "s_bfe_i32": lambda a, b: signed(_field(a, b), b >> 16 & 127) if b >> 16 & 127 else 0,
    "s_abs_i32": lambda a: abs(signed(a)),
    "s_bcnt1_i32_b32": lambda a: a.bit_count(),
}
_SILENT_32: dict[str, Callable[..., int]] = {
    "s_mov_b32": lambda a: a,
    "s_mul_i32": lambda a, b: a * b,
    "s_mul_hi_u32": lambda a, b: a * b >> 32,
    "s_mul_hi_i32": lambda a, b: signed(a) * signed(b) >> 32,
    "s_pack_ll_b32_b16": lambda a, b: a & 0xFFFF | b << 16,
    "s_brev_b32": lambda a: int(f"{a:032b}"[::-1], 2),
    "s_sext_i32_i16": lambda a: signed(a, 16),
    "s_sext_i32_i8": lambda a: signed(a, 8),
    "s_ff1_i32_b32": lambda a: (a & -a).bit_length() - 1,
    "s_flbit_i32": lambda a: 32 - (a ^ signed(a) >> 31 & 0xFFFFFFFF).bit_length() if a not in (0, 0xFFFFFFFF) else -1,
    "s_flbit_i32_b32": lambda a: 32 - a.bit_length() if a else -1,
    "s_bfm_b32": lambda a, b: (1 << (a & 31)) - 1 << (b & 31),
}
_CHOICES: dict[str, Callable[[int, int], bool]] = {
    "s_max_i32": lambda a, b: signed(a) > signed(b),
    "s_min_i32": lambda a, b: signed(a) < signed(b),
    "s_max_u32": lambda a, b: a > b,
    "s_min_u32": lambda a, b: a < b,
}


def step(instruction: Instruction) -> Step | None:
    """What the instruction does, or None where it is none of these."""
    name = instruction.opcode
    if name in _IGNORED:
        return lambda wave: None
    if name in _BRANCHES:
        return _branch(_BRANCHES[name], instruction.target)
    found = re.fullmatch(r"s_cmp(k?)_(eq|lg|gt|ge|lt|le)_(i32|u32|u64)", name)
    if found:
        return _compare(instruction, _ORDERS[found.group(2)], found.group(3), bool(found.group(1)))
    if name[:-2] in _NONZERO:
        return _computed(instruction, _NONZERO[name[:-2]], int(name[-2:]) // 32, True)
    if name in _NONZERO_32:
        return _computed(instruction, _NONZERO_32[name], 1, True)
    if name in _SILENT_32:
        return _computed(instruction, _SILENT_32[name], 1, False)
    if name in _CHOICES:
        return _chosen(instruction, _CHOICES[name])
    maker = _MAKERS.get(name)
    return None if maker is None else maker(instruction)


def _branch(taken: Callable[[Wave], bool], target: int) -> Step:
    def run(wave: Wave) -> None:
        if taken(wave):
            wave.pc = target

    return run


def _compare(instruction: Instruction, order: Callable[[int, int], bool], kind: str, short: bool) -> Step:
    only(instruction)
    words = 2 if kind == "u64" else 1
    first, second = (scalar(operand, words) for operand in instruction.operands)

    def run(wave: Wave) -> None:
        a, b = first(wave), second(wave)
        if kind == "i32":
            a, b = signed(a), signed(b, 16 if short else 32)
        wave.scc = int(order(a, b))

    return run


def _computed(instruction: Instruction, function: Callable[..., int], words: int, tells: bool) -> Step:
    only(instruction)
    limit, write = (1 << 32 * words) - 1, set_scalar(instruction.operands[0], words)
    reads = [scalar(operand, words) for operand in instruction.operands[1:]]

    def run(wave: Wave) -> None:
        result = function(*[read(wave) for read in reads]) & limit
        write(wave, result)
        if tells:
            wave.scc = int(result != 0)

    return run


def _chosen(instruction: Instruction, first_wins: Callable[[int, int], bool]) -> Step:
    only(instruction)
    write, first, second = set_scalar(instruction.operands[0]), *(scalar(operand) for operand in instruction.operands[1:])

    def run(wave: Wave) -> None:
        a, b = first(wave), second(wave)
        wave.scc = int(first_wins(a, b))
        write(wave, a if wave.scc else b)

    return run


def _sum(function: Callable[[int, int, int], int], overflow: bool = False) -> Callable[[Instruction], Step]:
    """Of two numbers and SCC, which then tells a carry, or an overflow of signed numbers."""

    def make(instruction: Instruction) -> Step:
        only(instruction)
        write, first, second = set_scalar(instruction.operands[0]), *(scalar(operand) for operand in instruction.operands[1:])

        def run(wave: Wave) -> None:
            a, b = first(wave), second(wave)
            result = function(signed(a), signed(b), wave.scc) if overflow else function(a, b, wave.scc)
            wave.scc = int(result != signed(result)) if overflow else int(result != result & _WORD)
            write(wave, result & _WORD)

        return run

    return make


def _immediate(function: Callable[[int, int], int], tells: bool) -> Callable[[Instruction], Step]:
    """Of the destination and 16 bits."""

    def make(instruction: Instruction) -> Step:
        only(instruction)
        target, number = instruction.operands
        write, read, immediate = set_scalar(target), scalar(target), signed(int(number, 0), 16)

        def run(wave: Wave) -> None:
            result = function(signed(read(wave)), immediate)
            if tells:
                wave.scc = int(result != signed(result))
            write(wave, result & _WORD)

        return run

    return make


_MAKERS: dict[str, Callable[[Instruction], Step]] = {
    "s_add_u32": _sum(lambda a, b, c: a + b),
    "s_sub_u32": _sum(lambda a, b, c: a - b),
    "s_addc_u32": _sum(lambda a, b, c: a + b + c),
    "s_subb_u32": _sum(lambda a, b, c: a - b - c),
    "s_add_i32": _sum(lambda a, b, c: a + b, True),
    "s_sub_i32": _sum(lambda a, b, c: a - b, True),
    **{f"s_lshl{by}_add_u32": _sum(lambda a, b, c, by=by: (a << by) + b) for by in (1, 2, 3, 4)},
    "s_addk_i32": _immediate(lambda a, b: a + b, True),
    "s_mulk_i32": _immediate(lambda a, b: a * b, False),
    "s_movk_i32": _immediate(lambda a, b: b, False),
}
