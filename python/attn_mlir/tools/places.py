"""Lines for diagnostics of operations whose written location says none: `loc("a name")`, `loc(unknown)`."""

import re
from collections.abc import Callable
from dataclasses import replace

from attn_mlir.diagnostics import Diagnostic, DiagnosticError
from attn_mlir.tools.source import Source

_SKIPPED = r'"(?:[^"\\\n]|\\.)*"|//[^\n]*'
_LOCATION = re.compile(rf"{_SKIPPED}|(?P<location>(?:^[ \t]*#\w+[ \t]*=[ \t]*)?\bloc\()", re.MULTILINE)
_FUNCTION = re.compile(rf"{_SKIPPED}|(?P<function>\bfunc\.func\b)")
_BRACKET = re.compile(rf"{_SKIPPED}|[()]")


def placed(error: DiagnosticError, given: Source, again: Callable[[Source], object]) -> DiagnosticError:
    """The same diagnostics; one without a line gets that of the operation in the text, if `again`, on other text, finds the same.

    Operations that passes make may have no place at all; then it is that of the first function.
    """
    if all(diagnostic.line for diagnostic in error.diagnostics):
        return error
    bare = without_locations(given.text)
    others = error.diagnostics
    if bare != given.text:
        try:
            again(Source(given.name, bare))
        except DiagnosticError as other:
            others = other.diagnostics if len(other.diagnostics) == len(others) else others
    first = _first(given)
    return DiagnosticError([_merged(_merged(one, two), first) for one, two in zip(error.diagnostics, others, strict=True)])


def _first(given: Source) -> Diagnostic:
    """The place of the first function, or of the text's begin."""
    found = next((each for each in _FUNCTION.finditer(given.text) if each["function"]), None)
    before = given.text[: found.start()] if found is not None else ""
    return Diagnostic("error", "", given.name, before.count("\n") + 1, len(before) - (before.rfind("\n") + 1) + 1)


def without_locations(text: str) -> str:
    """`text` with blanks in place of written locations, so that each operation has that of its line and column."""
    kept, start = [], 0
    while (found := _LOCATION.search(text, start)) is not None:
        if found["location"] is None:
            kept.append(text[start : found.end()])
            start = found.end()
            continue
        end = _end(text, found.end())
        kept += [text[start : found.start()], re.sub(r"[^\n]", " ", text[found.start() : end])]
        start = end
    return "".join([*kept, text[start:]])


def _end(text: str, start: int) -> int:
    """Where the bracket that was opened before `start` is closed, or the end of the text."""
    depth = 1
    for found in _BRACKET.finditer(text, start):
        depth += {"(": 1, ")": -1}.get(found[0], 0)
        if not depth:
            return found.end()
    return len(text)


def _merged(one: Diagnostic, two: Diagnostic) -> Diagnostic:
    """`one`, with the place of `two` where it has none."""
    return one if one.line else replace(one, file=two.file, line=two.line, column=two.column)
