"""AttentionEngine's quick start runs with its own module names."""

import importlib
import os
import runpy
import subprocess
import sys
import types
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

import attn_mlir
from attn_mlir.errors import ArgumentError

_PROGRAM = Path(__file__).with_name("seed_quick_start.py")
_PYTHON = Path(attn_mlir.__file__).parent.parent
_NAMES = ("attn_mlir.compat", "attn_engine", "core", "core.core", "core.utils")


def _run(arguments: list[str], paths: list[Path]) -> str:
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(map(str, paths))}
    done = subprocess.run([sys.executable, *arguments], env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_with_the_folder_on_the_path() -> None:
    output = _run([str(_PROGRAM), "block_mask"], [_PYTHON, _PYTHON / "attn_mlir" / "compat"])
    assert 0 < float(output.removeprefix("error")) < 3e-3


@pytest.fixture
def fresh() -> Iterator[None]:
    """No compat modules before and after."""
    before = {name: sys.modules.pop(name) for name in _NAMES if name in sys.modules}
    yield
    for name in _NAMES:
        sys.modules.pop(name, None)
    sys.modules.update(before)


@pytest.mark.parametrize("mask", ["block_mask", "mask_mod", "create_block_mask"])
def test_after_importing_compat(fresh: None, mask: str) -> None:
    importlib.import_module("attn_mlir.compat")
    program = runpy.run_path(str(_PROGRAM))
    q, k, v, out = program["main"](mask)
    inputs = [x.detach().double().transpose(1, 2).requires_grad_() for x in (q, k, v)]
    expected = torch.nn.functional.scaled_dot_product_attention(*inputs, is_causal=True).transpose(1, 2)
    assert out.dtype == torch.float16 and out.shape == q.shape and out.is_contiguous()
    torch.testing.assert_close(out.double(), expected, rtol=2e-3, atol=2e-3)
    for x, wanted in zip((q, k, v), torch.autograd.grad(expected, inputs, torch.ones_like(expected)), strict=True):
        torch.testing.assert_close(x.grad.double(), wanted.transpose(1, 2), rtol=4e-3, atol=4e-3)


def test_the_modules_hold_the_names_that_programs_import(fresh: None) -> None:
    importlib.import_module("attn_mlir.compat")

    for module, names in {
        "attn_engine": ("AttentionEngine", "OnlineFunc"),
        "core": ("CustomIO", "SymbolScalar", "SymbolicArray", "SymbolicTensor", "Var", "meta_tensor", "create_block_mask"),
        "core.core": ("CustomIO", "create_block_mask", "SymbolScalar", "Var"),
        "core.utils": ("meta_tensor",),
    }.items():
        for name in names:
            assert getattr(sys.modules[module], name) is getattr(attn_mlir, name)


def test_another_module_of_that_name_is_not_replaced(fresh: None) -> None:
    sys.modules["core"] = types.ModuleType("core")
    with pytest.raises(ArgumentError, match="a module called 'core' is imported already"):
        importlib.import_module("attn_mlir.compat")
    assert not hasattr(sys.modules["core"], "CustomIO")


def test_the_example() -> None:
    example = _PYTHON.parent / "examples" / "seed_quick_start.py"
    output = _run([str(example), "--length", "300", "--heads", "2"], [_PYTHON])
    errors = [float(part.split()[0]) for part in output.split("attn_mlir ")[1:]]
    assert len(errors) == 4 and all(0 < error < 2e-5 for error in errors)
