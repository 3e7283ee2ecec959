"""What the CPU backend gives for tuning: the kernels of a program, what they are run on, and how they are compiled and measured."""

import hashlib
import platform
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from attn_mlir.backends import fields
from attn_mlir.backends.cpu import driver, pipeline
from attn_mlir.backends.cpu.passes.choose_blocks import TUNED
from attn_mlir.backends.cpu.program import CpuLaunchPlan, build_derivative
from attn_mlir.backends.cpu.target import TARGETS, CpuTarget, host
from attn_mlir.backends.cpu.tuning.bench import CpuBench
from attn_mlir.backends.cpu.tuning.chunk_scan_facts import chunk_scan_facts
from attn_mlir.backends.cpu.tuning.space import CpuSpace
from attn_mlir.backends.fields import Fields
from attn_mlir.backends.host import read_host
from attn_mlir.backends.program import function_named, keep_kernels, prepare_derivative, reported
from attn_mlir.backends.tuning.facts import KernelFacts, facts_of
from attn_mlir.backends.tuning.program import Tuner, release, versions
from attn_mlir.backends.tuning.space import Tunable, Workload
from attn_mlir.backends.tuning.store import Key, bucket
from attn_mlir.backends.tuning.worker import Job
from attn_mlir.dialects import loaded
from attn_mlir.errors import UnsupportedError
from attn_mlir.mlir import LOCK, ir
from attn_mlir.passes.pipeline import Pipeline
from attn_mlir.passes.regions import find_all
from attn_mlir.registry import registry

_MEASURED = 10
_LINEAR = '"attn.linear_attention"'


def tunables(text: str, job: Job, sizes: Sequence[Any], arch: str) -> tuple[dict[str, Fields], list[Tunable]]:
    """See `Tuner.kernels`."""
    if arch and arch not in TARGETS:
        raise UnsupportedError(f"no CPU is known as '{arch}': one of {', '.join(TARGETS)}, or none for this machine's")
    target = TARGETS[arch] if arch else host()
    threads = target.threads if arch else torch.get_num_threads()
    (batch, heads, queries), kv_heads, keys = sizes[0][:3], sizes[1][1], sizes[1][2]
    linear = _LINEAR in text
    few = _few(job, linear, queries, heads != kv_heads)
    if linear and queries == 1:
        return _known(text), []  # a single position is a chunk of its own
    work = Workload(queries, keys, batch * max(size[1] for size in sizes))
    if few == "group":
        work = Workload(heads // kv_heads, keys, batch * kv_heads)
    found = []
    for name, facts, digest in _read(text, job, few):
        length = bucket(max(queries, keys))
        key = Key(digest, f"{kind_of(target)} t{bucket(threads)}", facts.element, facts.head_dims, length, _versions())
        segment = 0 if facts.scan is None else facts.scan.segment
        mine = Workload(segment, segment, work.heads * -(-keys // segment)) if segment else work
        found.append(Tunable(name, _space(facts, target, mine, threads, few), key))
    return _known(text), found


def kind_of(target: CpuTarget) -> str:
    """Names machines that share results: the processor's model and its instructions."""
    return f"{target.model} {platform.machine()}-{target.vector_bytes * 8}-{'-'.join(sorted(target.features))}"


def _few(job: Job, linear: bool, queries: int, grouped: bool) -> str:
    """Which kernel of few rows an attention without derivatives runs, or ""; see `CpuKernel`."""
    if job.function or linear or queries > pipeline.FEW_ROWS[0]:
        return ""
    return "group" if grouped and queries == 1 else "one" if queries == 1 else "few"


def _space(facts: KernelFacts, target: CpuTarget, work: Workload, threads: int, few: str) -> CpuSpace:
    if facts.scan is not None:
        return CpuSpace(facts, target, work, threads, (facts.scan.chunk, facts.scan.values))
    blocks = {"": pipeline.BLOCKS, "one": pipeline.ONE_ROW}.get(few, pipeline.FEW_ROWS)
    return CpuSpace(facts, target, work, threads, blocks, blocks[0] if few else 0)


def _known(text: str) -> dict[str, Fields]:
    with LOCK, reported(), loaded():
        return fields.tuned_in(ir.Module.parse(text).operation, TUNED)


def _read(text: str, job: Job, few: str) -> list[tuple[str, KernelFacts, str]]:
    """The kernels of a job's function before tiling that have something to choose: name, facts, hash of the IR."""
    name, prepare = prepare_derivative(job.function, job.wrt, pipeline.OUTLINE, job.segment, residual=True, options=pipeline.DECAYS)
    found = []
    with LOCK, reported(), loaded():
        module = ir.Module.parse(text)
        Pipeline.parse(prepare, registry()).run(module)
        keep_kernels(module, read_host(function_named(module, name)))
        Pipeline.parse(("attn-pack-heads," if few == "group" else "") + pipeline.ONLINE, registry()).run(module)
        for kernel in find_all(module.operation, "func.func"):
            facts = facts_of(kernel, chunk_scan_facts)
            if facts is None or facts.grid == "elements":
                continue
            digest = hashlib.sha256(kernel.get_asm(enable_debug_info=False).encode()).hexdigest()
            found.append((f"attention@{few}" if few else fields.tuned_name(kernel), facts, digest))
    return found


def _versions() -> tuple[tuple[str, str], ...]:
    return versions(mlir=release("torch-mlir"))


def _write(text: str, choices: Mapping[str, Fields]) -> str:
    return fields.with_tuned(text, choices, TUNED)


@dataclass(frozen=True)
class _Compiled:
    """A function of a job, compiled apart from the programs that are kept in memory."""

    run: Any

    def binaries(self) -> None:
        """It is on disk, which is what the tuner's process needs."""


def compile_job(text: str, job: Job) -> _Compiled:
    """See `Tuner.compile`. Candidates are not kept in memory: most of them are never run again."""
    if job.function or job.segment or _LINEAR in text:
        program: CpuLaunchPlan = build_derivative(text, job.function, job.wrt, job.segment)
        return _Compiled(program.run)
    kernel = driver.build_kernel(text)

    def run(inputs: Sequence[Any], layout: str) -> list[torch.Tensor]:
        q, k, v, *captures = inputs
        return kernel.run(q, k, v, captures, layout)

    return _Compiled(run)


TUNER = Tuner(_write, tunables, compile_job, CpuBench, lambda: list(TARGETS), count=_MEASURED)
