"""Vector instructions of f64, in pairs of registers."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np

from attn_mlir.backends.amd.isa.disassembly import Instruction
from attn_mlir.backends.amd.isa.functions import F32, F64, U32, U64
from attn_mlir.backends.amd.isa.operands import FLOAT, constant, only, register_of, source, unknown
from attn_mlir.backends.amd.isa.pairs import pair_of, write_pair
from attn_mlir.backends.amd.isa.state import LANES, Wave
from attn_mlir.backends.amd.isa.vector import Step, floats

_INLINE = {"0": 0.0, "0.5": 0.5, "1.0": 1.0, "2.0": 2.0, "4.0": 4.0}


def step(instruction: Instruction) -> Step | None:
    """What the instruction does, or None where it is none of these."""
    maker = _MAKERS.get(instruction.opcode)
    return None if maker is None else maker(instruction)


def _double(instruction: Instruction, operand: int) -> Callable[[Wave], Any]:
    """A source of f64: a pair of registers, or a number that the instruction has; -x and |x| of them."""
    text = instruction.operands[operand]
    negative = text.startswith("-")
    text = text.removeprefix("-")
    absolute, text = text.startswith("|"), text.strip("|")
    if text in _INLINE:
        number = F64(_INLINE[text])
        read: Callable[[Wave], Any] = lambda wave: number  # noqa: E731
    elif constant(text) is not None:
        raise unknown(instruction)
    else:
        operands = [*instruction.operands[:operand], text, *instruction.operands[operand + 1 :]]
        pair = pair_of(replace(instruction, operands=type(instruction.operands)(operands)), operand)
        read = lambda wave: pair(wave).view(F64)  # noqa: E731
    size = (lambda wave: np.abs(read(wave))) if absolute else read
    return (lambda wave: -size(wave)) if negative else size


def _function(function: Callable[..., Any], count: int) -> Callable[[Instruction], Step]:
    def make(instruction: Instruction) -> Step:
        only(instruction)
        register, reads = register_of(instruction, 0), [_double(instruction, i + 1) for i in range(count)]

        def run(wave: Wave) -> None:
            value = np.asarray(function(*[read(wave) for read in reads]), F64)
            write_pair(register, wave, np.broadcast_to(value, LANES).copy().view(U64))

        return run

    return make


def _narrowed(instruction: Instruction) -> Step:
    only(instruction)
    register, read = register_of(instruction, 0), _double(instruction, 1)
    return lambda wave: wave.write(register, np.asarray(read(wave), F64).astype(F32).view(U32))


def _widened(instruction: Instruction) -> Step:
    only(instruction)
    register, read = register_of(instruction, 0), floats(source(instruction, 1, 0, FLOAT))
    return lambda wave: write_pair(register, wave, np.broadcast_to(read(wave).astype(F64), LANES).copy().view(U64))


_MAKERS: dict[str, Callable[[Instruction], Step]] = {
    "v_add_f64": _function(np.add, 2),
    "v_cvt_f32_f64": _narrowed,
    "v_cvt_f64_f32": _widened,
}
