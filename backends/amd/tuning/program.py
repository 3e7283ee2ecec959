"""What the AMD backend gives for tuning: the kernels of a program, how they are ranked, and, where there is a GPU, measured."""

import hashlib
from collections.abc import Mapping, Sequence
from typing import Any

import torch

from attn_mlir.backends import fields
from attn_mlir.backends.amd import blocks, driver, hip, pipeline
from attn_mlir.backends.amd.devices import ON_CPU
from attn_mlir.backends.amd.passes.choose_blocks import TUNED
from attn_mlir.backends.amd.target import TARGETS, AmdTarget
from attn_mlir.backends.amd.tuning.space import AmdSpace, chunk_scan_facts
from attn_mlir.backends.fields import Fields
from attn_mlir.backends.gpu.bench import GpuBench
from attn_mlir.backends.gpu.scheduled import scheduled
from attn_mlir.backends.program import prepare_derivative, reported
from attn_mlir.backends.tuning.facts import facts_of
from attn_mlir.backends.tuning.program import Tuner, versions
from attn_mlir.backends.tuning.space import Tunable, Workload
from attn_mlir.backends.tuning.store import Key, bucket
from attn_mlir.backends.tuning.worker import Job
from attn_mlir.dialects import loaded
from attn_mlir.errors import UnsupportedError
from attn_mlir.mlir import LOCK
from attn_mlir.passes.regions import find_all

_BEFORE_BLOCKS = pipeline.KERNEL.partition(",amd-choose-blocks")[0]


def tunables(text: str, job: Job, sizes: Sequence[Any], arch: str | AmdTarget) -> tuple[dict[str, Fields], list[Tunable]]:
    """See `Tuner.kernels`."""
    if isinstance(arch, str) and arch and arch not in TARGETS:
        raise UnsupportedError(f"no AMD GPU is known as '{arch}': one of {', '.join(TARGETS)}")
    target = arch if isinstance(arch, AmdTarget) else TARGETS[arch or driver.arch_for(job.device)]
    name, prepare = prepare_derivative(job.function, job.wrt, pipeline.OUTLINE, job.segment, residual=True)
    (batch, _, queries), keys = sizes[0][:3], sizes[1][2]
    whole, length = Workload(queries, keys, batch * max(size[1] for size in sizes)), bucket(max(queries, keys))
    found = []
    with LOCK, reported(), loaded() as context:
        decided: Fields = {"arch": target.arch, **({"deterministic": 1} if job.deterministic else {})}
        module, _ = scheduled(context, text, name, prepare, decided, _BEFORE_BLOCKS, "AMD")
        known = fields.tuned_in(module.operation, TUNED)
        for kernel in find_all(module.operation, "func.func"):
            facts, sizes_of = facts_of(kernel, chunk_scan_facts), blocks.facts_of(kernel)
            if facts is None or sizes_of is None or facts.grid == "elements":
                continue
            digest = hashlib.sha256(kernel.get_asm(enable_debug_info=False).encode()).hexdigest()
            key = Key(digest, target.arch, facts.element, facts.head_dims, length, versions())
            segment = 0 if facts.scan is None else facts.scan.segment
            work = Workload(segment, segment, whole.heads * -(-keys // segment)) if segment else whole
            found.append(Tunable(fields.tuned_name(kernel), AmdSpace(facts, target, work, blocks.default_blocks(sizes_of)), key))
    return known, found


def compile_job(text: str, job: Job) -> Any:
    """The program, lowered; clang makes its machine code when it is needed."""
    if job.function or job.segment or '"attn.linear_attention"' in text:
        return driver.compile_derivative(text, job.function, job.wrt, job.deterministic, job.device, job.segment)
    return driver.compile_module(text, job.device).program


def refusal(device: str) -> str:
    """Why nothing can be measured, or ""."""
    if device in ON_CPU:
        return f"'{device}' runs kernels on the CPU, whose times say nothing about a GPU"
    return "" if hip.is_rocm() and torch.cuda.is_available() else "there is no AMD GPU here"


def _write(text: str, choices: Mapping[str, Fields]) -> str:
    return fields.with_tuned(text, choices, TUNED)


TUNER = Tuner(_write, tunables, compile_job, GpuBench, lambda: list(TARGETS), refusal)
