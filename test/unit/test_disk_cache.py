"""Programs that are found on disk: what their key depends on, and what finding them takes."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import attn_mlir
from attn_mlir import backends

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
    sources = "".join(path.read_text() for path in (_BACKENDS / name).rglob("*.py"))
    keys = [set(re.findall(r'"(\w+)"', given)) for given in re.findall(r"disk_cache\.version\(([^)]*)\)", sources)]
    folders = {path.name for path in _BACKENDS.iterdir() if path.is_dir()}
    imported = {
        name,
        *re.findall(r"from attn_mlir\.backends\.(\w+)[. ]", sources),
        *re.findall(r"from attn_mlir\.backends import (\w+)", sources),
    }
    assert keys and all(key == imported & folders for key in keys)


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
