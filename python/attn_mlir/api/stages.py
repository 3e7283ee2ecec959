"""The stages of a traced attention as IR, and what is slow of what was compiled of it."""

import importlib
from collections.abc import Callable

from attn_mlir import driver
from attn_mlir.errors import ArgumentError
from attn_mlir.frontend.cache import Entry
from attn_mlir.mlir import LOCK
from attn_mlir.passes.pipeline import PIPELINES
from attn_mlir.runtime.programs import program_of

_CODE = ("tilelang", "cuda", "hip")
"""Stages that are source code and no IR."""


def kernel_of(entry: Entry, device: str) -> driver.Kernel:
    """The kernel of a traced program for a device, compiled at its first use."""
    return program_of(entry).kernel(device)


def stages_of(entry: Entry, device: str) -> dict[str, str]:
    """A traced program as IR, for a device: "traced", and after each pass, by the pass's name."""
    with LOCK:
        return kernel_of(entry, device).stages()


def slow_of(entry: Entry) -> str:
    """What `explain()` says of kernels, compiled of a trace, that are slower than their device can do or do without its matrix tiles.

    And of inputs that they copied.
    """
    every = [served for program in entry.programs if program is not None for served in (program, *program.served.values())]
    slow = {name: reason for program in every for name, reason in program.slow.items()}
    copied = {name: reason for program in every for name, reason in program.copies().items()}
    lines = [f"slow: {name}: {reason}\n" for name, reason in slow.items()]
    with LOCK:
        scalar = {name: reason for program in every for name, reason in program.without_tiles().items()}
    lines += [f"without matrix tiles: {name}: {reason}\n" for name, reason in scalar.items()]
    return "".join([*lines, *[f"copied: {name}, in a call of this process: {reason}\n" for name, reason in copied.items()]])


def stage_of(entry: Entry, stage: str, stages: Callable[[], dict[str, str]], pretty: bool = False) -> str:
    """One of what `stages` returns, which is not called for "traced"; of a named pipeline, what its last pass made. Raises ArgumentError.

    `pretty` is for people, where the stage is IR: CUDA, HIP and TileLang stay as they are.
    """
    made = {"traced": entry.traced.text} if stage == "traced" else stages()
    of_pipeline = [name for name in made if name in PIPELINES.get(stage, "").split(",")]
    stage = of_pipeline[-1] if of_pipeline else stage
    if stage not in made:
        raise ArgumentError(f"stage is one of {', '.join(made)}; got {stage!r}")
    if not pretty or stage in _CODE:
        return made[stage]
    return importlib.import_module("attn_mlir.pretty").pretty_text(made[stage])
