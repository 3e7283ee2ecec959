"""Programs that are found on disk: what their key depends on, and what finding them takes."""

import dataclasses
import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

import attn_mlir
from attn_mlir import backends
from attn_mlir.backends import disk_cache
from attn_mlir.backends.cpu import driver, pipeline, program, target
from attn_mlir.backends.program import prepare_derivative

_BACKENDS = Path(attn_mlir.__file__).parent / "backends"
_CALLS = """
import sys, torch, attn_mlir
q, k, v = (torch.randn(1, 2, 8, 16, requires_grad=True) for _ in range(3))
o = attn_mlir.attention(q, k, v, mask_mod=attn_mlir.masks.causal())
o.backward(torch.ones_like(o))
print(sorted(name for name in sys.modules if name.startswith("attn_mlir.")))
"""


@pytest.mark.parametrize("name", [name for name, backend in backends.load_backends().items() if backend.compile])
def test_the_key_depends_on_every_package_that_makes_code(name: str) -> None:
    # Libraries made ahead of time are not kept in the cache.
    files = [path for path in (_BACKENDS / name).rglob("*.py") if "ahead" not in path.relative_to(_BACKENDS).parts]
    sources = "".join(path.read_text() for path in files)
    keys = [set(re.findall(r'"(\w+)"', given)) for given in re.findall(r"disk_cache\.version\(([^)]*)\)", sources)]
    folders = {path.name for path in _BACKENDS.iterdir() if path.is_dir()}
    imported = {
        name,
        *re.findall(r"from attn_mlir\.backends\.(\w+)[. ]", sources),
        *re.findall(r"from attn_mlir\.backends import (\w+)", sources),
    }
    assert keys and all(key == imported & folders for key in keys)


@pytest.fixture(scope="module")
def package(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the package's sources: of each folder two files of a kind, as what is looked at is which folders and kinds count."""
    root, copied = Path(attn_mlir.__file__).parent, tmp_path_factory.mktemp("package")
    for name in ("dialects", "passes", "backends"):
        shutil.copytree(root / name, copied / name, ignore=shutil.ignore_patterns("__pycache__"))
    for path in root.glob("*.py"):
        shutil.copy(path, copied / path.name)
    kinds: dict[tuple[Path, str], int] = {}
    for path in sorted(path for path in copied.rglob("*") if path.is_file()):
        kinds[path.parent, path.suffix] = count = kinds.get((path.parent, path.suffix), 0) + 1
        if count > 2 and path.name != "base.py":
            path.unlink()
    return copied


@pytest.mark.parametrize("backends_", [("cpu", "tuning"), ("gpu", "nvidia", "tuning"), ("gpu", "amd", "tuning")], ids="+".join)
def test_every_folder_and_kind_of_source_is_part_of_the_version(backends_: tuple[str, ...], package: Path) -> None:
    whole = disk_cache.digest_of(package, *backends_)
    files = [path for path in sorted(package.rglob("*")) if path.is_file()]
    first = {(path.parent, path.suffix): path for path in reversed(files)}
    foreign = [package / "backends" / name for name in ("ahead", "cpu", "gpu", "nvidia", "amd") if name not in backends_]
    for path in first.values():
        content = path.read_bytes()
        path.write_bytes(content + b"\n")
        same = disk_cache.digest_of(package, *backends_) == whole
        path.write_bytes(content)
        assert same == any(path.is_relative_to(folder) for folder in foreign), path
    moved = package / "passes" / "moved.py"
    (package / "passes" / "base.py").rename(moved)
    assert disk_cache.digest_of(package, *backends_) != whole
    moved.rename(package / "passes" / "base.py")
    assert disk_cache.digest_of(package, *backends_) == whole


def test_the_key_of_a_cpu_program_depends_on_all_that_shapes_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """The bindings, this processor, the sources, and the pipelines."""
    keys: list[str] = []

    def find(key: str, *_: object) -> None:
        keys.append(key)
        raise LookupError

    def look() -> None:
        disk_cache.version.cache_clear()
        for compiled in (lambda: driver._compile("text"), lambda: program._compile("text", "f", "", "")):
            with pytest.raises(LookupError):
                compiled()

    monkeypatch.setattr(disk_cache, "find", find)
    look()
    look()
    assert len(set(keys)) == 2
    other = dataclasses.replace(target.host(), features=frozenset({"another"}))
    for place, name, value in (
        (disk_cache, "_bindings", lambda: "torch-mlir 0"),
        (disk_cache, "digest_of", lambda *_: "other sources"),
        (driver, "host", lambda: other),
        (program, "host", lambda: other),
        (pipeline, "LLVM", "canonicalize"),
    ):
        keys.clear()
        look()
        with monkeypatch.context() as patch:
            patch.setattr(place, name, value)
            look()
        assert len(set(keys)) == (3 if name == "host" else 4), name
    disk_cache.version.cache_clear()


SOFTMAX = (Path(__file__).parent.parent / "Inputs" / "causal-softmax.mlir").read_text()
DAMAGE = {
    "empty": (b"", {}),
    "no code": (b"\x00nothing", {}),
    "no kernel": (b"module {}", {}),
    "code that is not lowered": (SOFTMAX.encode(), {}),
    "no fields": (None, {"block_q": None, "dims": None, "host": None, "kernels": None}),
    "no block": (None, {"block_q": 0}),
    "a list": (None, {"block_q": [32]}),
    "a boolean": (None, {"row_outputs": False}),
    "one dimension": (None, {"dims": [64]}),
    "another element": (None, {"element": "f99"}),
    "kernels of another kind": (None, {"kernels": [1]}),
    "a host of another kind": (None, {"host": {"name": "attention_bwd", "arguments": [], "steps": [], "returns": [7]}}),
}


@pytest.mark.parametrize("damage", [name for name, (code, fields) in DAMAGE.items() if "host" not in fields or "dims" in fields])
def test_a_damaged_kernel_is_compiled_again(damage: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Though the hash of the entry is right."""
    monkeypatch.setenv("ATTN_MLIR_CACHE", str(tmp_path))
    _check_damage(damage, tmp_path, lambda: driver.CpuKernel(SOFTMAX, *driver._compile(SOFTMAX)).run(*_qkv(), [])[0])


@pytest.mark.parametrize("damage", ["empty", "no kernel", "no fields", "kernels of another kind", "a host of another kind"])
def test_a_damaged_derivative_is_compiled_again(damage: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ATTN_MLIR_CACHE", str(tmp_path))
    name, prepare = prepare_derivative("fwd", ("q",), residual=True)
    _check_damage(damage, tmp_path, lambda: program._compile(SOFTMAX, name, prepare, pipeline.KERNEL).run(_qkv())[0])


def _qkv() -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    q, k, v = torch.randn(3, 1, 2, 40, 64, generator=torch.Generator().manual_seed(0))
    return q, k, v


def _check_damage(damage: str, folder: Path, run: Callable[[], torch.Tensor]) -> None:
    expected = run()
    (facts,) = folder.glob("*.json")
    key, entry = facts.stem, json.loads(facts.read_text())
    whole = (folder / f"{key}.mlirbc").read_bytes()
    code, changed = DAMAGE[damage]
    fields = {name: value for name, value in {**entry["fields"], **changed}.items() if value is not None and name in entry["fields"]}
    disk_cache.save(key, "mlirbc", whole if code is None else code, fields)
    assert disk_cache.load(key, "mlirbc") is not None
    assert torch.equal(run(), expected)
    assert json.loads(facts.read_text()) == entry


def test_finding_a_program_imports_nothing_that_derives_one(tmp_path: Path) -> None:
    """Nor torch operators, whose registration takes as long as the rest of a first call."""
    environment = {**os.environ, "ATTN_MLIR_CACHE": str(tmp_path)}
    imported = ""
    for _ in range(2):
        made = subprocess.run([sys.executable, "-c", _CALLS], env=environment, capture_output=True, text=True, check=True)
        imported = made.stdout
    assert "attn_mlir.runtime.compute" in imported
    for module in ("runtime.ops", "api.compiled", "api.graphs", "passes.derivation", "passes.differentiation", "passes.explain"):
        assert f"'attn_mlir.{module}" not in imported, module
