"""Thresholds of the code generators for NVIDIA GPUs: each has a date, a GPU (or who decided) and a source, and something reads it."""

import datetime
import subprocess
import typing
from pathlib import Path

import pytest

from attn_mlir.backends.nvidia import thresholds
from attn_mlir.backends.nvidia.warp import families

ROOT = Path(__file__).resolve().parents[2]
TABLES = {"thresholds": thresholds, "families": families}
FOUND = {
    f"{table}.{name}": hint
    for table, module in TABLES.items()
    for name, hint in typing.get_type_hints(module, include_extras=True).items()
    if hasattr(hint, "__metadata__")
}
SOURCES = "\n".join(path.read_text() for path in (ROOT / "backends/nvidia").rglob("*.py") if path.stem not in TABLES)


def test_every_number_says_where_it_comes_from() -> None:
    numbers = {
        f"{table}.{name}" for table, module in TABLES.items() for name in vars(module) if name.isupper() and not name.startswith("_")
    }
    assert numbers == set(FOUND) and len(numbers) > 40


@pytest.mark.parametrize("name", FOUND)
def test_found(name: str) -> None:
    (found,) = FOUND[name].__metadata__
    assert datetime.date(2026, 11, 1) <= datetime.date.fromisoformat(found.date)
    assert found.chip in ("H100", "H200", "H100, H200", "ptxas", "none")
    place = found.source.split(",")[0]
    if place.startswith("commit "):
        exists = subprocess.run(["git", "cat-file", "-e", place.removeprefix("commit ")], cwd=ROOT, stderr=subprocess.DEVNULL)
        shallow = not (ROOT / ".git").exists() or (ROOT / ".git/shallow").exists()
        assert shallow or exists.returncode == 0
    else:
        assert (ROOT / place).is_file()


@pytest.mark.parametrize("name", FOUND)
def test_read(name: str) -> None:
    assert name in SOURCES
