"""Files are read to their end: at most 400 lines each, and half of those of the product no more than 120."""

import statistics
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
_PRODUCT = ("python/attn_mlir", "passes", "dialects", "backends")
_MOST, _MEDIAN = 400, 120
_SUFFIXES = (".py", ".h", ".cuh", ".cpp", ".cu", ".hip", ".c")


def _lines(*folders: str) -> dict[str, int]:
    files = [path for folder in folders for path in (ROOT / folder).rglob("*") if path.suffix in _SUFFIXES]
    return {str(path.relative_to(ROOT)): len(path.read_text().splitlines()) for path in files if not path.is_symlink()}


def test_no_file_is_long() -> None:
    assert {path: lines for path, lines in _lines(*_PRODUCT, "test", "benchmarks", "examples").items() if lines > _MOST} == {}


def test_most_files_are_short() -> None:
    assert 0 < statistics.median(_lines(*_PRODUCT).values()) <= _MEDIAN
