"""Reading MLIR text: files, chunks of a split file, and limits that keep the parser from crashing."""

import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from attn_mlir.diagnostics import Diagnostic, DiagnosticError, from_mlir_error
from attn_mlir.dialects import DIALECTS
from attn_mlir.mlir import ir
from attn_mlir.tools.kernels import check_kernels

# The MLIR parser recurses on nesting without a limit of its own and would overflow the stack.
_MAX_NESTING = 256
_MAX_MINUS_RUN = 64
_SKIPPED = re.compile(r'//[^\n]*|"(?:[^"\\\n]|\\.)*"|->|[<>]=')
_MINUS_RUN = re.compile(rf"(?:-\s*){{{_MAX_MINUS_RUN}}}")
_LONG_NUMBER = re.compile(r"\d{1001}")  # which the parser takes time for that grows with the square of its length
_LARGE_SIZE = re.compile(r"(?<=[<x])\d{11,}(?=x)")
_ARRAY = re.compile(r"\barray<\s*(?!(?:i1|i8|i16|i32|i64|f32|f64)\b)([\w]+)")
_CUSTOM = re.compile(rf"(?<![\w#!@%^$.-])((?:{'|'.join(each.DIALECT_NAMESPACE for each in DIALECTS)})\.[\w.]+)(?!\s*[=,}}\w.])")
_SEPARATOR = re.compile(r"^[ \t]*// -----.*\n?", re.MULTILINE)


@dataclass(frozen=True)
class Source:
    """Text and the name that diagnostics give it."""

    name: str
    text: str


def read(path: str) -> Source:
    """Reads a UTF-8 file, or standard input for `-`. Raises DiagnosticError."""
    name = "<stdin>" if path == "-" else path
    try:
        data = sys.stdin.buffer.read() if path == "-" else Path(path).read_bytes()
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
        raise DiagnosticError([Diagnostic("error", f"cannot read the file: {reason}", name)]) from None
    try:
        text = data.decode()
    except UnicodeDecodeError as error:
        raise _not_text(name, data, error.start) from None
    # The parser would take a zero for the end of the text.
    if "\0" in text:
        raise _not_text(name, data, data.index(b"\0"))
    return Source(name, text)


def _not_text(name: str, data: bytes, offset: int) -> DiagnosticError:
    before = data[:offset]
    line, column = before.count(b"\n") + 1, offset - (before.rfind(b"\n") + 1) + 1
    return DiagnosticError([Diagnostic("error", f"not UTF-8 text: byte 0x{data[offset]:02x}", name, line, column)])


def chunks(source: Source) -> Iterator[Source]:
    """The parts between `// -----` lines, each padded with newlines so that it keeps its line numbers."""
    start = 0
    for separator in [*_SEPARATOR.finditer(source.text), None]:
        end = separator.start() if separator else len(source.text)
        yield Source(source.name, "\n" * source.text.count("\n", 0, start) + source.text[start:end])
        start = separator.end() if separator else end


def check_nesting(source: Source) -> None:
    """Raises DiagnosticError for text that is nested too deeply for the parser, and for attributes that the bindings cannot look at."""
    # Blanked in place, so that offsets stay those of the text.
    text = _SKIPPED.sub(lambda match: " " * len(match[0]), source.text)
    depth = 0
    for match in re.finditer(r"[(\[{<>}\])]", text):
        depth = depth + 1 if match[0] in "([{<" else max(depth - 1, 0)
        if depth > _MAX_NESTING:
            raise _refused(source, match.start(), f"brackets are nested more than {_MAX_NESTING} deep")
    if run := _MINUS_RUN.search(text):
        raise _refused(source, run.start(), f"more than {_MAX_MINUS_RUN - 1} minus signs in a row")
    if number := _LONG_NUMBER.search(text):
        raise _refused(source, number.start(), "a number of more than 1000 digits")
    if size := _LARGE_SIZE.search(text):
        raise _refused(source, size.start(), "a size of more than ten digits")
    if array := _ARRAY.search(text):
        raise _refused(source, array.start(), f"an array has elements of i1, i8, i16, i32, i64, f32 or f64 here, not {array[1]}")


def parse(source: Source) -> ir.Module:
    """The module of a text, in the current context. Raises DiagnosticError."""
    check_nesting(source)
    try:
        module = ir.Module.parse(source.text)
    except ir.MLIRError as error:
        found = from_mlir_error(error, "does not parse")
    else:
        check_kernels(module)
        return module
    raise DiagnosticError(found if found[0].line else [_custom_form(source) or found[0]])


def _custom_form(source: Source) -> Diagnostic | None:
    """Of text that the parser refuses without a word: it says nothing about custom forms of the project's own operations."""
    text = _SKIPPED.sub(lambda match: " " * len(match[0]), source.text)
    found = _CUSTOM.search(text)
    if found is None:
        return None
    name = found[1]
    message = f"'{name}' has no custom form; write it in quotes, with its operands in brackets: \"{name}\"(...)"
    return _located(source, found.start(1), message)


def _refused(source: Source, offset: int, message: str) -> DiagnosticError:
    return DiagnosticError([_located(source, offset, message)])


def _located(source: Source, offset: int, message: str) -> Diagnostic:
    line, column = source.text.count("\n", 0, offset) + 1, offset - (source.text.rfind("\n", 0, offset) + 1) + 1
    return Diagnostic("error", message, source.name, line, column)
