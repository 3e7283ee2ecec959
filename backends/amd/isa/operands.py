"""Operands of instructions as functions of a wave, made once for each instruction."""

import re
from collections.abc import Callable
from typing import Any

import numpy as np

from attn_mlir.backends.amd.isa.disassembly import Instruction
from attn_mlir.backends.amd.isa.state import LANES, M0, VCC, InterpreterError, Wave

Read = Callable[[Wave], Any]
"""A vector source: 64 uint32, or one for all lanes."""
Scalar = Callable[[Wave], int]
_FLOATS = {"0.5": 0.5, "1.0": 1.0, "2.0": 2.0, "4.0": 4.0, "0.15915494": 0.15915494309189532, "0.15915494309189532": 0.15915494309189532}
_NAMED = {"vcc": VCC, "vcc_lo": VCC, "vcc_hi": VCC + 1, "m0": M0, "flat_scratch": 102, "flat_scratch_lo": 102, "flat_scratch_hi": 103}
_LANE = np.arange(LANES)
FLOAT, HALF = 0x80000000, 0x8000


class UnknownInstructionError(InterpreterError):
    """An instruction, or a form of it, that the interpreter does not know."""


def unknown(instruction: Instruction) -> UnknownInstructionError:
    """The error for it."""
    return UnknownInstructionError(f"the interpreter does not know '{instruction.text}'")


def only(instruction: Instruction, *known: str) -> None:
    """Raises InterpreterError for modifiers other than these."""
    if not set(instruction.modifiers) <= set(known):
        raise unknown(instruction)


def constant(text: str, half: bool = False) -> int | None:
    """The bits of a number in the text, or None for a register."""
    magnitude = text.removeprefix("-")
    if magnitude in _FLOATS:
        value = -_FLOATS[magnitude] if text.startswith("-") else _FLOATS[magnitude]
        return int(np.float16(value).view(np.uint16)) if half else int(np.float32(value).view(np.uint32))
    try:
        return int(text, 0)
    except ValueError:
        return None


def vector_register(text: str) -> int | None:
    """The first vector register of v3, v[4:7] or a[0:15]; None for other operands."""
    found = re.fullmatch(r"([va])(?:(\d+)|\[(\d+):\d+\])", text)
    return int(found.group(2) or found.group(3)) + (256 if found.group(1) == "a" else 0) if found else None


def register_of(instruction: Instruction, operand: int) -> int:
    """The same, for an operand that must be one."""
    register = vector_register(instruction.operands[operand])
    if register is None:
        raise unknown(instruction)
    return register


def scalar_register(text: str) -> int | None:
    """The first scalar register of s3, s[4:5], vcc...; None for other operands."""
    if text in _NAMED:
        return _NAMED[text]
    found = re.fullmatch(r"s(?:(\d+)|\[(\d+):\d+\])", text)
    return int(found.group(1) or found.group(2)) if found else None


def scalar(text: str, words: int = 1) -> Scalar:
    """A scalar source of 1 or 2 words."""
    limit = (1 << 32 * words) - 1
    value = constant(text)
    if value is not None:
        return lambda wave: value & limit
    if text in ("exec", "exec_lo", "exec_hi", "scc"):
        match text:
            case "exec":
                return lambda wave: wave.exec
            case "exec_lo":
                return lambda wave: wave.exec & 0xFFFFFFFF
            case "exec_hi":
                return lambda wave: wave.exec >> 32
        return lambda wave: wave.scc
    register = scalar_register(text)
    if register is None:
        raise UnknownInstructionError(f"the interpreter does not know the scalar operand '{text}'")
    first = register
    if words == 1:
        return lambda wave: wave.s[first]
    return lambda wave: wave.s[first] | wave.s[first + 1] << 32


def set_scalar(text: str, words: int = 1) -> Callable[[Wave, int], None]:
    """Writes a scalar destination; values have the right size."""
    if text == "exec":
        return lambda wave, value: wave.set_exec(value)
    register = scalar_register(text)
    if register is None:
        raise UnknownInstructionError(f"the interpreter does not know the scalar operand '{text}'")
    first = register

    def one(wave: Wave, value: int) -> None:
        wave.s[first] = value

    def two(wave: Wave, value: int) -> None:
        wave.s[first], wave.s[first + 1] = value & 0xFFFFFFFF, value >> 32

    return one if words == 1 else two


def source(instruction: Instruction, operand: int, word: int = 0, sign: int = 0) -> Read:
    """Word `word` of a vector source. `sign` is the sign bit of its numbers (FLOAT, HALF), where -x and |x| mean something, else 0."""
    text = instruction.operands[operand]
    negative = absolute = False
    if sign and text.startswith("-") and constant(text) is None:
        negative, text = True, text[1:]
    if sign and text.startswith("|"):
        absolute, text = True, text.strip("|")
    read = _plain(text, word, sign == HALF)
    read = _selected(instruction, operand, read)
    if absolute:
        read = _changed(read, lambda x: x & np.uint32(sign - 1 if sign == FLOAT else 0xFFFF7FFF))
    return _changed(read, lambda x: x ^ np.uint32(sign)) if negative else read


def _changed(read: Read, change: Callable[[Any], Any]) -> Read:
    return lambda wave: change(read(wave))


def _plain(text: str, word: int, half: bool) -> Read:
    register = vector_register(text)
    if register is not None:
        number = register + word
        return lambda wave: wave.v[number]
    value = constant(text, half)
    if value is not None:
        bits = np.uint32(value >> 32 * word & 0xFFFFFFFF)
        return lambda wave: bits
    if text.startswith("exec"):
        mask = scalar(text)
        return lambda wave: np.uint32(mask(wave) >> 32 * word & 0xFFFFFFFF)
    first = scalar_register(text)
    if first is None:
        raise UnknownInstructionError(f"the interpreter does not know the operand '{text}'")
    place = first + word
    return lambda wave: np.uint32(wave.s[place])


def _selected(instruction: Instruction, operand: int, read: Read) -> Read:
    """A source as DPP moves it across lanes, or SDWA takes a part of it."""
    if instruction.encoding == "dpp" and operand == 1:
        lanes, valid = dpp_lanes(instruction)
        return lambda wave: np.where(valid, np.broadcast_to(read(wave), LANES)[lanes], np.uint32(0))
    part = instruction.modifiers.get(f"src{operand - 1}_sel", "DWORD") if instruction.encoding == "sdwa" else "DWORD"
    if part == "DWORD":
        return read
    kind, _, number = part.partition("_")
    if kind not in ("WORD", "BYTE"):
        raise unknown(instruction)
    width = 16 if kind == "WORD" else 8
    shift, low = np.uint32(int(number) * width), np.uint32((1 << width) - 1)
    return lambda wave: read(wave) >> shift & low


def dpp_lanes(instruction: Instruction) -> tuple[Any, Any]:
    """From which lanes DPP reads, and which of them exist."""
    given, place = instruction.modifiers, _LANE % 16
    valid = np.ones(LANES, bool)
    if given.get("row_mask", "0xf") != "0xf" or given.get("bank_mask", "0xf") != "0xf":
        raise unknown(instruction)
    if "quad_perm" in given:
        lanes = _LANE - _LANE % 4 + np.array(instruction.numbers("quad_perm", ()))[_LANE % 4]
    elif "row_shr" in given:
        by = instruction.number("row_shr")
        lanes, valid = _LANE - by, place >= by
    elif "row_shl" in given:
        by = instruction.number("row_shl")
        lanes, valid = _LANE + by, place + by < 16
    elif "row_ror" in given:
        lanes = _LANE - place + (place - instruction.number("row_ror")) % 16
    elif "row_newbcast" in given:
        lanes = _LANE - place + instruction.number("row_newbcast")
    elif "row_mirror" in given:
        lanes = _LANE - place + 15 - place
    elif "row_half_mirror" in given:
        lanes = _LANE - _LANE % 8 + 7 - _LANE % 8
    else:
        raise unknown(instruction)
    if "bound_ctrl" not in given and not valid.all():
        raise unknown(instruction)  # lanes without a source keep what they have
    return np.clip(lanes, 0, LANES - 1), valid
