"""`torch.set_default_device` and default dtypes are the user's: what the library makes for itself says where and of which type."""

import ast
import functools
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from attn_mlir import attention, attention_varlen, linear_attention, masks, merge

ROOT = Path(__file__).parents[2]
MAKERS = {
    *("arange", "as_tensor", "asarray", "empty", "empty_strided", "eye", "full", "linspace", "logspace", "ones", "rand", "randint"),
    *("randn", "randperm", "scalar_tensor", "tensor", "zeros"),
}
LIBRARY = [path for folder in ("backends", "passes", "python/attn_mlir") for path in sorted((ROOT / folder).rglob("*.py"))]
OWN = ("tools", "testing", "doctor.py")
"""Programs of their own, in which nobody sets a default."""


def made_anywhere(source: str) -> list[int]:
    """The lines on which torch makes a tensor wherever its default is."""
    calls = [node for node in ast.walk(ast.parse(source)) if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute)]
    of_torch = [call for call in calls if isinstance(call.func.value, ast.Name) and call.func.value.id == "torch"]  # type: ignore[attr-defined]
    makes = [call for call in of_torch if call.func.attr in MAKERS]  # type: ignore[attr-defined]
    return [call.lineno for call in makes if not {keyword.arg for keyword in call.keywords} & {"device", None}]


def test_every_tensor_says_where() -> None:
    inside = [path for path in LIBRARY if not set(OWN) & set(path.relative_to(ROOT).parts)]
    found = [f"{path.relative_to(ROOT)}:{line}" for path in inside for line in made_anywhere(path.read_text())]
    assert made_anywhere("torch.zeros(3)\ntorch.zeros(3, device=x)\ntorch.zeros_like(x)\ntorch.arange(2)") == [1, 4] and len(inside) > 300
    assert not found, found


class Passed(TorchDispatchMode):
    """Changes nothing; calls are those of operators then."""

    def __torch_dispatch__(self, function: Any, types: Any, arguments: Any = (), options: Any = None) -> Any:
        return function(*arguments, **(options or {}))


def parts() -> list[torch.Tensor]:
    """Partial results, lists of keys, one query in parts, several sequences, pages; with gradients."""
    generator = torch.Generator().manual_seed(0)
    draw = functools.partial(torch.randn, generator=generator, device="cpu", dtype=torch.float32)
    q, k, v = (draw(1, 2, 9, 16).requires_grad_() for _ in range(3))
    place: dict[str, Any] = {"q_len": 9, "kv_len": 9}
    one = attention(q, k[:, :, :4], v[:, :, :4], return_partial=True, **place)
    two = attention(q, k[:, :, 4:], v[:, :, 4:], return_partial=True, kv_offset=4, **place)
    made: list[Any] = [merge(one, two).finalize()]
    index = torch.tensor([0, 2, 8], device="cpu", dtype=torch.int32).expand(1, 2, 9, 3)
    made.append(attention(q, k, v, key_index=index, key_block=(1, 1)))
    x, offsets = [y[0].transpose(0, 1) for y in (q, k, v)], torch.tensor([0, 4, 9], dtype=torch.int32, device="cpu")
    made.append(attention_varlen(x[0], x[1], x[2], offsets, offsets, mask_mod=masks.causal()))
    made.append(linear_attention(q, k, v, -draw(1, 2, 9).abs()))
    made += torch.autograd.grad(torch.cat([o.flatten() for o in made]).square().sum(), (q, k, v))
    with torch.no_grad():
        made.append(attention(q[:, :, :1], k, v, num_splits=2))
        cached, used = draw(4, 4, 2, 16), torch.tensor([5, 3], dtype=torch.int32, device="cpu")
        table = torch.tensor([[0, 1], [2, 3]], dtype=torch.int32, device="cpu")
        made.append(attention_varlen(x[0][:2], cached, cached, used.new_tensor([0, 1, 2]), seqused_k=used, block_table=table))
    return [each if isinstance(each, torch.Tensor) else each[0] for each in made]


@pytest.mark.parametrize("mode", ["device", "dtype", "dispatch"])
def test_modes_change_nothing(mode: str) -> None:
    """A default device that no tensor of a call is on, another default dtype, a mode of torch that sees operators."""
    wanted, before = parts(), torch.get_default_dtype()
    if mode == "dtype":
        torch.set_default_dtype(torch.float64)
    try:
        with torch.device("meta") if mode == "device" else Passed() if mode == "dispatch" else nullcontext():
            found = parts()
    finally:
        torch.set_default_dtype(before)
    for one, other in zip(found, wanted, strict=True):
        torch.testing.assert_close(one, other, atol=1e-5, rtol=1e-5)
