"""Diagnostics with locations: how MLIR's errors are carried and shown."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from attn_mlir.errors import CompileError
from attn_mlir.mlir import ir

# The parser gives this name to sources that it gets as a string.
_NO_NAME = "-"
_FORMER = {
    "attn.carry": "attn.chunk_decay",
    "attn.enter": "attn.input_decay",
    "attn.leave": "attn.output_decay",
    "attn.weight": "attn.decay_mask",
    "attn.remainder": "attn.residual",
}
"""What ops were called in programs that were saved before."""


@dataclass(frozen=True)
class Diagnostic:
    """One message; `line` is 0 where no source location is known."""

    severity: str
    message: str
    file: str = ""
    line: int = 0
    column: int = 0
    notes: tuple["Diagnostic", ...] = ()

    def __str__(self) -> str:
        place = f"{self.file}:{self.line}:{self.column}: " if self.line else f"{self.file}: " if self.file else ""
        return "\n".join([f"{place}{self.severity}: {self.message}", *map(str, self.notes)])

    def renamed(self, source: str) -> "Diagnostic":
        """The same with `source` as the name of the file that was parsed."""
        file = source if self.file in ("", _NO_NAME) else self.file
        return replace(self, file=file, notes=tuple(note.renamed(source) for note in self.notes))


class DiagnosticError(CompileError):
    """A failure that consists of diagnostics."""

    def __init__(self, diagnostics: Sequence[Diagnostic]) -> None:
        super().__init__("\n".join(map(str, diagnostics)))
        self.diagnostics = tuple(diagnostics)


def from_mlir_error(error: ir.MLIRError, fallback: str) -> list[Diagnostic]:
    """The diagnostics of `error`; one saying `fallback` if it has none."""
    return [_convert(info) for info in error.error_diagnostics] or [Diagnostic("error", fallback)]


def at(location: ir.Location | None, severity: str, message: str) -> Diagnostic:
    """A diagnostic at `location`."""
    if location is None:
        return Diagnostic(severity, message)
    file, line, column = _source_of(location)
    if not line and isinstance(location, ir.NameLoc):
        message = f'{message} (at "{location.name_str}")'
    return Diagnostic(severity, message, file, line, column)


def source_line(location: ir.Location) -> str:
    """`location` inside of a message: "file:line", else the name that it has, else "somewhere"."""
    file, line, _ = _source_of(location)
    return f"{file}:{line}" if line else location.name_str if isinstance(location, ir.NameLoc) else "somewhere"


def _convert(info: Any) -> Diagnostic:
    # MLIR appends the whole operation to many errors; the location says enough.
    notes = [_convert(note) for note in info.notes if not note.message.startswith("see current operation")]
    # Locations inside an MLIRError are not downcast, which makes their class say nothing.
    location = ir.Location.from_attr(info.location.attr, context=info.location.context)
    message = info.message.strip()
    message += next((f"; it is called '{now}' now" for name, now in _FORMER.items() if f"unregistered operation '{name}'" in message), "")
    return replace(at(location, info.severity.name.lower(), message), notes=tuple(notes))


def _source_of(location: ir.Location) -> tuple[str, int, int]:
    return next(_sources(location), ("", 0, 0))


def _sources(location: ir.Location) -> Iterator[tuple[str, int, int]]:
    match location:
        case ir.FileLineColLoc():
            yield location.filename, location.start_line, location.start_col
        case ir.NameLoc():
            yield from _sources(location.child_loc)
        case ir.CallSiteLoc():
            yield from _sources(location.callee)
            yield from _sources(location.caller)
        case ir.FusedLoc():
            for part in location.locations:
                yield from _sources(part)
