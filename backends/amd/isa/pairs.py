"""Vector instructions on pairs of registers, and on the halves of registers."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np

from attn_mlir.backends.amd.isa.disassembly import Instruction
from attn_mlir.backends.amd.isa.functions import F16, F32, F64, U16, U32, U64, fused
from attn_mlir.backends.amd.isa.operands import FLOAT, only, register_of, source, unknown, vector_register
from attn_mlir.backends.amd.isa.state import LANES, Wave
from attn_mlir.backends.amd.isa.vector import Step, floats
from attn_mlir.dialects.elements import ELEMENTS
from attn_mlir.float_values import decoded, rounded


def step(instruction: Instruction) -> Step | None:
    """What the instruction does, or None where it is none of these."""
    maker = _MAKERS.get(instruction.opcode)
    return None if maker is None else maker(instruction)


def pair_of(instruction: Instruction, operand: int) -> Callable[[Wave], Any]:
    """A source of 64 bits."""
    low, high = source(instruction, operand, 0), source(instruction, operand, 1)
    return lambda wave: np.asarray(low(wave), U64) | np.asarray(high(wave), U64) << U64(32)


def write_pair(register: int, wave: Wave, value: Any) -> None:
    """Writes 64 bits into two registers."""
    wave.write(register, (value & U64(0xFFFFFFFF)).astype(U32))
    wave.write(register + 1, (value >> U64(32)).astype(U32))


def _shift(function: Callable[[Any, Any], Any]) -> Callable[[Instruction], Step]:
    def make(instruction: Instruction) -> Step:
        only(instruction)
        register, by, pair = register_of(instruction, 0), source(instruction, 1), pair_of(instruction, 2)
        return lambda wave: write_pair(register, wave, function(pair(wave), np.asarray(by(wave) & U32(63), U64)))

    return make


def _multiply_add(instruction: Instruction) -> Step:
    only(instruction)
    register, third = register_of(instruction, 0), pair_of(instruction, 4)
    a, b = source(instruction, 2), source(instruction, 3)
    return lambda wave: write_pair(register, wave, np.broadcast_to(np.asarray(a(wave), U64) * b(wave) + third(wave), LANES))


def _shift_add(instruction: Instruction) -> Step:
    only(instruction)
    register, by = register_of(instruction, 0), source(instruction, 2)
    a, b = pair_of(instruction, 1), pair_of(instruction, 3)
    return lambda wave: write_pair(register, wave, np.broadcast_to((a(wave) << np.asarray(by(wave) & U32(7), U64)) + b(wave), LANES))


def _packed(function: Callable[..., Any], count: int) -> Callable[[Instruction], Step]:
    """On two f32 each."""

    def make(instruction: Instruction) -> Step:
        only(instruction, "op_sel", "op_sel_hi", "neg_lo", "neg_hi")
        register, halves = register_of(instruction, 0), []
        zeros, ones = (0,) * count, (1,) * count
        for chosen, negated in (("op_sel", "neg_lo"), ("op_sel_hi", "neg_hi")):
            words = instruction.numbers(chosen, ones if chosen == "op_sel_hi" else zeros)
            signs = instruction.numbers(negated, zeros)
            reads = []
            for i in range(count):
                is_register = vector_register(instruction.operands[i + 1]) is not None or instruction.operands[i + 1][:1] == "s"
                read = floats(source(instruction, i + 1, words[i] if is_register else 0))
                reads.append((lambda wave, read=read: -read(wave)) if signs[i] else read)
            halves.append(reads)

        def run(wave: Wave) -> None:
            results = [np.asarray(function(*[read(wave) for read in reads]), F32).view(U32).copy() for reads in halves]
            wave.write(register, results[0])
            wave.write(register + 1, results[1])

        return run

    return make


def _move_pair(instruction: Instruction) -> Step:
    only(instruction, "op_sel", "op_sel_hi")
    register, words = register_of(instruction, 0), instruction.numbers("op_sel", (0, 0))
    first, second = source(instruction, 1, words[0]), source(instruction, 2, words[1])

    def run(wave: Wave) -> None:
        values = np.broadcast_to(first(wave), LANES).copy(), np.broadcast_to(second(wave), LANES).copy()
        wave.write(register, values[0])
        wave.write(register + 1, values[1])

    return run


def _move_64(instruction: Instruction) -> Step:
    only(instruction)
    register, pair = register_of(instruction, 0), pair_of(instruction, 1)
    return lambda wave: write_pair(register, wave, np.broadcast_to(pair(wave), LANES))


def _half_of(word: Any, high: int) -> Any:
    return (np.asarray(word) >> U32(16 * high) & U32(0xFFFF)).astype(U16).view(F16)


def _from_half(instruction: Instruction) -> Step:
    only(instruction, "src0_sel", "dst_sel", "dst_unused")
    register, read = register_of(instruction, 0), source(instruction, 1, 0, 0x8000)
    return lambda wave: wave.write(register, np.asarray(_half_of(read(wave), 0), F32).view(U32))


def _pack_halves(instruction: Instruction) -> Step:
    only(instruction, "op_sel")
    register, chosen = register_of(instruction, 0), instruction.numbers("op_sel", (0, 0, 0))
    low, high = source(instruction, 1, 0, 0x8000), source(instruction, 2, 0, 0x8000)

    def run(wave: Wave) -> None:
        parts = [np.asarray(read(wave)) >> U32(16 * part) & U32(0xFFFF) for read, part in ((low, chosen[0]), (high, chosen[1]))]
        wave.write(register, parts[0] | parts[1] << U32(16))

    return run


def _pack_bytes(element: str) -> Callable[[Instruction], Step]:
    """Two f32, rounded to bytes, in a half of the result; the other half stays."""
    of = ELEMENTS[element]
    sizes = decoded(of)[:128]

    def code(x: Any) -> Any:
        number = rounded(np.asarray(x.view(F32), F64), of)
        found = np.searchsorted(sizes, np.nan_to_num(np.abs(number))).astype(U32)
        return np.where(np.isnan(number), U32(0x80), found | np.where(np.signbit(number), U32(0x80), U32(0)))

    def make(instruction: Instruction) -> Step:
        only(instruction, "op_sel")
        register, shift = register_of(instruction, 0), U32(16 * instruction.numbers("op_sel", (0, 0, 0))[2])
        first, second = (source(instruction, place, 0, FLOAT) for place in (1, 2))
        others = ~(U32(0xFFFF) << shift)
        return lambda wave: wave.write(register, wave.v[register] & others | (code(first(wave)) | code(second(wave)) << U32(8)) << shift)

    return make


def _mixed(result: str) -> Callable[[Instruction], Step]:
    """a b + c of f32 or halves, to f32 or into a half of the result."""

    def make(instruction: Instruction) -> Step:
        only(instruction, "op_sel", "op_sel_hi")
        register = register_of(instruction, 0)
        halves, high = instruction.numbers("op_sel_hi", (0, 0, 0)), instruction.numbers("op_sel", (0, 0, 0))
        if any(half and "|" in instruction.operands[i + 1] for i, half in enumerate(halves)):
            raise unknown(instruction)
        signs = [-1.0 if half and instruction.operands[i + 1].startswith("-") else 1.0 for i, half in enumerate(halves)]
        texts = [text.removeprefix("-") if i and halves[i - 1] else text for i, text in enumerate(instruction.operands)]
        plain = replace(instruction, operands=type(instruction.operands)(texts))
        reads = [source(plain, i + 1, 0, 0 if halves[i] else FLOAT) for i in range(3)]

        def run(wave: Wave) -> None:
            values = [np.asarray(_half_of(read(wave), high[i]) if halves[i] else read(wave).view(F32), F64) for i, read in enumerate(reads)]
            values = [value * sign for value, sign in zip(values, signs, strict=True)]
            value = (values[0] * values[1] + values[2]).astype(F32)
            if result == "f32":
                wave.write(register, value.view(U32))
                return
            bits, old = value.astype(F16).view(U16).astype(U32), wave.v[register]
            wave.write(register, old & U32(0xFFFF) | bits << U32(16) if result == "high" else old & U32(0xFFFF0000) | bits)

        return run

    return make


_MAKERS: dict[str, Callable[[Instruction], Step]] = {
    "v_lshlrev_b64": _shift(lambda x, by: x << by),
    "v_lshrrev_b64": _shift(lambda x, by: x >> by),
    "v_ashrrev_i64": _shift(lambda x, by: (x.view(np.int64) >> by.astype(np.int64)).view(U64)),
    "v_mad_u64_u32": _multiply_add,
    "v_lshl_add_u64": _shift_add,
    "v_pk_add_f32": _packed(np.add, 2),
    "v_pk_mul_f32": _packed(np.multiply, 2),
    "v_pk_fma_f32": _packed(fused, 3),
    "v_pk_mov_b32": _move_pair,
    "v_mov_b64": _move_64,
    "v_cvt_f32_f16": _from_half,
    "v_pack_b32_f16": _pack_halves,
    "v_cvt_pk_fp8_f32": _pack_bytes("f8E4M3FNUZ"),
    "v_cvt_pk_bf8_f32": _pack_bytes("f8E5M2FNUZ"),
    "v_fma_mix_f32": _mixed("f32"),
    "v_fma_mixlo_f16": _mixed("low"),
    "v_fma_mixhi_f16": _mixed("high"),
}
