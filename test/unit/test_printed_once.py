"""Kernels that plans print are emitted as they were printed then, and are others where anything changed in between."""

from pathlib import Path
from typing import Any

import pytest

from attn_mlir.backends.amd import codegen, mfma, pipeline
from attn_mlir.backends.amd import driver as amd
from attn_mlir.backends.gpu import attributes, printed
from attn_mlir.backends.gpu.scheduled import scheduled
from attn_mlir.backends.nvidia import driver as nvidia
from attn_mlir.backends.nvidia import hopper
from attn_mlir.backends.program import OUTLINE, function_named
from attn_mlir.dialects import loaded

SOFTMAX = (Path(__file__).parent.parent / "Inputs" / "softmax-f16.mlir").read_text()
OTHER = SOFTMAX.replace("0.125", "0.25")


def printed_again(*_: Any) -> None:
    raise AssertionError("printed again")


def test_programs_print_each_kernel_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ATTN_MLIR_CACHE", "off")
    monkeypatch.setattr(mfma, "emit", printed_again)
    monkeypatch.setattr(hopper, "emit", printed_again)
    monkeypatch.setattr("attn_mlir.backends.nvidia.codegen.preferred", lambda kernel, fields: fields)
    assert amd._units(OTHER, "attention", OUTLINE, {"arch": "gfx90a"})[1]
    assert nvidia._lower(OTHER, "attention", OUTLINE, {"arch": "sm_90a"})[1]


def test_a_changed_kernel_is_printed_again() -> None:
    """`take` gives code once, and only that of the function as it is."""
    with loaded() as context:
        module, host = scheduled(context, OTHER, "attention", OUTLINE, {"arch": "gfx90a"}, pipeline.KERNEL, "AMD")
        kernel = function_named(module, host.steps[0].kernel)
        fields = attributes.read(kernel, attributes.SCHEDULE)
        assert fields["reverse"] == 1
        kernel.attributes[attributes.SCHEDULE] = attributes.write({**fields, "reverse": 0})
        changed = codegen.emit(kernel).source
        kernel.attributes[attributes.SCHEDULE] = attributes.write(fields)
        known = printed.take(kernel)
        assert known is not None and printed.take(kernel) is None
        assert codegen.emit(kernel) == known and known.source != changed
