"""Builds the wheel, looks into it, and tries it in a virtual environment of its own, outside of the checkout.

    python .ci/try_wheel.py                 packages that attn-mlir needs are those of this interpreter
    python .ci/try_wheel.py --install       they are installed into the new environment, too: nothing of this one is there
    python .ci/try_wheel.py --wheel x.whl   tries a wheel that is there

It needs nothing but the standard library, so that it runs on any system. `--look` stops before the new environment is made.
"""

import argparse
import os
import subprocess
import sys
import sysconfig
import tempfile
import venv
import zipfile
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
_LINKED = ("dialects", "passes", "backends")
"""Folders beside `python`, which are symbolic links in the package."""
_SUFFIXES = (".py", ".h", ".cpp", ".cu", ".cuh", ".hip", ".in")
_LAZY = ("tilelang", "matplotlib", "transformers", "triton", "scipy", "sympy", "pandas")
_FIRST_CALL = f"""
import pathlib, sys
import attn_mlir
assert pathlib.Path(attn_mlir.__file__).is_relative_to(sys.prefix), attn_mlir.__file__
before = set(sys.modules)
import torch
of_torch = set(sys.modules)
q = torch.randn(1, 2, 5, 8, requires_grad=True)
attn_mlir.attention(q, q, q, mask_mod=attn_mlir.masks.causal()).sum().backward()
needless = [name for name in {_LAZY!r} if name in sys.modules and name not in of_torch]
assert q.grad is not None and not needless, needless
"""


def main(arguments: Sequence[str] | None = None) -> int:
    """0 where the wheel is whole and works, else 1."""
    parser = argparse.ArgumentParser(description="Builds the wheel and tries it.")
    parser.add_argument("--wheel", type=Path, help="a wheel that is there")
    parser.add_argument("--install", action="store_true", help="install what it needs, too")
    parser.add_argument("--isolated", action="store_true", help="build as pip does, with a setuptools of its own")
    parser.add_argument("--look", action="store_true", help="look into it and stop")
    options = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory() as folder:
        wheel = options.wheel or build(Path(folder), options.isolated or options.install)
        lacking = missing(wheel)
        print(f"{wheel.name}: {wheel.stat().st_size / 2**20:.1f} MiB" + "".join(f"\n  lacks {name}" for name in lacking))
        if lacking:
            return 1
        return 0 if options.look else attempt(wheel, Path(folder) / "environment", options.install)


def build(folder: Path, isolated: bool) -> Path:
    """The wheel of this checkout, built in a folder; what the build leaves behind, which a later wheel would hold, too, stays there."""
    extra = folder / "extra.cfg"
    extra.write_text(f"[build]\nbuild_base = {folder / 'build'}\n[egg_info]\negg_base = {folder}\n")
    command = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--wheel-dir", str(folder), str(ROOT)]
    environment = {**os.environ, "DIST_EXTRA_CONFIG": str(extra)}
    subprocess.run([*command, *([] if isolated else ["--no-build-isolation"])], check=True, env=environment)
    return next(folder.glob("attn_mlir-*.whl"))


def sources() -> list[str]:
    """What a wheel must hold: every source file of the package, by its name in there."""
    package = ROOT / "python" / "attn_mlir"
    found = [path.relative_to(package).as_posix() for path in package.rglob("*") if _is_source(path)]
    for name in _LINKED:
        found += [f"{name}/{path.relative_to(ROOT / name).as_posix()}" for path in (ROOT / name).rglob("*") if _is_source(path)]
    return sorted({f"attn_mlir/{name}" for name in [*found, "py.typed"]})


def _is_source(path: Path) -> bool:
    return path.suffix in _SUFFIXES and path.is_file()


def missing(wheel: Path) -> list[str]:
    """Source files that are not in the wheel."""
    with zipfile.ZipFile(wheel) as archive:
        held = set(archive.namelist())
    return [name for name in sources() if name not in held]


def attempt(wheel: Path, folder: Path, install: bool) -> int:
    """Installs the wheel in a new environment and computes there, in another directory; the code of the first that fails."""
    venv.create(folder, with_pip=install)
    scripts = folder / ("Scripts" if os.name == "nt" else "bin")
    python = scripts / ("python.exe" if os.name == "nt" else "python")
    environment = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "PYTHONHOME", "VIRTUAL_ENV")}
    if install:
        _run([python, "-m", "pip", "install", "--quiet", str(wheel)], environment, folder)
    else:
        _run(
            [sys.executable, "-m", "pip", "--python", python, "install", "--quiet", "--no-deps", "--no-index", str(wheel)],
            environment,
            folder,
        )
        # A line of a .pth file adds that folder alone: an editable attn-mlir in it stays out of sight.
        purelib = _run([python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))"], environment, folder)
        Path(purelib.strip(), "needed.pth").write_text(sysconfig.get_path("purelib") + "\n")
    _run([python, "-c", _FIRST_CALL], environment, folder)
    commands = sorted(path for path in scripts.iterdir() if path.stem.startswith("attn-"))
    silent = [path.name for path in commands if "usage:" not in _run([path, "--help"], environment, folder)]
    if len(commands) < 6 or silent:
        print(f"commands that are there: {', '.join(path.name for path in commands)}; without help: {', '.join(silent)}")
        return 1
    shown = _run([scripts / "attn-opt", "--show-passes"], environment, folder)
    if "attn-online-rewrite" not in shown:
        print("attn-opt shows no passes")
        return 1
    return subprocess.run([python, "-m", "attn_mlir.doctor"], env=environment, cwd=folder).returncode


def _run(command: Sequence[str | Path], environment: dict[str, str], folder: Path) -> str:
    return subprocess.run(
        [str(word) for word in command], env=environment, cwd=folder, check=True, stdout=subprocess.PIPE, text=True
    ).stdout


if __name__ == "__main__":
    sys.exit(main())
