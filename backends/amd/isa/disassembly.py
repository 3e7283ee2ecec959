"""Machine code as instructions, by LLVM's disassembler."""

import re
import subprocess
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from attn_mlir.backends.amd.clang import find_clang, find_tool
from attn_mlir.errors import CompileError

_LINE = re.compile(r"^\t(.*?)\s*// ([0-9A-F]+): ([0-9A-F ]+?)(?:\s*<(.*)>)?$")
_FLAG = re.compile(r"(?<=[\s,])(offen|idxen|glc|slc|scc|lds|gds|clamp|row_mirror|row_half_mirror)(?=\s|$)")
_MODIFIER = re.compile(
    r"\b(offset0|offset1|offset|op_sel_hi|op_sel|neg_lo|neg_hi|row_mask|bank_mask|quad_perm|row_shr|row_shl|row_ror|row_bcast|row_newbcast|"
    r"wave_shl|wave_shr|bound_ctrl|dst_sel|dst_unused|src0_sel|src1_sel|cbsz|abid|blgp|mul|div):(swizzle\([^)]*\)|\[[^\]]*\]|\S+)"
)


@dataclass(frozen=True)
class Instruction:
    """One instruction: `opcode` without its encoding, which is e32, e64, dpp, sdwa or "". `target` of a branch, else -1."""

    address: int
    size: int
    opcode: str
    encoding: str
    operands: tuple[str, ...]
    modifiers: dict[str, str]
    text: str
    target: int = -1

    def numbers(self, modifier: str, default: tuple[int, ...]) -> tuple[int, ...]:
        """A modifier such as op_sel:[0,1]."""
        given = self.modifiers.get(modifier)
        return default if given is None else tuple(int(number) for number in given.strip("[]").split(","))

    def number(self, modifier: str) -> int:
        """A modifier such as offset:16, or 0."""
        return int(self.modifiers.get(modifier, "0"), 0)


@lru_cache(maxsize=64)
def disassemble(code: bytes, arch: str = "gfx90a") -> Mapping[int, Instruction]:
    """The instructions of a code object by their addresses, in order. Raises CompileError, or UnsupportedError without a disassembler."""
    tool = find_tool("llvm-objdump", find_clang())
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "kernel.hsaco"
        path.write_bytes(code)
        made = subprocess.run([tool, "-d", f"--mcpu={arch}", str(path)], capture_output=True, text=True, check=False)
    if made.returncode:
        raise CompileError(f"{tool} fails: {made.stderr.strip()}")
    found = (_LINE.match(line) for line in made.stdout.splitlines())
    instructions = [parse(m.group(1).strip(), int(m.group(2), 16), 4 * len(m.group(3).split())) for m in found if m]
    return {instruction.address: instruction for instruction in instructions}


def parse(text: str, address: int = 0, size: int = 4) -> Instruction:
    """An instruction in assembly language."""
    name, _, rest = text.partition(" ")
    modifiers: dict[str, str] = {}

    def take(found: re.Match[str]) -> str:
        modifiers[found.group(1)] = found.group(2)
        return ""

    def note(found: re.Match[str]) -> str:
        modifiers[found.group(1)] = "1"
        return ""

    rest = _FLAG.sub(note, f" {_MODIFIER.sub(take, rest)}")
    operands: tuple[str, ...] = ()
    if rest.strip():
        operands = tuple(operand.strip() for operand in re.split(r",(?![^\[(]*[\])])", rest))
    encoding = next((e for e in ("e32", "e64", "dpp", "sdwa") if name.endswith(f"_{e}")), "")
    opcode = name.removesuffix(f"_{encoding}") if encoding else name
    target = -1
    if opcode.startswith(("s_cbranch", "s_branch")):
        offset = int(next(iter(operands)), 0)
        target = address + 4 + 4 * (offset - 65536 if offset >= 32768 else offset)
    return Instruction(address, size, opcode, encoding, operands, modifiers, text, target)
