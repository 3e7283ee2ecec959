"""Scans with rows whose values a function changes where they lie in shared memory, against float64 recurrences."""

import pytest
import torch

from attn_mlir import linear_attention
from attn_mlir.backends.gpu import attributes
from attn_mlir.backends.gpu.scheduled import scheduled
from attn_mlir.backends.nvidia import pipeline
from attn_mlir.backends.program import prepare_derivative
from attn_mlir.errors import UnsupportedError
from attn_mlir.frontend.emit import Inputs
from attn_mlir.frontend.linear import LinearDefinition, trace_linear
from attn_mlir.passes.regions import find_all
from contexts import loaded_context
from linear_reference import error, reference


def curved(x: torch.Tensor) -> torch.Tensor:
    return x * torch.exp(-x * x)


def drawn(dtype: torch.dtype) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(5)
    q, k, v = (torch.randn(1, h, 70, 64, generator=generator).to(dtype) for h in (1, 1, 2))
    return [q, k * 0.125, v, torch.nn.functional.logsigmoid(torch.randn(1, 2, 70, generator=generator) + 1)]


@pytest.mark.parametrize(("dtype", "bar"), [(torch.float16, 1e-3), (torch.bfloat16, 8e-3)], ids=str)
def test_the_state_reads_values_once_changed(dtype: torch.dtype, bar: float) -> None:
    q, k, v, g = drawn(dtype)
    o = linear_attention(q, k, v, g, v_mod=curved, device="cuda-emulated")
    wanted, _ = reference(q.double(), k.double(), v.double(), g.double(), v_mod=curved)
    assert error(o, wanted) < bar


def test_values_that_are_read_as_loaded_too_stay_with_another_emitter() -> None:
    """A skip multiplies what no function has changed."""
    q, k, v, g = drawn(torch.float16)
    with pytest.raises(UnsupportedError, match="changes a tile in its place that others read as it was loaded"):
        linear_attention(q, k, v, g, v_mod=curved, skip_mod=lambda b, h, t: 0.5, device="cuda-emulated")
    with loaded_context():
        traced = trace_linear(LinearDefinition(decay="step", v_mod=curved, skip_mod=lambda b, h, t: 0.5), Inputs("f16", 128, 64))
        name, prepare = prepare_derivative("", [], segment=0)
        module, _ = scheduled(loaded_context(), traced.text, name, prepare, {"arch": "sm_90a"}, pipeline.KERNEL, "NVIDIA")
        (kernel,) = (op for op in find_all(module.operation, "func.func") if "tile.kernel" in op.attributes)
        assert attributes.read(kernel, attributes.SCHEDULE)["emitter"] != "warp"
