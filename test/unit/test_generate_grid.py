"""attn-generate over a grid of traits: the manifest names the kernels that a call of the Python API compiles, forward and backward."""

import hashlib
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
import torch

import attn_mlir
from attn_mlir import driver
from attn_mlir.backends.nvidia import driver as nvidia
from attn_mlir.backends.nvidia.program import NvidiaLaunchPlan
from attn_mlir.tools.fmha.problem import score_mod
from attn_mlir.tools.generate import Instance
from attn_mlir.tools.generate.instance import DTYPES, ROWS
from generate_calls import generated

_MASKS = {"0": "0", "t": "t", "b": "b", "t:1,1": "t:5,3", "b:1,1": "b:9,2", "b:1,1,1": "b:7,3,2"}
"""Masks of instances, and those of calls that have other numbers."""
_COMMON = '"fp16", 64', '"bf16", 128'
_FORWARD = [
    *[f'Instance("fwd", {common}, mask="{mask}")' for common in _COMMON for mask in _MASKS],
    'Instance("fwd", "fp16", 128, mask="t", lse=True, soft_cap=True)',
    'Instance("fwd", "bf16", 64, mask="b:1,1", dropout=True, layout="bshd")',
    'Instance("fwd", "fp16", 32, mask="t", bias="e:1")',
    'Instance("fwd", "bf16", 128, mask="0", bias="e:2", lse=True)',
    'Instance("fwd", "fp16", 128, mask="t", bias="a:0")',
    *[f'Instance("fwd", "bf16", 64, row="{row}", mask="t")' for row in ("softmax1", "sigmoid", "relu_normalized")],
]
_BACKWARD = [
    *[f'Instance("bwd", "fp16", 64, mask="{mask}")' for mask in ("0", "t", "b:1,1")],
    'Instance("bwd", "bf16", 128, mask="t", deterministic=True)',
    'Instance("bwd", "fp16", 64, mask="t", soft_cap=True, layout="bshd")',
    'Instance("bwd", "bf16", 64, mask="t", bias="e:1", bias_gradient=True)',
    'Instance("bwd", "bf16", 64, row="sigmoid", mask="b")',
]


@pytest.fixture(scope="module", params=[_FORWARD, _BACKWARD], ids=["fwd", "bwd"])
def made(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[list[Instance], dict[str, Any]]:
    """The instances, and their manifest for sm_90a."""
    folder: Path = tmp_path_factory.mktemp("grid")
    file = folder / "grid.py"
    file.write_text(f"from attn_mlir.tools.generate import Instance\ninstances = [{', '.join(request.param)}]\n")
    instances = [eval(text, {"Instance": Instance}) for text in request.param]
    return instances, generated(folder / "o", "--instances", str(file), "--target", "sm_90a")


def call(instance: Instance) -> None:
    """Calls attention with what the instance's traits say, and other sizes and numbers than it was traced with."""
    dtype, heads_first = DTYPES[instance.dtype], instance.layout == "bhsd"
    sizes = (4, 40, instance.head_dim), (2, 50, instance.head_dim), (2, 50, instance.columns)
    q, k, v = (torch.randn((1, h, s, d) if heads_first else (1, s, h, d)).to(dtype) for h, s, d in sizes)
    mask, score, rank = _MASKS[instance.mask], None, instance.bias_kind[-1]
    if instance.soft_cap:
        score = attn_mlir.mods.softcap(7.0)
    if instance.bias_kind[0] == "e":
        bias = torch.randn(3 if rank == "2" else 1, 4 if rank != "0" else 1, 40, 50).to(dtype).requires_grad_(instance.bias_gradient)
        q, k, v = (x.repeat(3 if rank == "2" else 1, 1, 1, 1) for x in (q, k, v))
        score = attn_mlir.mods.bias(bias)
    if instance.bias_kind[0] == "a":
        score = score_mod(0.0, None, torch.randn(1, 4), instance.mask)  # slopes of each head times the distance
    if instance.backward:
        q, k, v = (x.requires_grad_() for x in (q, k, v))
    o = attn_mlir.attention(
        q, k, v, ROWS[instance.row] if isinstance(instance.row, str) else instance.row, score, None if mask == "0" else mask, 0.3,
        layout=instance.layout, return_lse=instance.lse, deterministic=instance.deterministic, dropout_p=0.2 if instance.dropout else 0.0,
        dropout_seed=(5, 6) if instance.dropout else None,
    )  # fmt: skip
    if instance.backward:
        o.sum().backward()


def kernels_of(program: NvidiaLaunchPlan) -> set[str]:
    """Hashes of a program's kernels, and of those that take their place for more keys."""
    found = {hashlib.sha256(unit.code.source.encode()).hexdigest() for unit in program.units.values()}
    longer = program.longer()
    return found if longer is None else found | kernels_of(longer)


def test_the_manifest_names_what_python_compiles(made: tuple[list[Instance], dict[str, Any]]) -> None:
    instances, manifest = made
    assert [each["name"] for each in manifest["instances"]] == [each.name for each in instances]
    compile_, derive = driver.compile, driver.compile_derivative
    wrong = []
    for instance, entry in zip(instances, manifest["instances"], strict=True):
        seen: list[tuple[Any, ...]] = []

        def compiled(text: str, device: str, seen: list[Any] = seen) -> Any:
            seen.append((text,))
            return compile_(text, device)

        def derived(text: str, device: str, *more: Any, seen: list[Any] = seen) -> Any:
            seen.append((text, *more))
            return derive(text, device, *more)

        with mock.patch.object(driver, "compile", compiled), mock.patch.object(driver, "compile_derivative", derived):
            call(instance)
        programs = [gpu_program(*asked) for asked in seen]
        wanted = {kernel for program in programs for kernel in kernels_of(program)}
        if not wanted or wanted != {kernel["sha256"] for kernel in entry["kernels"]}:
            wrong.append(instance.name)
    assert not wrong


def gpu_program(text: str, function: str = "", wrt: Any = (), deterministic: bool = False, segment: int = 0) -> NvidiaLaunchPlan:
    """What the same call compiles for a GPU."""
    if function:
        return nvidia.derivative_for_gpu(text, function, wrt, deterministic, segment)
    made = nvidia.compile_module(text).program
    assert isinstance(made, NvidiaLaunchPlan)
    return made
