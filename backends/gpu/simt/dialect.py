"""What differs between C++ for GPUs of one vendor and another."""

from collections.abc import Callable
from dataclasses import dataclass

MOST_THREADS = 1024
"""Threads of a block on all GPUs we know."""


@dataclass(frozen=True)
class Dialect:
    """C++ expressions and phrases of a language for GPUs.

    `thread` is the number of a thread in its block, `place` are the three coordinates of a block. `neighbour(x, step)` is x in the thread
    whose number differs in the bit `step`. `head(threads, name, parameters)` begins a kernel.
    `change` has the last word on a finished text. `wave`: how many threads exchange values directly.
    """

    language: str
    arch: str
    includes: str
    device: str
    thread: str
    place: tuple[str, str, str]
    shared: str
    barrier: str
    add: str
    wave: int
    neighbour: Callable[[str, str], str]
    head: Callable[[int, str, str], str]
    blocks: str | None = None
    """How many blocks of rows there are; without it, the kernel has a parameter that tells."""
    change: Callable[[str], str] = str
    flags: tuple[str, ...] = ()
    around: tuple[str, str] = ("", "")
    """Statements before and after all others."""
