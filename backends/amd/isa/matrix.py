"""Matrix products (MFMA) of f16, bf16, f32 and 8-bit floats into f32."""

import re
from typing import Any

import numpy as np

from attn_mlir.backends.amd.isa.disassembly import Instruction
from attn_mlir.backends.amd.isa.functions import F16, F32, U16, U32
from attn_mlir.backends.amd.isa.operands import constant, only, register_of, unknown, vector_register
from attn_mlir.backends.amd.isa.state import LANES, InterpreterError, Wave
from attn_mlir.backends.amd.isa.vector import Step
from attn_mlir.dialects.elements import ELEMENTS
from attn_mlir.float_values import decoded

_SHAPES = {
    "f16": ((32, 8), (16, 16)),
    "bf16": ((32, 8), (16, 16)),
    "f32": ((32, 2), (16, 4)),
    "fp8_fp8": ((32, 16),),
    "bf8_bf8": ((32, 16),),
}
"""Rows and columns of the result, and terms that are added up."""
_BYTES = {"fp8_fp8": decoded(ELEMENTS["f8E4M3FNUZ"]).astype(F32), "bf8_bf8": decoded(ELEMENTS["f8E5M2FNUZ"]).astype(F32)}
"""What bytes stand for."""
_LANE = np.arange(LANES)


def step(instruction: Instruction, flush: bool) -> Step | None:
    """What the instruction does, or None where it is none; with `flush`, subnormal numbers count as zero."""
    if not instruction.opcode.startswith("v_mfma"):
        return None
    found = re.fullmatch(r"v_mfma_f32_(\d+)x\d+x(\d+)_?(f16|bf16|f32|fp8_fp8|bf8_bf8)(?:_1k)?", instruction.opcode)
    if found is None or (int(found.group(1)), int(found.group(2))) not in _SHAPES[found.group(3)]:
        raise unknown(instruction)
    only(instruction)
    rows, kind = int(found.group(1)), found.group(3)
    a, b, target = register_of(instruction, 1), register_of(instruction, 2), register_of(instruction, 0)
    added = vector_register(instruction.operands[3])
    if added is None and constant(instruction.operands[3]) != 0:
        raise unknown(instruction)
    count, words = rows * rows // LANES, 1 if kind == "f32" else 2
    # Lane l holds column l % rows of the result, and of its rows register r the one in row[r, l].
    register = np.arange(count)[:, None]
    row = 8 * (register // 4) + 4 * (_LANE // 32) + register % 4 if rows == 32 else 4 * (_LANE // 16) + register
    column = np.broadcast_to(_LANE % rows, row.shape)

    def run(wave: Wave) -> None:
        if not wave.full:
            raise InterpreterError("a matrix product with inactive lanes")
        product = _operand(wave.v[a : a + words], kind, rows, flush) @ _operand(wave.v[b : b + words], kind, rows, flush).T
        result = product[row, column]
        if added is not None:
            result = result + wave.v[added : added + count].view(F32)
        wave.v[target : target + count] = (_flushed(result, 2.0**-126) if flush else result).view(U32)

    return run


def _operand(words: Any, kind: str, rows: int, flush: bool) -> Any:
    """[rows, summed] of the words of each lane: row l % rows, p places from p (l / rows); p is 4, 1 of f32, or 8 of bytes."""
    mine = np.ascontiguousarray(words.T)
    if kind == "f32":
        numbers = mine.view(F32)
    elif kind in _BYTES:
        numbers = _BYTES[kind][mine.view(np.uint8)]
    else:
        numbers = mine.view(F16).astype(F32) if kind == "f16" else (mine.view(U16).astype(U32) << U32(16)).view(F32)
    if flush and kind not in _BYTES:
        numbers = _flushed(numbers, 2.0**-14 if kind == "f16" else 2.0**-126)
    return numbers.reshape(LANES // rows, rows, -1).transpose(1, 0, 2).reshape(rows, -1)


def _flushed(x: Any, smallest: float) -> Any:
    return np.where(np.abs(x) < smallest, F32(0), x)
