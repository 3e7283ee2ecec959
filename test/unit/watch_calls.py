"""Calls that find traces of score functions, and count the scans that these take."""

from collections.abc import Callable
from typing import Any

import pytest
import torch

from attn_mlir.frontend import cache
from attn_mlir.frontend.captures import Scan
from attn_mlir.frontend.emit import Inputs
from attn_mlir.frontend.program import Definition, trace

Function = Callable[..., Any]


class Calls:
    """Finds traces of score functions; counts scans."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.cache = cache.TraceCache()
        self.scans = 0
        self.entry: Any = None

        def scan(functions: Any) -> Scan:
            self.scans += 1
            return Scan(functions)

        monkeypatch.setattr(cache, "Scan", scan)

    def __call__(self, score_mod: Function) -> list[Any]:
        """The values of the captures: tensors, then numbers."""
        program = Definition(lambda s: s, score_mod, None, scale=1.0)
        entry, scan = self.cache.find((score_mod,), "form", lambda: trace(program, Inputs("f32", 8, 8)))
        self.entry = entry
        values = entry.captures(scan, 1.0)
        return sorted(values, key=lambda value: not isinstance(value, torch.Tensor))

    def text(self, score_mod: Function) -> str:
        """The trace that a call finds."""
        self(score_mod)
        return self.entry.traced.text
