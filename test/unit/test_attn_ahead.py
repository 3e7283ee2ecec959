"""The command attn-ahead: which targets there are, what it is told of inputs, and what it says of mistakes."""

import os
import shutil
from pathlib import Path

import pytest

import attn_mlir
from attn_mlir.errors import ArgumentError
from attn_mlir.tools import attn_ahead, python_files

NEEDS_CXX = pytest.mark.skipif(
    not any(shutil.which(name) for name in (os.environ.get("CXX") or "c++", "g++", "clang++")), reason="needs a C++ compiler"
)
FILE = """
import attn_mlir, torch
attention = attn_mlir.Attention()
linear = attn_mlir.LinearAttention()
small = attn_mlir.LinearSpec(torch.float32, 8, decay="none")
"""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    python_files.found.cache_clear()
    path = tmp_path / "model.py"
    path.write_text(FILE)
    return path


def test_targets_are_listed(capsys: pytest.CaptureFixture[str]) -> None:
    assert attn_ahead.main(["--list"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert {line.split()[0] for line in lines} == {"cpu", "sm_90a", "gfx90a"}
    assert all("by" in line or "not here: " in line for line in lines)


def test_the_folder_for_cmake(capsys: pytest.CaptureFixture[str]) -> None:
    assert attn_ahead.main(["--cmake"]) == 0
    assert (Path(capsys.readouterr().out.strip()) / "attn_mlirConfig.cmake").exists()


def test_names_of_targets() -> None:
    assert [attn_ahead.target_of(name) for name in ("cpu", "sm_90a", "cuda:90a", "hip:gfx90a")] == ["cpu", "sm_90a", "sm_90a", "gfx90a"]
    with pytest.raises(ArgumentError, match="target 'rocm:gfx90a': write cpu, cuda:90a or hip:gfx90a"):
        attn_ahead.target_of("rocm:gfx90a")


def test_mistakes(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def told(*arguments: str) -> str:
        assert attn_ahead.main(list(arguments)) > 0
        return capsys.readouterr().err

    out = ["-o", str(file.with_name("libx.so"))]
    assert "name an attention, FILE.py:NAME, and the library with -o; or use --list" in told()
    assert "has no 'other'" in told(f"{file}:other", *out)
    assert "target 'gfx90b': no backend makes libraries for it; did you mean 'gfx90a'? there are: " in told(
        f"{file}:attention", *out, "--target", "hip:gfx90b"
    )
    assert "has no 'inputs'" in told(f"{file}:attention", *out, "--inputs", "inputs")
    assert not file.with_name("libx.so").exists()


@NEEDS_CXX
def test_a_linear_attention_with_the_inputs_of_its_file(file: Path) -> None:
    out, rule = file.with_name("linear.a"), file.with_name("linear.d")
    arguments = [f"{file}:linear", "-o", str(out), "--inputs", "small", "--no-backward", "--depfile", str(rule)]
    assert attn_ahead.main(arguments) == 0
    assert out.read_bytes().startswith(b"!<arch>\n") and "float32 [B, Hq, T, 8]" in file.with_name("linear.h").read_text()
    text = rule.read_text()
    assert text.startswith(f"{out}: ") and str(file) in text
    package = Path(attn_mlir.__file__).absolute().parent
    assert all(str(package / name) in text for name in ("__init__.py", "passes/tile_rows.py", "backends/ahead/attn_call.h"))
