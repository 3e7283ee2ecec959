"""Writes the package `attn_mlir_kernels`: standard programs for Hopper GPUs, compiled, which attn-mlir finds where it is installed.

They are entries of the kernel cache (`backends.disk_cache`), so that they are used by the release of attn-mlir and of the MLIR bindings
that made them, and by no other: any other compiles. No GPU is needed to make them.
"""

import argparse
import json
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import attn_mlir
from attn_mlir import Attention, masks
from attn_mlir.backends import disk_cache
from attn_mlir.backends.nvidia import compile as cuda_compiler
from attn_mlir.backends.nvidia import driver
from attn_mlir.backends.nvidia.program import SUFFIX
from attn_mlir.errors import AttnError, UnsupportedError
from attn_mlir.frontend.emit import Inputs
from attn_mlir.runtime.programs import program_of

_ARCH = "sm_90a"
_MASKS = ("full", "causal", "window")
_FUNCTIONS = ("", "fwd", "bwd")
_PROJECT = """[build-system]
requires = ["setuptools>=77"]
build-backend = "setuptools.build_meta"

[project]
name = "attn-mlir-kernels"
version = "{version}"
description = "Compiled kernels of attn-mlir for NVIDIA Hopper GPUs"
requires-python = ">=3.11"
license = "Apache-2.0"
dependencies = ["attn-mlir=={version}"]

[tool.setuptools]
packages = ["{package}"]

[tool.setuptools.package-data]
{package} = ["contents.json", "entries/*"]
"""


@dataclass(frozen=True)
class Standard:
    """A program that is compiled ahead: softmax attention with a mask, an element type and a head dimension.

    `function`: "" for o alone, "fwd" for a forward pass before a backward one, "bwd" for the gradients of q, k and v.
    """

    mask: str
    element: str
    dim: int
    function: str

    def __str__(self) -> str:
        return f"{self.mask} {self.element} {self.dim} {self.function or 'o'}"

    def program(self) -> Any:
        """The program, lowered, whose `binaries()` are its machine code."""
        mask = {"full": None, "causal": masks.causal(), "window": masks.sliding_window(1)}[self.mask]
        entry, _ = Attention(mask_mod=mask)._entry(Inputs(self.element, self.dim, self.dim))
        program = program_of(entry)
        if not self.function:
            return program.kernel("cuda").program  # type: ignore[attr-defined]
        made: Any = program.derivative("cuda", self.function, "q+k+v")
        made.beside = None  # a program of its own here
        return made


def standard(dims: Sequence[int] = (64, 128, 256), elements: Sequence[str] = ("f16", "bf16")) -> list[Standard]:
    """All programs that are compiled ahead."""
    return [Standard(mask, element, dim, f) for f in reversed(_FUNCTIONS) for dim in dims for element in elements for mask in _MASKS]


def write(folder: Path, programs: Sequence[Standard], jobs: int = 0) -> dict[str, str]:
    """Compiles programs and writes a project with the package into `folder`; returns why some programs are left out, by their names.

    Raises UnsupportedError where kernels would be for another GPU, or their keys would not be everybody's.
    """
    if driver.current_target().arch != _ARCH:
        raise UnsupportedError(
            f"kernels are shipped for {_ARCH}, and this machine's GPU is another one: set CUDA_VISIBLE_DEVICES='' to ignore it"
        )
    if cuda_compiler.asked_for():
        raise UnsupportedError("keys of kernels whose compiler was asked for hold its name: unset ATTN_MLIR_CUDA_COMPILER")
    package = folder / disk_cache.SHIPPED
    shutil.rmtree(package, ignore_errors=True)
    (package / "entries").mkdir(parents=True)
    made: dict[str, dict[str, Any]] = {}
    problems: dict[str, str] = {}

    def compile_one(each: Standard) -> None:
        name = str(each)
        try:
            program = each.program()
            while program is not None:
                binaries = program.binaries()
                made[name] = {"key": program.key, "kernels": {kernel: binary.facts() for kernel, binary in binaries.items()}}
                program, name = program.longer(), f"{name}, more keys"
        except AttnError as error:
            problems[name] = str(error)

    with _fresh_cache() as cache, ThreadPoolExecutor(jobs or os.cpu_count() or 1) as pool:
        list(pool.map(compile_one, programs))
        for facts in made.values():
            for suffix in (SUFFIX, "json"):
                shutil.copyfile(cache / f"{facts['key']}.{suffix}", package / "entries" / f"{facts['key']}.{suffix}")
            facts["bytes"] = (package / "entries" / f"{facts['key']}.{SUFFIX}").stat().st_size
    (package / "__init__.py").write_text('"""Compiled kernels of attn-mlir, which looks for them here."""\n')
    contents = {"attn_mlir": attn_mlir.__version__, "compiler": cuda_compiler.compiler_for().build, "arch": _ARCH, "programs": made}
    (package / "contents.json").write_text(json.dumps(contents, indent=1, sort_keys=True) + "\n")
    (folder / "pyproject.toml").write_text(_PROJECT.format(version=attn_mlir.__version__, package=disk_cache.SHIPPED))
    return problems


@contextmanager
def _fresh_cache() -> Iterator[Path]:
    """An empty kernel cache, and nothing that was shipped."""
    names = ("ATTN_MLIR_CACHE", "ATTN_MLIR_KERNELS")
    before: Mapping[str, str | None] = {name: os.environ.get(name) for name in names}
    with tempfile.TemporaryDirectory() as folder:
        os.environ.update(ATTN_MLIR_CACHE=folder, ATTN_MLIR_KERNELS="off")
        try:
            yield Path(folder)
        finally:
            for name, value in before.items():
                os.environ.pop(name) if value is None else os.environ.__setitem__(name, value)


def main(argv: Sequence[str] | None = None) -> int:
    """The command; returns the exit code, which is not 0 if a program is left out."""
    parser = argparse.ArgumentParser(prog="ship-kernels", description=__doc__)
    parser.add_argument("folder", type=Path, help="where the project is written, for `pip wheel`")
    parser.add_argument("--dims", type=int, nargs="+", default=[64, 128, 256], help="head dimensions (default: 64 128 256)")
    parser.add_argument("--jobs", type=int, default=0, help="programs at the same time (default: one for each core)")
    options = parser.parse_args(argv)
    start = time.perf_counter()
    programs = standard(options.dims)
    try:
        problems = write(options.folder, programs, options.jobs)
    except AttnError as error:
        print(f"ship-kernels: error: {error}", file=sys.stderr)
        return 1
    for name, problem in problems.items():
        print(f"ship-kernels: left out: {name}: {problem}", file=sys.stderr)
    size = sum(path.stat().st_size for path in (options.folder / disk_cache.SHIPPED).rglob("*") if path.is_file())
    print(f"{len(programs) - len(problems)} programs, {size / 1e6:.2f} MB, {time.perf_counter() - start:.0f} s")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
