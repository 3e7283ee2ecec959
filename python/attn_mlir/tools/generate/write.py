"""Writes a generated project: kernels in parallel processes, and what holds them together; files that stay the same are left alone."""

import json
import multiprocessing
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from attn_mlir import driver
from attn_mlir.api.ahead import with_lines
from attn_mlir.backends.ahead import generated
from attn_mlir.backends.ahead.request import MOST_BYTES, check_place
from attn_mlir.backends.ahead.sources import KernelSource, Project, Sources
from attn_mlir.errors import ArgumentError, AttnError
from attn_mlir.tools.generate.instance import Instance
from attn_mlir.tools.generate.listed import instances_of

MANIFEST = "manifest.json"
_PART = 80
"""Bytes that the name of a kernel has besides that of its instance, at most."""


@dataclass(frozen=True)
class WriteJob:
    """What is generated, as another process takes it: the instances are those of `place`, by their names."""

    place: str
    target: str
    library: str
    out: Path


@dataclass(frozen=True)
class Made:
    """An instance whose files are written: its part of the manifest, its kernels without their texts, and the rank of its tensors."""

    entry: dict[str, Any]
    kernels: tuple[KernelSource, ...]
    rank: int
    changed: int


def generate(job: WriteJob, instances: Sequence[Instance], version: str, jobs: int, told: Callable[[str], None]) -> dict[str, str]:
    """Writes the project. Returns why instances could not be made, by their names; then nothing but kernels was written."""
    if not instances:
        raise ArgumentError("there are no instances to generate")
    long = next((each.name for each in instances if len(each.name) > MOST_BYTES - _PART), None)
    if long is not None:
        raise ArgumentError(f"the name {long} is too long for files: give a shorter variant")
    check_place(job.out / "api.cpp", job.library)
    project: Project = driver.library_project(job.target, job.library)
    before = _listed_files(job.out)
    made: dict[str, Made] = {}
    refused: dict[str, str] = {}
    for name, found in _all(job, [each.name for each in instances], jobs):
        if isinstance(found, str):
            refused[name] = found
        else:
            made[name] = found
        told(f"[{len(made) + len(refused)}/{len(instances)}] {name}" + (": refused" if isinstance(found, str) else ""))
    if refused:
        return refused
    ordered = {each.name: made[each.name] for each in instances}
    files = _project_files(job, project, ordered, version)
    changed = sum(write(job.out / name, text) for name, text in files.items()) + sum(each.changed for each in made.values())
    kept = {*files, MANIFEST, *[file for each in made.values() for file in each.entry["files"]]}
    manifest = {
        "version": version,
        "target": job.target,
        "library": job.library,
        "header": f"{job.library}.h",
        "files": sorted(kept),
        "instances": [each.entry for each in ordered.values()],
    }
    write(job.out / MANIFEST, json.dumps(manifest, indent=1) + "\n")
    stale = sorted(before - kept)
    for name in stale:
        (job.out / name).unlink(missing_ok=True)
    told(f"{len(instances)} instances, {len(kept)} files, {changed} of them written, {len(stale)} removed: {job.out}")
    return {}


def write(path: Path, text: str) -> bool:
    """Writes a file, unless it has this content: then it keeps its time. Returns whether it did."""
    try:
        if path.read_text(encoding="utf-8") == text:
            return False
    except (FileNotFoundError, UnicodeDecodeError):
        pass
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(f"{path.name}.{os.getpid()}")
    partial.write_text(text, encoding="utf-8")
    os.replace(partial, path)
    return True


def _all(job: WriteJob, names: Sequence[str], jobs: int) -> Iterator[tuple[str, Made | str]]:
    """Every instance as it is made, or why it is not."""
    if jobs == 1 or len(names) == 1:
        for name in names:
            yield name, one(job, name)
        return
    with ProcessPoolExecutor(min(jobs, len(names)), multiprocessing.get_context("spawn"), initializer=_alone) as pool:
        running = {pool.submit(one, job, name): name for name in names}
        for each in as_completed(running):
            yield running[each], each.result()


def _alone() -> None:
    """In a process of many: torch has one thread there."""
    import torch

    torch.set_num_threads(1)


def one(job: WriteJob, name: str) -> Made | str:
    """Writes the kernels and tables of an instance, or says why it cannot."""
    instance = next(each for each in instances_of(job.place, job.target) if each.name == name)
    project: Project = driver.library_project(job.target, job.library)
    try:
        requests = instance.requests()
        entry = instance.entry(requests[0])
        sources: Sources = with_lines(requests, lambda request: driver.kernel_sources(request, job.target))
    except AttnError as error:
        return str(error)
    texts = {f"kernels/{kernel.file}": kernel.text for kernel in sources.kernels}
    texts[f"instances/{name}.cpp"] = generated.instance_source(entry, sources, project)
    changed = sum(write(job.out / file, text) for file, text in texts.items())
    facts = {
        "name": name,
        "direction": instance.direction,
        "traits": dict(entry.traits),
        "arguments": list(requests[0].names),
        "gradients": [f"d_{requests[0].names[i]}" for i in requests[0].wrt],
        "files": sorted(texts),
        "kernels": [
            {"file": f"kernels/{kernel.file}", "code": kernel.code, "sha256": kernel.sha256, **kernel.facts} for kernel in sources.kernels
        ],
    }
    light = tuple([KernelSource(kernel.name, kernel.suffix, "", kernel.code, kernel.flags) for kernel in sources.kernels])
    return Made(facts, light, sources.rank, changed)


def _project_files(job: WriteJob, project: Project, made: dict[str, Made], version: str) -> dict[str, str]:
    """The files of the project that are no instance's."""
    name, package = job.library, Path(driver.__file__).absolute().parents[1]
    places = {"ATTN_MLIR_PYTHON": sys.executable, "ATTN_MLIR_PACKAGES": str(package)} if project.language == "mlir" else {}
    rank = max(each.rank for each in made.values())
    return {
        f"{name}.h": generated.api_header(name, job.target, version, list(made)),
        "api.cpp": generated.api_source(name, project, list(made)),
        "runtime/attn_runtime.h": generated.runtime_header(name, project, rank),
        "instances.cmake": generated.cmake_instances(project, {each: found.kernels for each, found in made.items()}),
        "CMakeLists.txt": generated.cmake_lists(name, project, version, places),
        **{f"include/{path.name}": path.read_text(encoding="utf-8") for path in project.headers},
        **{f"kernels/{kernel.file}": kernel.text for kernel in project.kernels},
    }


def _listed_files(out: Path) -> set[str]:
    """The files that a manifest in the folder names. Raises ArgumentError for a folder with other things in it."""
    manifest = out / MANIFEST
    if not manifest.exists():
        if (out / "CMakeLists.txt").exists():
            raise ArgumentError(f"{out} has a CMakeLists.txt and no {MANIFEST}: it is no folder of attn-generate; name another one")
        return set()
    try:
        files = json.loads(manifest.read_text(encoding="utf-8"))["files"]
        inside = {file for file in files if isinstance(file, str) and (out / file).resolve().is_relative_to(out.resolve())}
    except (ValueError, LookupError, TypeError):
        raise ArgumentError(f"{manifest} cannot be read: remove it, or name another folder") from None
    return inside
