"""Compiled programs that a package carries: made by the tool, found by their keys, and nothing is lowered or compiled for them."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from attn_mlir import Attention, masks
from attn_mlir.backends import disk_cache
from attn_mlir.backends.nvidia import driver
from attn_mlir.errors import UnsupportedError
from attn_mlir.frontend.emit import Inputs
from attn_mlir.runtime import programs
from attn_mlir.runtime.programs import program_of
from attn_mlir.tools import ship_kernels
from attn_mlir.tools.ship_kernels import Standard
from nvidia_fakes import set_apart
from nvrtc_fakes import FakeNvrtc, code_of, install

SHIPPED = (Standard("causal", "f16", 64, ""), Standard("window", "f16", 64, "fwd"))


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Path, FakeNvrtc]]:
    """What the tool writes, by a compiler whose code is the hash of the source."""
    folder = tmp_path_factory.mktemp("kernels")
    with pytest.MonkeyPatch.context() as patch:
        fake = install(patch, FakeNvrtc())
        _forget(patch, folder / "unused")
        assert ship_kernels.write(folder, SHIPPED, jobs=1) == {}
        assert not (folder / "unused").exists()
        yield folder, fake


@pytest.fixture
def installed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, project: tuple[Path, FakeNvrtc]) -> Iterator[Path]:
    """A new process of a user who installed the package; whatever is compiled fails."""
    _forget(monkeypatch, tmp_path / "cache")
    install(monkeypatch, FakeNvrtc(fails=7))
    monkeypatch.delenv("ATTN_MLIR_KERNELS", raising=False)
    monkeypatch.syspath_prepend(str(project[0]))
    disk_cache._packaged.cache_clear()
    yield tmp_path / "cache"
    disk_cache._packaged.cache_clear()


def _forget(monkeypatch: pytest.MonkeyPatch, cache: Path) -> None:
    """Programs of this process, and on disk."""
    set_apart(monkeypatch, cache)
    monkeypatch.setattr(programs, "_TABLE", {})
    monkeypatch.setattr("attn_mlir.api.options._CACHE", type(_trace_cache())())


def _trace_cache() -> Any:
    from attn_mlir.api import options

    return options._CACHE


def _lowered(*_: Any) -> Any:
    raise AssertionError("lowered again")


def test_contents(project: tuple[Path, FakeNvrtc]) -> None:
    folder, fake = project
    package = folder / "attn_mlir_kernels"
    contents = json.loads((package / "contents.json").read_text())
    assert contents["programs"].keys() == {"causal f16 64 o", "window f16 64 fwd"} and contents["compiler"].endswith("compiler.1_0")
    names = {f"{facts['key']}.{suffix}" for facts in contents["programs"].values() for suffix in ("zip", "json")}
    assert {path.name for path in (package / "entries").iterdir()} == names
    assert 'dependencies = ["attn-mlir==' in (folder / "pyproject.toml").read_text()
    assert len(fake.compiled()) == 2  # each program's kernel once, and no backward pass of its own accord


def test_programs_for_more_keys_come_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fake = install(monkeypatch, FakeNvrtc())
    _forget(monkeypatch, tmp_path / "unused")
    assert ship_kernels.write(tmp_path, [Standard("full", "f16", 128, "")], jobs=1) == {}
    contents = json.loads((tmp_path / "attn_mlir_kernels" / "contents.json").read_text())
    assert contents["programs"].keys() == {"full f16 128 o", "full f16 128 o, more keys"} and len(fake.compiled()) == 2


def test_they_are_found(installed: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By everything that comes to the same program: a mask as users write it for FlexAttention, another width of the window."""
    monkeypatch.setattr(driver, "_lower", _lowered)
    inputs = Inputs("f16", 64, 64)
    written = Attention(mask_mod=lambda b, h, q_idx, kv_idx: q_idx >= kv_idx)
    found: Any = program_of(written._entry(inputs)[0]).kernel("cuda")
    window = Attention(mask_mod=masks.sliding_window(777))
    forward: Any = program_of(window._entry(inputs)[0]).derivative("cuda", "fwd", "q+k+v")
    for program in (found.program, forward):
        assert {name: binary.code for name, binary in program.binaries().items()} == {
            name: code_of(unit.code.source) for name, unit in program.units.items()
        }
    assert not installed.exists()


def test_other_programs_are_compiled(installed: Path) -> None:
    with pytest.raises(Exception, match="NVRTC_ERROR_7"):
        Standard("causal", "bf16", 64, "").program().binaries()


@pytest.mark.parametrize("name", ["ATTN_MLIR_KERNELS", "ATTN_MLIR_CACHE"])
def test_off(installed: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    monkeypatch.setenv(name, "off")
    monkeypatch.setattr(driver, "_lower", _lowered)
    with pytest.raises(AssertionError, match="lowered again"):
        SHIPPED[0].program()


def test_another_release_does_not_take_them(installed: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(disk_cache, "version", lambda *_: "another")
    monkeypatch.setattr(driver, "_lower", _lowered)
    with pytest.raises(AssertionError, match="lowered again"):
        SHIPPED[0].program()


def test_folders_and_broken_entries(installed: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A folder may be named; what is damaged counts as absent; the user's own entries come first."""
    key, folder = "k" * 64, tmp_path / "given"
    monkeypatch.setenv("ATTN_MLIR_CACHE", str(folder))
    disk_cache.save(key, "zip", b"given", {"x": 1})
    monkeypatch.setenv("ATTN_MLIR_CACHE", str(installed))
    assert disk_cache.load(key, "zip") is None
    monkeypatch.setenv("ATTN_MLIR_KERNELS", str(folder))
    folder.chmod(0o755)
    assert disk_cache.load(key, "zip") == (b"given", {"x": 1}) and disk_cache.load(key, "so") is None
    disk_cache.save(key, "zip", b"own", {"x": 2})
    assert disk_cache.load(key, "zip") == (b"own", {"x": 2})
    (installed / f"{key}.zip").unlink()
    (folder / f"{key}.zip").write_bytes(b"givem")
    assert disk_cache.load(key, "zip") is None


def test_what_cannot_be_shipped(installed: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("ATTN_MLIR_CUDA_COMPILER", "nvrtc")
    with pytest.raises(UnsupportedError, match="unset ATTN_MLIR_CUDA_COMPILER"):
        ship_kernels.write(tmp_path / "out", SHIPPED)
    monkeypatch.delenv("ATTN_MLIR_CUDA_COMPILER")
    problems = ship_kernels.write(tmp_path / "out", SHIPPED[:1], jobs=1)
    assert "NVRTC_ERROR_7" in problems["causal f16 64 o"]
    assert json.loads((tmp_path / "out/attn_mlir_kernels/contents.json").read_text())["programs"] == {}


def test_all_that_is_shipped() -> None:
    """Forward and backward, three masks, three head dimensions, two types."""
    every = ship_kernels.standard()
    assert len({str(each) for each in every}) == len(every) == 3 * 3 * 3 * 2
    assert every[0].function == "bwd"  # the longest first
