"""Finds the user's line: frames to positions, positions to file, line, column and the name of the assigned variable."""

import ast
import dataclasses
import dis
import functools
import itertools
import linecache
import os
import sys
from types import CodeType, FrameType

from attn_mlir.frontend.node import Position

_HERE = os.path.dirname(os.path.abspath(__file__)) + os.sep
_PACKAGE = os.path.dirname(os.path.dirname(_HERE)) + os.sep
# These hold functions of the kind that users write, and count as theirs.
_FILES = ("rows.py", "online_rows.py", "masks.py", "mask_strings.py", "mods.py", "recurrences.py")
_LIBRARY = frozenset(os.path.join(_PACKAGE, "api", name) for name in _FILES)


@functools.cache
def _torch_folders() -> tuple[str, ...]:
    import numpy
    import torch

    return tuple(os.path.dirname(os.path.abspath(module.__file__ or "")) + os.sep for module in (torch, numpy))


@functools.cache
def is_ours(filename: str) -> bool:
    """Whether a file is part of attn_mlir, torch or numpy, and so never the user's line."""
    path = os.path.abspath(filename)
    if path.startswith(_PACKAGE):
        return path not in _LIBRARY
    return path.startswith(_torch_folders()) or os.path.basename(path) in ("functools.py", "contextlib.py")


@functools.cache
def is_own(filename: str) -> bool:
    """Whether a file is part of attn_mlir, ready-made functions included."""
    return os.path.abspath(filename).startswith(_PACKAGE)


@functools.cache
def is_package(filename: str) -> bool:
    """Whether a file is part of attn_mlir, ready-made functions included, of torch or of numpy."""
    return os.path.abspath(filename).startswith((_PACKAGE, *_torch_folders()))


def here() -> Position | None:
    """The innermost position in the user's code (predefined rows, masks and mods count as such)."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and is_ours(frame.f_code.co_filename):
        frame = frame.f_back
    return None if frame is None else Position(frame.f_code, frame.f_lasti)


def call_site() -> Position | None:
    """The innermost position outside attn_mlir altogether: where the user called it."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and is_package(frame.f_code.co_filename):
        frame = frame.f_back
    return None if frame is None else Position(frame.f_code, frame.f_lasti)


@dataclasses.dataclass(frozen=True, slots=True)
class Where:
    """A resolved position. Columns count from 1; `end_column` is exclusive, 0 where unknown."""

    file: str
    function: str
    line: int
    column: int
    end_line: int
    end_column: int
    variable: str | None

    def snippet(self) -> str:
        """`file:line, in function`, the source line, and a caret line where the columns are known."""
        lines = [f"  --> {self.file}:{self.line}, in {self.function}"]
        source = linecache.getline(self.file, self.line).rstrip()
        if source:
            gutter = f"{self.line:5} | "
            lines.append(gutter + source)
            if self.end_column:
                last = self.end_column if self.end_line == self.line else len(source) + 1
                lines.append(" " * 5 + " | " + " " * (self.column - 1) + "^" * max(last - self.column, 1))
        return "\n".join(lines)


@functools.lru_cache(maxsize=4096)
def resolve(position: Position) -> Where:
    """The line, columns and assigned variable of a position."""
    code, offset = position
    file = code.co_filename
    line, end_line, column, end_column = code.co_firstlineno, code.co_firstlineno, 0, 0
    for index, entry in enumerate(code.co_positions()):
        if index == offset // 2 and entry[0] is not None:
            line, end_line = entry[0], entry[1] or entry[0]
            column, end_column = entry[2] or 0, entry[3] or 0
            break
    name = getattr(code, "co_qualname", code.co_name).rpartition("<locals>.")[2]
    column, end_column = _characters(file, line, column, end_column)
    return Where(file, name, line, column + 1, end_line, end_column + 1 if end_column else 0, _assigned(Position(code, 0)).get(offset))


def _characters(file: str, line: int, column: int, end_column: int) -> tuple[int, int]:
    """Byte offsets, as in code objects, to character offsets."""
    source = linecache.getline(file, line)
    if source.isascii():
        return column, end_column
    raw = source.encode()
    return len(raw[:column].decode(errors="ignore")), len(raw[:end_column].decode(errors="ignore"))


@functools.lru_cache(maxsize=512)
def _assigned(start: Position) -> dict[int, str]:
    """For each instruction whose result is stored at once into a variable: that variable's name."""
    names: dict[int, str] = {}
    instructions = list(dis.get_instructions(start.code))
    for instruction, following in itertools.pairwise(instructions):
        if following.opname.startswith("STORE_") and following.opname not in ("STORE_SUBSCR", "STORE_ATTR"):
            stored = following.argval
            name = stored[0] if isinstance(stored, tuple) else str(stored)
            # A frame inside a call stands on the cache entries behind the call instruction.
            names.update(dict.fromkeys(range(instruction.offset, following.offset, 2), name))
    return names


def definition(code: CodeType) -> Where:
    """Where a function is defined."""
    return Where(code.co_filename, code.co_name, code.co_firstlineno, 1, code.co_firstlineno, 0, None)


@functools.lru_cache(maxsize=64)
def syntax_tree(file: str) -> ast.Module | None:
    """The parsed source file, or None where there is none."""
    source = "".join(linecache.getlines(file))
    try:
        return ast.parse(source) if source else None
    except SyntaxError:
        return None
