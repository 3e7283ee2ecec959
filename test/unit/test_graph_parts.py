"""Attention where torch lacks what taking it into graphs needs: graphs break at it, with the same results."""

from types import SimpleNamespace

import pytest
import torch

from attn_mlir.api import graph_parts


def test_graphs_break_without_the_operator(monkeypatch: pytest.MonkeyPatch) -> None:
    def add_one(x: torch.Tensor) -> torch.Tensor:
        return x + float(not torch.compiler.is_compiling())

    assert graph_parts.graph_part(add_one) is add_one
    monkeypatch.setattr(graph_parts, "wrap", SimpleNamespace())
    outside = graph_parts.graph_part(add_one)

    def twice(x: torch.Tensor) -> torch.Tensor:
        return outside(x * 2) * 2

    x = torch.ones(3)
    assert torch.equal(torch.compile(twice, backend="eager")(x), twice(x))
    torch._dynamo.reset()
    with pytest.raises(torch._dynamo.exc.Unsupported, match="add_one"):
        torch.compile(twice, backend="eager", fullgraph=True)(x)
