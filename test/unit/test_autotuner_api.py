"""attention_autotuner's functions: results and gradients against float64, their module names, mistakes."""

import importlib
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

import attn_mlir
from attn_mlir.api.arch import A100, MI250, RTX4090
from attn_mlir.errors import ArgumentError
from attn_mlir.integrations.autotuner import RetNetAttn, RetNetAttnFunc, flash_attn_func

_PYTHON = Path(attn_mlir.__file__).parent.parent


def inputs(heads: int = 4, groups: int = 4, queries: int = 67, keys: int = 83, dim: int = 32, value_dim: int = 16) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    shapes = ((2, heads, queries, dim), (2, groups, keys, dim), (2, groups, keys, value_dim))
    return [torch.randn(*shape, generator=generator).requires_grad_() for shape in shapes]


def scores(q: torch.Tensor, k: torch.Tensor) -> torch.Tensor:
    return q @ k.repeat_interleave(q.shape[1] // k.shape[1], 1).mT


def weighted(p: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    return p @ v.repeat_interleave(p.shape[1] // v.shape[1], 1)


def check(o: torch.Tensor, leaves: list[torch.Tensor], known: torch.Tensor, exact: list[torch.Tensor]) -> None:
    """o and the gradients of the leaves."""
    do = torch.randn(o.shape, generator=torch.Generator().manual_seed(1))
    made, wanted = torch.autograd.grad(o, leaves, do.to(o.dtype)), torch.autograd.grad(known, exact, do.double())
    tolerance = 3e-5 if o.dtype == torch.float32 else 4e-3
    for x, y in zip((o, *made), (known, *wanted), strict=True):
        assert (x.double() - y).abs().max() <= tolerance * max(1.0, y.abs().max().item())


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("groups", [4, 2])
def test_flash_attn_func(causal: bool, groups: int) -> None:
    leaves = q, k, v = inputs(groups=groups)
    exact = [x.detach().double().requires_grad_() for x in leaves]
    keep = torch.ones(67, 83, dtype=torch.bool).tril() if causal else torch.ones(67, 83, dtype=torch.bool)
    for scale in (None, 0.125):
        s = scores(*exact[:2]) * (32**-0.5 if scale is None else scale)
        known = weighted(s.masked_fill(~keep, -torch.inf).softmax(-1), exact[2])
        check(flash_attn_func(q, k, v, A100(), causal, scale=scale), leaves, known, exact)


@pytest.mark.parametrize("causal", [False, True])
def test_retention(causal: bool) -> None:
    leaves = inputs(groups=2)
    exact = [x.detach().double().requires_grad_() for x in leaves]
    for heads in (4, 1):
        mask = torch.randn(heads, 67, 83, requires_grad=True)
        s = scores(*exact[:2]) * mask.detach().double()
        s = s * torch.ones(67, 83).tril() if causal else s
        known = weighted(s / s.abs().sum(-1, keepdim=True).clamp(min=1).detach(), exact[2])
        o = RetNetAttnFunc(*leaves, mask, RTX4090(), causal)
        check(o, leaves, known, exact)
        assert torch.equal(RetNetAttn.apply(*leaves, mask, RTX4090(), causal=causal), o)
        assert torch.autograd.grad(o.sum(), mask, allow_unused=True) == (None,)


def test_half_precision_and_devices() -> None:
    q, k, v = (x.detach().half()[:1, :2] for x in inputs())
    mask = torch.rand(2, 67, 83).half()
    exact = [x.double() for x in (q, k, v)]
    known = weighted((scores(*exact[:2]) * 32**-0.5).softmax(-1), exact[2])
    s = scores(*exact[:2]) * mask.double()
    retained = weighted(s / s.abs().sum(-1, keepdim=True).clamp(min=1), exact[2])
    for device_type in (MI250(), "cpu", "hip-emulated"):
        torch.testing.assert_close(flash_attn_func(q, k, v, device_type).double(), known, rtol=4e-3, atol=4e-3)
        torch.testing.assert_close(RetNetAttnFunc.apply(q, k, v, mask, device_type).double(), retained, rtol=4e-3, atol=4e-3)


def test_inside_torch_compile() -> None:
    q, k, v = inputs()
    mask = torch.rand(4, 67, 83)

    def both(q: Any, k: Any, v: Any, mask: Any) -> Any:
        return flash_attn_func(q, k, v, A100(), causal=True) + RetNetAttnFunc.apply(q, k, v, mask, A100())

    o = torch.compile(both, fullgraph=True, backend="aot_eager")(q, k, v, mask)
    torch.testing.assert_close(o, both(q, k, v, mask))


def test_mistakes() -> None:
    q, k, v = (x.detach() for x in inputs())
    wrong: Any = 0.125
    mask = torch.ones(4, 67, 83)
    cases: list[tuple[Any, str]] = [
        (lambda: flash_attn_func(q, k, v, A100), "device_type is the class A100; pass an instance: A100()"),
        (lambda: flash_attn_func(q, k, v, 0.125), 'is a description of a GPU such as A100.., or a device such as "cpu", got float'),
        (lambda: flash_attn_func(q, k, v, A100(), wrong), "causal is True or False, got 0.125"),
        (lambda: RetNetAttnFunc(q, k, v, mask[None], A100()), "mask must be a tensor .heads, queries, keys., got shape .1, 4, 67, 83."),
        (lambda: RetNetAttnFunc(q, k, v, mask[:, :5], A100()), "mask has shape .4, 5, 83., but q and k make it .4, 67, 83., or 1"),
        (lambda: RetNetAttnFunc(q, k, v, A100(), mask), "mask must be a tensor .heads, queries, keys., got A100"),
        (lambda: flash_attn_func(q, k[:, :3], v, A100()), "v has 4 heads but k has 3"),
    ]
    for call, text in cases:
        with pytest.raises(ArgumentError, match=text):
            call()


_PROGRAM = """
import torch
{first}
from ops.attention_interface import flash_attn_func
from ops.retnet_interface import RetNetAttnFunc
from ops import flash_attn_func as same
from arch import A100, RTX4090, H100, H200, MI250, MI300X
from autotuner.arch import H100 as theirs
from core.transform.core import create_mask
assert same is flash_attn_func and theirs is H100
batch, heads, seqlen_q, seqlen_kv, dim_qk, dim_v = 1, 2, 40, 50, 64, 32
device, dtype = torch.device("cpu"), torch.float16
device_type = A100()
q = torch.randn(batch, heads, seqlen_q, dim_qk, device=device, dtype=dtype, requires_grad=True)
k = torch.randn(batch, heads, seqlen_kv, dim_qk, device=device, dtype=dtype)
v = torch.randn(batch, heads, seqlen_kv, dim_v, device=device, dtype=dtype)
o = flash_attn_func(q,k,v,device_type)
device_type = RTX4090()
mask = torch.randn(heads, seqlen_q, seqlen_kv, device=device, dtype=dtype)
o = RetNetAttnFunc(q, k, v, mask, device_type)
do = torch.randn(batch, heads, seqlen_q, dim_v, device=device, dtype=dtype)
o.backward(do)
print(tuple(o.shape), q.grad.isfinite().all().item())
"""


def test_their_program_runs(capsys: pytest.CaptureFixture[str]) -> None:
    exec(_PROGRAM.format(first="import attn_mlir.compat"), {})
    assert capsys.readouterr().out == "(1, 2, 40, 32) True\n"


def test_their_program_runs_with_the_folder_on_the_path() -> None:
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join((str(_PYTHON), str(_PYTHON / "attn_mlir" / "compat")))}
    done = subprocess.run([sys.executable, "-c", _PROGRAM.format(first="")], env=environment, capture_output=True, text=True, check=False)
    assert done.stdout == "(1, 2, 40, 32) True\n", done.stderr


def test_packages_of_the_program_go_first() -> None:
    compat = importlib.import_module("attn_mlir.compat")
    finders = [getattr(finder, "__name__", "") for finder in sys.meta_path]
    assert finders.index("_Last") > finders.index("PathFinder")
    found = {name: compat._Last.find_spec(name) is not None for name in ("ops", "arch", "autotuner", "json", "core", "compat", "math")}
    assert [name for name, exists in found.items() if exists] == ["ops", "arch", "autotuner"]
    assert compat._Last.find_spec("ops", ["somewhere"]) is None
