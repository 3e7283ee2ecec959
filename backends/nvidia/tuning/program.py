"""Tunes a program for the current GPU: finds its kernels and what they are run on."""

import contextlib
import hashlib
import importlib.metadata
import sys
from collections.abc import Sequence
from typing import Any

import torch

import attn_mlir
from attn_mlir.backends.gpu.attributes import Fields
from attn_mlir.backends.gpu.units import outlined
from attn_mlir.backends.host import read_host
from attn_mlir.backends.nvidia import compile as nvcc
from attn_mlir.backends.nvidia import cuda, driver, pipeline
from attn_mlir.backends.nvidia.target import NvidiaTarget
from attn_mlir.backends.nvidia.tuning.bench import GpuBench, shared_cache
from attn_mlir.backends.nvidia.tuning.choices import choices_in, tuned_name, with_choices
from attn_mlir.backends.nvidia.tuning.facts import facts_of
from attn_mlir.backends.nvidia.tuning.model import Work
from attn_mlir.backends.nvidia.tuning.store import Key, TuneFile, bucket
from attn_mlir.backends.nvidia.tuning.tuner import Bench, Tunable, tune
from attn_mlir.backends.nvidia.tuning.worker import Job
from attn_mlir.backends.program import function_named, prepare_derivative, reported
from attn_mlir.dialects import load_all
from attn_mlir.errors import UnsupportedError
from attn_mlir.mlir import LOCK, ir
from attn_mlir.passes.pipeline import Pipeline
from attn_mlir.passes.regions import find_all
from attn_mlir.registry import registry

_BEFORE_BLOCKS = pipeline.KERNEL.partition(",nvidia-choose-blocks")[0]


def tune_module(
    text: str,
    job: Job,
    inputs: Sequence[Any],
    layout: str = "bhsd",
    path: str = "",
    measure: bool = True,
    bench: Bench | None = None,
    count: int = 16,
) -> dict[str, Fields]:
    """The best choices for the kernels of a module's function, by their names, and those that the module had.

    `inputs` are the arguments that it is to be fast on: q, k, v first. What is found goes to the file at `path`, and what stands there is
    not measured again; without `measure`, nothing is. `count`: see `tuner.tune`.
    """
    target = driver.current_target()
    known, found = tunables(text, job, [tensor.shape for tensor in inputs[:3]], target)
    with shared_cache(), contextlib.ExitStack() as stack:
        if bench is None:
            bench = stack.enter_context(contextlib.closing(GpuBench(job, inputs, layout)))
        made, reports = tune(text, found, bench, TuneFile(path), target, measure, known, count)
    for report in reports:
        if not report.found:
            print(report, file=sys.stderr)
    return made


def tunables(text: str, job: Job, sizes: Sequence[Any], target: NvidiaTarget) -> tuple[dict[str, Fields], list[Tunable]]:
    """The choices that a module has, and the kernels of its function that have something to choose; `sizes` are shapes of q, k
    and v."""
    name, prepare = prepare_derivative(job.function, job.wrt, pipeline.outline(target.arch), job.segment)
    (batch, _, queries), keys = sizes[0][:3], sizes[1][2]
    heads = max(size[1] for size in sizes)
    whole, length = Work(queries, keys, batch * heads), bucket(max(queries, keys))
    found = []
    with LOCK, reported(), ir.Context() as context:
        load_all(context)
        module = ir.Module.parse(text)
        known = choices_in(module.operation)
        Pipeline.parse(prepare, registry()).run(module)
        host = read_host(function_named(module, name))
        outlined(module, host, {"arch": target.arch, **({"deterministic": 1} if job.deterministic else {})})
        Pipeline.parse(_BEFORE_BLOCKS, registry()).run(module)
        for kernel in find_all(module.operation, "func.func"):
            facts = facts_of(kernel)
            if facts is None or facts.grid == "elements":
                continue
            digest = hashlib.sha256(kernel.get_asm(enable_debug_info=False).encode()).hexdigest()
            key = Key(digest, target.arch, facts.element, facts.head_dims, length, versions())
            segment = 0 if facts.sweep is None else facts.sweep.segment
            work = Work(segment, segment, whole.heads * -(-keys // segment)) if segment else whole
            found.append(Tunable(tuned_name(kernel), facts, work, key))
    return known, found


def versions() -> tuple[tuple[str, str], ...]:
    """What a result depends on besides the kernel: releases of attn-mlir, torch and nvcc, and of TileLang where it is installed."""
    told = {"attn_mlir": attn_mlir.__version__, "torch": torch.__version__}
    try:
        told["nvcc"] = nvcc.nvcc_version(nvcc.find_nvcc())
    except UnsupportedError:
        told["nvcc"] = "none"
    try:
        told["tilelang"] = importlib.metadata.version("tilelang")
    except importlib.metadata.PackageNotFoundError:
        told["tilelang"] = "none"
    return tuple(sorted(told.items()))


def tune_texts(
    texts: tuple[str, str],
    function: str,
    wrt: Sequence[str],
    deterministic: bool,
    inputs: Sequence[Any],
    layout: str,
    path: str,
    measure: bool,
    segment: int = 0,
) -> tuple[str, str]:
    """What `Backend.tune` refers to: both texts of a module, without and with locations, with the best choices in them."""
    # While a CUDA graph is captured, nothing can be measured.
    measure = measure and not cuda.is_capturing()
    choices = tune_module(texts[0], Job(function, tuple(wrt), deterministic, segment), inputs, layout, path, measure)
    return with_choices(texts[0], choices), with_choices(texts[1], choices)
