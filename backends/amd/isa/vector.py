"""Vector instructions whose result is a function of their sources, lane by lane."""

from collections.abc import Callable
from typing import Any

import numpy as np

from attn_mlir.backends.amd.isa.disassembly import Instruction
from attn_mlir.backends.amd.isa.functions import CONVERSIONS, F16, F32, FLOATS, HALVES, INTEGERS, SHORTS, U16, U32, U64
from attn_mlir.backends.amd.isa.operands import FLOAT, HALF, Read, only, register_of, source, unknown
from attn_mlir.backends.amd.isa.state import Wave

Step = Callable[[Wave], None]
_SDWA = ("dst_sel", "dst_unused", "src0_sel", "src1_sel")
_DPP = (
    "quad_perm",
    "row_shr",
    "row_shl",
    "row_ror",
    "row_newbcast",
    "row_mirror",
    "row_half_mirror",
    "row_mask",
    "bank_mask",
    "bound_ctrl",
)


def floats(read: Read) -> Read:
    """The source as f32."""
    return lambda wave: read(wave).view(F32)


def step(instruction: Instruction) -> Step | None:
    """What the instruction does, or None where it is none of these."""
    name, count = instruction.opcode, len(instruction.operands)
    allowed = {"sdwa": _SDWA, "dpp": _DPP}.get(instruction.encoding, ())
    if name in FLOATS:
        only(instruction, *allowed, "clamp")
        reads = [floats(source(instruction, i, 0, FLOAT)) for i in range(1, count)]
        function = FLOATS[name]
        if "clamp" in instruction.modifiers:
            plain = function
            function = lambda *values: np.clip(np.nan_to_num(plain(*values), nan=0.0), 0, 1)  # noqa: E731
        return _result(instruction, lambda wave: np.asarray(function(*[read(wave) for read in reads]), F32).view(U32))
    if name in HALVES:
        only(instruction, *allowed)
        halves = [source(instruction, i, 0, HALF) for i in range(1, count)]
        return _result(instruction, lambda wave: HALVES[name](*[_half(read(wave)) for read in halves]).view(U16).astype(U32))
    if name in SHORTS:
        only(instruction, *allowed)
        shorts = [source(instruction, i) for i in range(1, count)]
        return _result(instruction, lambda wave: SHORTS[name](*[_half(read(wave)).view(U16) for read in shorts]).astype(U32))
    if name in CONVERSIONS:
        only(instruction, *allowed)
        reads = [floats(source(instruction, i, 0, FLOAT)) for i in range(1, count)]
        return _result(instruction, lambda wave: CONVERSIONS[name](*[read(wave) for read in reads]))
    if name in INTEGERS:
        only(instruction, *allowed, *(("clamp",) if name in ("v_add_u32", "v_sub_u32") else ()))
        words = [source(instruction, i) for i in range(1, count)]
        function = INTEGERS[name]
        if "clamp" in instruction.modifiers:
            function = _saturated_add if name == "v_add_u32" else lambda a, b: np.where(b > a, U32(0), a - b)
        return _result(instruction, lambda wave: function(*[read(wave) for read in words]))
    return None


def _saturated_add(a: Any, b: Any) -> Any:
    return np.minimum(np.asarray(a, U64) + b, U64(0xFFFFFFFF)).astype(U32)


def _half(x: Any) -> Any:
    return (np.asarray(x) & U32(0xFFFF)).astype(U16).view(F16)


def _result(instruction: Instruction, compute: Callable[[Wave], Any]) -> Step:
    """Writes the result into the first operand, or, with SDWA, into a part of it."""
    register = register_of(instruction, 0)
    part = instruction.modifiers.get("dst_sel", "DWORD")
    if part == "DWORD":
        return lambda wave: wave.write(register, compute(wave))
    kind, _, number = part.partition("_")
    width = 16 if kind == "WORD" else 8
    kept = instruction.modifiers.get("dst_unused", "UNUSED_PAD")
    if kept not in ("UNUSED_PAD", "UNUSED_PRESERVE"):
        raise unknown(instruction)
    shift, low = U32(int(number) * width), U32((1 << width) - 1)
    others = ~(low << shift) if kept == "UNUSED_PRESERVE" else U32(0)
    return lambda wave: wave.write(register, wave.v[register] & others | (compute(wave) & low) << shift)
