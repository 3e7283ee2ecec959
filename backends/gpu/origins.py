"""Tells which ops a line of printed code is for: printers mark lines while they are recorded, and what is recorded is taken out again."""

import functools
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Concatenate, ParamSpec, TypeVar

from attn_mlir.mlir import ir

P = ParamSpec("P")
R = TypeVar("R")
Owner = TypeVar("Owner")
_MARK = re.compile(r" ?/\*@(\d+)\*/")


class Origins:
    """The locations of the ops that were printed, by the numbers of their marks."""

    def __init__(self) -> None:
        self.locations: list[str] = []
        self.numbers: dict[str, int] = {}
        self.current: list[int] = []
        self.waiting: list[int] = []

    def number(self, op: ir.Operation) -> int:
        """The number of an op's location."""
        text = str(op.location)
        if text not in self.numbers:
            self.numbers[text] = len(self.locations)
            self.locations.append(text)
        return self.numbers[text]

    def taken_out(self, source: str) -> tuple[tuple[str, ...], tuple[tuple[str, ...], ...]]:
        """The lines of a source without marks, and the locations of each."""
        lines = source.splitlines()
        found = [tuple(dict.fromkeys(self.locations[int(n)] for n in _MARK.findall(line))) for line in lines]
        return tuple(_MARK.sub("", line) for line in lines), tuple(found)


_MOST = 8
"""Scalars of a line that are told."""
_RECORDED: ContextVar[Origins | None] = ContextVar("origins", default=None)


@contextmanager
def recorded() -> Iterator[Origins]:
    """Within it, printers mark their lines."""
    token = _RECORDED.set(Origins())
    try:
        yield _RECORDED.get() or Origins()
    finally:
        _RECORDED.reset(token)


@contextmanager
def printing(op: ir.Operation) -> Iterator[None]:
    """Within it, lines are for an op."""
    origins = _RECORDED.get()
    if origins is None:
        yield
        return
    origins.current.append(origins.number(op))
    try:
        yield
    finally:
        origins.current.pop()


def for_op(method: Callable[Concatenate[Owner, ir.Operation, P], R]) -> Callable[Concatenate[Owner, ir.Operation, P], R]:
    """A method that prints an op, its first argument: the lines that it prints are for this op."""

    @functools.wraps(method)
    def wrapped(self: Owner, op: ir.Operation, *args: P.args, **kwargs: P.kwargs) -> R:
        with printing(op):
            return method(self, op, *args, **kwargs)

    return wrapped


def used(op: ir.Operation) -> None:
    """Tells that the next statement of scalars holds an op."""
    origins = _RECORDED.get()
    if origins is not None:
        origins.waiting.append(origins.number(op))


def marked(line: str) -> str:
    """A line of code; while printers are recorded, with the marks of the op that it is for and of the scalars that it holds."""
    origins = _RECORDED.get()
    if origins is None or not line.strip() or line.lstrip().startswith("#") or line.endswith("\\"):
        return line
    numbers, origins.waiting = [*origins.waiting[-_MOST:], *origins.current[-1:]], []
    return line + "".join(f" /*@{number}*/" for number in dict.fromkeys(numbers))
