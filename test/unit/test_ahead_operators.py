"""Packages of AOTInductor: here, in a new process, and in one without Python, for which a library made ahead of time has the operators."""

import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

import attn_mlir
from ahead_calls import plain_host
from attn_mlir.api.ahead_operators import _programs
from attn_mlir.errors import ArgumentError, UnsupportedError
from test_export import DYNAMIC, Model, compare, qkv

CXX = shutil.which(os.environ.get("CXX") or "g++")
pytestmark = pytest.mark.skipif(CXX is None, reason="AOTInductor needs a C++ compiler")
SOURCE = Path(__file__).parents[1] / "Inputs" / "run_package.cpp"
TORCH = Path(torch.__file__).parent


def build(folder: Path) -> Path:
    """The C++ program, by clang where it is: it takes two thirds of the time of g++ for torch's headers."""
    compiler = (shutil.which("clang++-22") if "CXX" not in os.environ else None) or str(CXX)
    include = [f"-I{TORCH / 'include' / part}" for part in ("", "torch/csrc/api/include")]
    libraries = [f"-L{TORCH / 'lib'}", f"-Wl,-rpath,{TORCH / 'lib'}", "-ltorch", "-ltorch_cpu", "-lc10", "-ldl"]
    abi = f"-D_GLIBCXX_USE_CXX11_ABI={int(torch.compiled_with_cxx11_abi())}"
    subprocess.run([compiler, "-std=c++20", "-O0", abi, *include, str(SOURCE), "-o", str(folder / "run"), *libraries], check=True)
    return folder / "run"


@pytest.fixture(scope="module")
def packaged(tmp_path_factory: pytest.TempPathFactory) -> tuple[Model, Any, Path]:
    """A model, its exported graph, and the folder that holds the package aoti.pt2 of it."""
    model, folder = Model(trained=False), tmp_path_factory.mktemp("package")
    exported = torch.export.export(model, qkv(), dynamic_shapes=DYNAMIC)
    quick = {"aot_inductor.compile_wrapper_opt_level": "O0", "aot_inductor.precompile_headers": False}
    torch._inductor.aoti_compile_and_package(exported, package_path=str(folder / "aoti.pt2"), inductor_configs=quick)
    return model, exported, folder


_RUN = """
import sys
import attn_mlir
import torch
folder = sys.argv[1]
tensors, wanted = torch.load(folder + "/results.pt")
for graph in (torch.export.load(folder + "/model.pt2").module(), torch._inductor.aoti_load_package(folder + "/aoti.pt2")):
    assert all(torch.equal(one, other) for one, other in zip(graph(*tensors), wanted, strict=True))
assert not any(name.startswith("attn_mlir.api") for name in sys.modules), "found by nothing but `import attn_mlir`"
"""


def test_packages_run_here_and_in_a_new_process(packaged: tuple[Model, Any, Path]) -> None:
    model, exported, folder = packaged
    torch.export.save(exported, folder / "model.pt2")
    package = torch._inductor.aoti_load_package(str(folder / "aoti.pt2"))
    for b, length in ((2, 17), (3, 40)):
        tensors = qkv(b, length)
        compare(package(*tensors), model(*tensors))
        torch.save((tensors, model(*tensors)), folder / "results.pt")
    made = subprocess.run([sys.executable, "-c", _RUN, str(folder)], capture_output=True, text=True)
    assert made.returncode == 0, made.stderr[-3000:]


def test_a_package_runs_without_python(packaged: tuple[Model, Any, Path], tmp_path: Path) -> None:
    """Attention with captures and with a row output, an engine, a linear attention with its state; lengths that were not exported."""
    model, exported, folder = packaged
    library = attn_mlir.compile_operators(exported, tmp_path / "liboperators.so")
    shutil.copy(folder / "aoti.pt2", tmp_path)
    program = build(tmp_path)
    for b, length in ((2, 17), (3, 40), (1, 1)):
        tensors = qkv(b, length)
        for name, tensor in zip("qkv", tensors, strict=True):
            tensor.contiguous().numpy().tofile(tmp_path / f"{name}.bin")
        ran = subprocess.run([program, tmp_path, library, str(b), str(length)], capture_output=True, text=True, check=False)
        assert (ran.stdout, ran.stderr) == ("4 results, without Python\n", "")
        for number, wanted in enumerate(model(*tensors)):
            found = torch.from_file(str(tmp_path / f"out{number}.bin"), size=wanted.numel(), dtype=wanted.dtype)
            assert torch.equal(found.view(wanted.shape), wanted), number
    with plain_host():
        other = attn_mlir.compile_operators(torch.export.export(_Plain(), qkv()), tmp_path / "libother.so")
    ran = subprocess.run([program, tmp_path, other, "2", "17"], capture_output=True, text=True, check=False)
    assert ran.returncode == 1 and "this library has no attention of this graph" in ran.stderr


class _Plain(torch.nn.Module):
    def forward(self, q: Any, k: Any, v: Any) -> Any:
        return attn_mlir.attention(q, k, v)


class _None(torch.nn.Module):
    def forward(self, q: Any, k: Any, v: Any) -> Any:
        return q + k + v


def test_errors(tmp_path: Path) -> None:
    out = tmp_path / "libx.so"
    with pytest.raises(ArgumentError, match=r"takes what torch\.export\.export returns, got _None"):
        attn_mlir.compile_operators(_None(), out)  # type: ignore[arg-type]
    with pytest.raises(ArgumentError, match="calls no attention of attn-mlir"):
        attn_mlir.compile_operators(torch.export.export(_None(), qkv()), out)
    with pytest.raises(UnsupportedError, match=r"export the model under torch\.no_grad"):
        attn_mlir.compile_operators(torch.export.export(Model(), qkv(), dynamic_shapes=DYNAMIC), out)
    with torch.no_grad():
        plain = torch.export.export(_Plain(), qkv())
    for place, message in (
        (None, "out is the path of the library's file"),
        (tmp_path, "is a folder: name a file"),
        (tmp_path / "libx.a", "would be a static library, of which linkers drop"),
        (tmp_path / f"{'x' * 300}.so", "more than 200 bytes"),
    ):
        with pytest.raises(ArgumentError, match=message):
            attn_mlir.compile_operators(plain, place)  # type: ignore[arg-type]
    assert not list(tmp_path.iterdir())


HOSTILE = Path(__file__).parents[1] / "Inputs" / "operator_calls.py"


def test_calls_that_no_graph_makes(tmp_path: Path) -> None:
    """In a process with torch alone: any strides and sizes are right or refused, from several threads and after a fork."""
    with torch.no_grad():
        exported = torch.export.export(_Plain(), tuple(torch.randn(3, 1, 2, 5, 8)))
    with plain_host():
        library = attn_mlir.compile_operators(exported, tmp_path / "a folder" / "lib operators.so")
    (program,) = _programs(exported)
    (tmp_path / "program").write_text(program)
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    command = [sys.executable, HOSTILE, library, tmp_path / "program"]
    ran = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
    assert (ran.returncode, ran.stderr) == (0, "")
