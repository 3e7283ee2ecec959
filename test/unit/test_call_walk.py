"""A warm call of attention enters each source file once, and costs the host no more than it did."""

import importlib.util
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch

import attn_mlir


@pytest.fixture(scope="module")
def tool() -> ModuleType:
    path = Path(__file__).resolve().parents[2] / "benchmarks/call_walk.py"
    spec = importlib.util.spec_from_file_location("call_walk", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["call_walk"] = module
    spec.loader.exec_module(module)
    return module


def returns_before_the_backend(found: Any) -> int:
    """Those of the package itself: results of kernels are poisoned under pytest."""
    own = [file for file in found.stays if file.startswith("python/")]
    return len(own) - len(set(own))


def test_attention_enters_each_file_once(tool: ModuleType) -> None:
    q, k, v = torch.randn(3, 1, 1, 1, 16).unbind(0)
    causal = attn_mlir.masks.causal()
    found = tool.walk(lambda: attn_mlir.attention(q, k, v, mask_mod=causal))
    assert found.steps[0] == ("python/attn_mlir/api/attention.py", "attention")
    assert returns_before_the_backend(found) == 0
    assert found.opcodes < 1500, "a warm call takes more Python than before: see docs/dispatch.md"

    module = attn_mlir.Attention(mask_mod=causal)
    again = tool.walk(lambda: module(q, k, v))
    assert returns_before_the_backend(again) == 0


def test_a_walk_counts_returns(tool: ModuleType) -> None:
    steps = tuple((file, "f") for file in "aabcab")
    found = tool.Walk(steps, 0)
    assert found.stays == ["a", "b", "c", "a", "b"]
    assert (found.files, found.returns) == (3, 2)
