"""Places in messages."""

import pytest

from attn_mlir.diagnostics import source_line
from attn_mlir.mlir import ir


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ('loc("model.py":12:4)', "model.py:12"),
        ('loc("score"("model.py":12:4))', "model.py:12"),
        ('loc(callsite("f"("inner.py":3:1) at "outer.py":9:1))', "inner.py:3"),
        ('loc(fused["part", "model.py":7:2])', "model.py:7"),
        ('loc("score")', "score"),
        ("loc(unknown)", "somewhere"),
    ],
)
def test_source_line(text: str, told: str) -> None:
    with ir.Context():
        assert source_line(ir.Module.parse(f"module {{}} {text}").operation.location) == told
