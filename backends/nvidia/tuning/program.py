"""What the NVIDIA backend gives for tuning: the kernels of a program, what they are run on, and how they are compiled and measured."""

import hashlib
from collections.abc import Sequence
from typing import Any

import torch

from attn_mlir.backends.fields import Fields, tuned_name
from attn_mlir.backends.gpu.bench import GpuBench
from attn_mlir.backends.gpu.scheduled import scheduled
from attn_mlir.backends.graph_capture import is_captured
from attn_mlir.backends.nvidia import driver, pipeline
from attn_mlir.backends.nvidia.compile import compiler_for
from attn_mlir.backends.nvidia.derivatives import derivative
from attn_mlir.backends.nvidia.emulation import CHIPS
from attn_mlir.backends.nvidia.target import TARGETS, NvidiaTarget
from attn_mlir.backends.nvidia.tuning.choices import choices_in, with_choices
from attn_mlir.backends.nvidia.tuning.facts import facts_of
from attn_mlir.backends.nvidia.tuning.space import NvidiaSpace
from attn_mlir.backends.program import reported
from attn_mlir.backends.tuning.program import Tuner, release
from attn_mlir.backends.tuning.program import versions as common_versions
from attn_mlir.backends.tuning.space import Tunable, Workload
from attn_mlir.backends.tuning.store import Key, bucket
from attn_mlir.backends.tuning.worker import Job
from attn_mlir.dialects import loaded
from attn_mlir.errors import UnsupportedError
from attn_mlir.mlir import LOCK
from attn_mlir.passes.regions import find_all

_BEFORE_BLOCKS = pipeline.KERNEL.partition(",nvidia-choose-blocks")[0]


def tunables(text: str, job: Job, sizes: Sequence[Any], target: NvidiaTarget) -> tuple[dict[str, Fields], list[Tunable]]:
    """The choices that a module has, and the kernels of its function that have something to choose; `sizes` are shapes of q, k
    and v."""
    name, prepare = derivative(job.function, job.wrt, target.arch, job.segment)
    (batch, _, queries), keys = sizes[0][:3], sizes[1][2]
    heads = max(size[1] for size in sizes)
    whole, length = Workload(queries, keys, batch * heads), bucket(max(queries, keys))
    found = []
    with LOCK, reported(), loaded() as context:
        decided: Fields = {"arch": target.arch, **({"deterministic": 1} if job.deterministic else {})}
        module, _ = scheduled(context, text, name, prepare, decided, _BEFORE_BLOCKS, "NVIDIA")
        known = choices_in(module.operation)
        for kernel in find_all(module.operation, "func.func"):
            facts = facts_of(kernel)
            if facts is None or facts.grid == "elements":
                continue
            digest = hashlib.sha256(kernel.get_asm(enable_debug_info=False).encode()).hexdigest()
            key = Key(digest, target.arch, facts.element, facts.head_dims, length, versions())
            segment = 0 if facts.scan is None else facts.scan.segment
            work = Workload(segment, segment, whole.heads * -(-keys // segment)) if segment else whole
            found.append(Tunable(tuned_name(kernel), NvidiaSpace(facts, target, work), key))
    return known, found


def versions() -> tuple[tuple[str, str], ...]:
    """What a result depends on besides the kernel: releases of attn-mlir, torch and, where it is installed, TileLang; CUDA's compiler.

    nvcc and NVRTC of one release are the same compiler, and tell the same build.
    """
    try:
        found = compiler_for().build
    except UnsupportedError:
        found = "none"
    return common_versions(nvcc=found, tilelang=release("tilelang"))


def _kernels(text: str, job: Job, sizes: Sequence[Any], arch: str | NvidiaTarget) -> tuple[dict[str, Fields], list[Tunable]]:
    if isinstance(arch, NvidiaTarget):
        return tunables(text, job, sizes, arch)
    if arch and arch not in TARGETS:
        raise UnsupportedError(f"no NVIDIA GPU is known as '{arch}': one of {', '.join(TARGETS)}")
    return tunables(text, job, sizes, TARGETS[arch] if arch else driver.current_target())


def compile_job(text: str, job: Job) -> Any:
    """The program, lowered; its machine code is made or loaded when it is needed."""
    if job.function or job.segment:
        made = driver.derivative_for_gpu(text, job.function, job.wrt, job.deterministic, job.segment)
        made.beside = None  # of many candidates, one is used
        return made
    return driver.compile_module(text).program


def _refusal(device: str) -> str:
    if device in CHIPS:
        return f"'{device}' runs kernels on the CPU, whose times say nothing about a GPU"
    return "" if torch.cuda.is_available() else "there is no NVIDIA GPU here"


TUNER = Tuner(with_choices, _kernels, compile_job, GpuBench, lambda: list(TARGETS), _refusal, is_captured)
