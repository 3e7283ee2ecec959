"""`expected-error @below {{...}}` comments, and how they compare with what was reported."""

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from attn_mlir.diagnostics import Diagnostic
from attn_mlir.tools.source import Source

_DESIGNATOR = re.compile(r"expected-(error|note|warning|remark)\b")
_EXPECTED = re.compile(r"expected-(error|note|warning|remark)\s*(?:@([+-]\d+|below|above|unknown))?\s*\{\{(.*?)\}\}")


@dataclass(frozen=True)
class Expectation:
    """A message that must be reported; `line` is None where any line will do."""

    severity: str
    text: str
    line: int | None
    written: int

    def meets(self, diagnostic: Diagnostic) -> bool:
        """True if `diagnostic` is what was expected."""
        here = self.line is None or self.line == diagnostic.line
        return here and self.severity == diagnostic.severity and self.text in diagnostic.message


def compare(source: Source, reported: Iterable[Diagnostic]) -> list[Diagnostic]:
    """What is wrong: expectations that nothing met, and reports that nobody expected."""
    expected, problems = _parse(source)
    unexpected = _flatten(reported)
    for expectation in expected:
        found = next((d for d in unexpected if expectation.meets(d)), None)
        if found is None:
            message = f'expected {expectation.severity} "{expectation.text}" was not produced'
            problems.append(Diagnostic("error", message, source.name, expectation.line or expectation.written, 1))
        else:
            unexpected.remove(found)
    for diagnostic in unexpected:
        message = f"unexpected {diagnostic.severity}: {diagnostic.message}"
        problems.append(Diagnostic("error", message, diagnostic.file or source.name, diagnostic.line, diagnostic.column))
    return problems


def _flatten(diagnostics: Iterable[Diagnostic]) -> list[Diagnostic]:
    flat: list[Diagnostic] = []
    for diagnostic in diagnostics:
        flat.append(diagnostic)
        flat.extend(_flatten(diagnostic.notes))
    return flat


def _parse(source: Source) -> tuple[list[Expectation], list[Diagnostic]]:
    lines = source.text.splitlines()
    designators = [bool(_DESIGNATOR.search(line)) for line in lines]
    expected, problems = [], []
    for number, line in enumerate(lines, start=1):
        found = list(_EXPECTED.finditer(line))
        if len(found) != len(_DESIGNATOR.findall(line)):
            problems.append(Diagnostic("error", "malformed expectation; write: expected-error @below {{text}}", source.name, number, 1))
        for match in found:
            severity, place, text = match.groups()
            expected.append(Expectation(severity, text, _line(number, place, designators), number))
    return expected, problems


def _line(number: int, place: str | None, designators: Sequence[bool]) -> int | None:
    """The line an expectation is about; `below` and `above` skip lines that hold expectations themselves."""
    if place == "unknown":
        return None
    if place not in ("below", "above"):
        return number + int(place or 0)
    step = 1 if place == "below" else -1
    number += step
    while 1 <= number <= len(designators) and designators[number - 1]:
        number += step
    return number
