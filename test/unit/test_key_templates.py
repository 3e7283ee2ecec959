"""What calls on lists of keys keep for the next ones of their shapes: nothing of the tensors, and nothing that may change."""

import gc
import weakref
from typing import Any

import numpy as np
import pytest
import torch

from amd_tools import needs_host_clang
from attn_mlir import attention, gated_delta_rule
from attn_mlir.api.dropout import NONE
from attn_mlir.api.inputs import check_inputs
from attn_mlir.api.key_lists import check_key_lists
from attn_mlir.api.key_pages import paged_call
from attn_mlir.api.options import Options
from attn_mlir.api.rows import softmax
from attn_mlir.runtime.key_lists import fold

INDEX = torch.tensor([[0, 2], [1, 3]], dtype=torch.int32)[None, None]


@needs_host_clang
def test_no_tensor_is_kept() -> None:
    """A cache that grows gives its former memory back."""
    arrays = []
    index = torch.zeros(1, 1, 1, 1, dtype=torch.int32)
    for blocks in range(1, 8):
        made: Any = [np.zeros((1, 1, 16 * blocks, 16), np.float16) for _ in range(2)]
        arrays += [weakref.ref(x) for x in made]
        k, v = (torch.from_numpy(x) for x in made)
        del made
        attention(torch.randn(1, 1, 1, 16).half(), k, v, key_index=index, key_block=(1, 16), device="hip-emulated")
        del k, v
    gc.collect()
    assert not any(reference() is not None for reference in arrays)


@needs_host_clang
@pytest.mark.parametrize("gradients", [False, True])
def test_a_scale_that_changes(gradients: bool) -> None:
    torch.manual_seed(0)
    q, k, v = (torch.randn(1, 1, length, 16).bfloat16() for length in (32, 64, 64))
    scale: Any = torch.tensor(0.5)
    for value in (0.5, 2.0, 0.5):
        scale.fill_(value)
        made = []
        for device in ("hip-emulated", "cpu"):
            x: Any = [(z if device != "cpu" else z.float()).clone().requires_grad_(gradients) for z in (q, k, v)]
            o = attention(*x, key_index=INDEX, key_block=(16, 16), scale=scale, device=device)
            made.append([o, *(torch.autograd.grad(o.float().square().sum(), x) if gradients else ())])
        assert all((a.float() - b).abs().max() < 2e-2 * b.abs().max() for a, b in zip(*made, strict=True))


@needs_host_clang
@pytest.mark.parametrize("options", [{"scale": np.array(0.5)}, {"layout": ["bhsd", "bhsd"]}], ids=str)
def test_options_without_a_hash(options: dict[str, Any]) -> None:
    q, k, v = (torch.randn(1, 1, length, 16).bfloat16() for length in (32, 64, 64))
    found = attention(q, k, v, key_index=INDEX, key_block=(16, 16), device="hip-emulated", **options)
    wanted = attention(q.float(), k.float(), v.float(), key_index=INDEX, key_block=(16, 16), **options)
    assert (found.float() - wanted).abs().max() < 2e-2


def test_queries_that_are_a_slice() -> None:
    """Of a projection of more, whose heads are rows: the second call, too."""
    q = torch.randn(2, 1, 48, 16).half()[:, :, :16].transpose(1, 2)
    k, v = (torch.randn(2, 1, 128, 16).half() for _ in range(2))
    index = torch.zeros(2, 1, 1, 1, dtype=torch.int32)
    options = Options((None, None, None, None, None, softmax), device="hip-emulated", lse=True)
    problem = check_inputs(q, k, v, "bhsd")
    form = check_key_lists(index, (1, 64), problem.sizes, problem.device)
    made: Any = [paged_call((q, k, v), options, NONE, (index, form, problem), decoded=False, folded=fold(q, 16)) for _ in range(2)]
    assert all(torch.equal(x, y) for x, y in zip(made[0].call.values[:3], made[1].call.values[:3], strict=True))


@pytest.mark.parametrize("segment", [None, 0, 512])
def test_a_delta_rule_of_any_length_is_exported(segment: int | None) -> None:
    """Segments decide about nothing that is kept on the CPU."""

    class Rule(torch.nn.Module):
        def forward(self, q: Any, k: Any, v: Any, g: Any, beta: Any) -> Any:
            return gated_delta_rule(q, k, v, g, beta, segment_size=segment)[0]

    def drawn(length: int) -> Any:
        q, k, v = (torch.nn.functional.normalize(torch.randn(1, length, 2, 8), dim=-1) for _ in range(3))
        return [x.requires_grad_() for x in (q, k, v, -torch.rand(1, length, 2), torch.rand(1, length, 2))]

    length: Any = torch.export.Dim("T", min=2, max=4096)
    exported: Any = torch.export.export(Rule(), tuple(drawn(24)), dynamic_shapes=({1: length},) * 5).module()
    given = drawn(700)
    assert (exported(*given) - Rule()(*given)).abs().max() < 1e-5
