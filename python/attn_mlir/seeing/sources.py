"""The user's functions as numbered lines, and the functions around other lines that a program comes from."""

import ast
import inspect
import linecache
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import PurePath
from typing import Any

from attn_mlir.frontend.functions import code_of
from attn_mlir.frontend.where import syntax_tree

_LONGEST = 120
"""Lines of one function that are shown."""


@dataclass(frozen=True)
class Excerpt:
    """Lines of a file from `first` on; `role` says what they are for."""

    role: str
    file: str
    first: int
    lines: tuple[str, ...]

    @property
    def place(self) -> str:
        """The end of the file's path and the first line, for people."""
        return f"{'/'.join(PurePath(self.file).parts[-2:])}:{self.first}"


def excerpts(functions: Mapping[str, Any], places: Iterable[tuple[str, int]]) -> list[Excerpt]:
    """The given functions by their roles, then what holds the other (file, line) `places`, each once."""
    found: list[Excerpt] = []
    for role, function in functions.items():
        code = code_of(function) if function is not None else None
        if code is None:
            if function is not None:
                found.append(Excerpt(role, "", 0, (f"{getattr(function, '__name__', type(function).__name__)}: no source",)))
            continue
        try:
            lines, first = inspect.getsourcelines(code)
        except (OSError, TypeError):
            lines, first = [f"{code.co_name}: no source"], 0
        found.append(Excerpt(role, code.co_filename, first, _cut(lines)))
    for file, line in places:
        if not any(each.file == file and each.first <= line < each.first + len(each.lines) for each in found):
            excerpt = _around(file, line)
            if excerpt is not None:
                found.append(excerpt)
    return found


def _around(file: str, line: int) -> Excerpt | None:
    """The innermost function that holds a line, or the line alone; None where there is no such file."""
    text = linecache.getlines(file)
    if not 1 <= line <= len(text):
        return None
    tree = syntax_tree(file)
    holders = [
        node
        for node in (ast.walk(tree) if tree is not None else ())
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)) and node.lineno <= line <= (node.end_lineno or node.lineno)
    ]
    if not holders:
        return Excerpt("", file, line, _cut([text[line - 1]]))
    node = max(holders, key=lambda node: node.lineno)
    return Excerpt(f"in {node.name}", file, node.lineno, _cut(text[node.lineno - 1 : node.end_lineno]))


def _cut(lines: list[str]) -> tuple[str, ...]:
    """Without line ends and the indentation that all have."""
    stripped = [line.rstrip("\r\n").expandtabs(4) for line in lines[:_LONGEST]]
    margin = min((len(line) - len(line.lstrip()) for line in stripped if line.strip()), default=0)
    return tuple(line[margin:] for line in stripped)
