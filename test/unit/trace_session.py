"""A cache of traces that counts how often it traces."""

from collections.abc import Callable
from typing import Any

from attn_mlir.frontend.cache import TraceCache
from attn_mlir.frontend.emit import Inputs
from attn_mlir.frontend.program import Definition, Traced, trace

Function = Callable[..., Any]


def identity(s: Any) -> Any:
    return s


class Session:
    """Counts traces."""

    def __init__(self, inputs: Inputs | None = None) -> None:
        self.inputs = Inputs("f32", 8, 8) if inputs is None else inputs
        self.cache = TraceCache()
        self.traces = 0

    def call(self, score_mod: Function | None = None, mask_mod: Function | None = None) -> tuple[Traced, list[Any]]:
        """The trace that a call would use, and the values of its captures."""
        program = Definition(identity, score_mod, mask_mod, scale=1.0)

        def make() -> Traced:
            self.traces += 1
            return trace(program, self.inputs)

        entry, scan = self.cache.find(program.functions, "form", make)
        return entry.traced, entry.captures(scan, 1.0)
