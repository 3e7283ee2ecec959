"""Tunes programs on any backend: what a backend gives for it (`Tuner`), and what is done with that."""

import contextlib
import importlib.metadata
import sys
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

import attn_mlir
from attn_mlir.backends.fields import Fields
from attn_mlir.backends.tuning.processes import shared_cache
from attn_mlir.backends.tuning.report import TuneReport
from attn_mlir.backends.tuning.space import Tunable
from attn_mlir.backends.tuning.store import TuneFile
from attn_mlir.backends.tuning.tuner import Bench, tune
from attn_mlir.backends.tuning.worker import Job

Known = dict[str, Fields]


def _never(device: torch.device) -> bool:
    return False


def _nothing(device: str) -> str:
    return ""


@dataclass(frozen=True)
class Tuner:
    """What a backend gives for tuning, as its manifest's `tune` names it.

    `write(text, choices)`: the text of a module with choices for its kernels. `kernels(text, job, shapes, arch)`: the choices that a module
    has, and the kernels of a job's function that have something to choose, on inputs of these shapes. `arch` names a target that need not
    be there, or is its facts ("": this machine's); it raises UnsupportedError for names that `archs()` does not give. `compile(text, job)`:
    the compiled function, whose `binaries()` makes machine code. `bench(job, inputs, layout)`: what measures, to be closed.
    `refusal(device)`: why nothing can be measured on a device, or ""; `busy(device)`: whether nothing can on it for the time being.
    `count`: how many candidates are measured.
    """

    write: Callable[[str, Mapping[str, Fields]], str]
    kernels: Callable[[str, Job, Sequence[Any], Any], tuple[Known, list[Tunable]]]
    compile: Callable[[str, Job], Any]
    bench: Callable[[Job, Sequence[Any], str], Any]
    archs: Callable[[], Sequence[str]]
    refusal: Callable[[str], str] = _nothing
    busy: Callable[[torch.device], bool] = _never
    count: int = 16


def tune_module(
    tuner: Tuner,
    text: str,
    job: Job,
    inputs: Sequence[Any],
    *,
    layout: str = "bhsd",
    path: str = "",
    measure: bool = True,
    bench: Bench | None = None,
    count: int = 0,
    quiet: bool = False,
) -> tuple[Known, list[TuneReport]]:
    """The best choices for the kernels of a module's function, by their names, and those that the module had; how they were found.

    `inputs` are the arguments that it is to be fast on: q, k, v first. What is found goes to the file at `path`, and what stands there is
    not measured again; without `measure`, nothing is. `count`: see `tuner.tune`; 0: as many as the backend says. Warns where nothing ran,
    the untuned schedule did not, or half of all did not.
    """
    known, found = tuner.kernels(text, job, [tensor.shape for tensor in inputs[:3]], "")
    file = TuneFile(path)
    missing = measure and any(file.find(kernel.key) is None for kernel in found)
    with shared_cache() if missing else contextlib.nullcontext(), contextlib.ExitStack() as stack:
        if bench is None and missing:
            bench = stack.enter_context(contextlib.closing(tuner.bench(job, inputs, layout)))
        measured = bench if bench is not None else _Nothing()
        made, reports = tune(
            text, found, measured, file, tuner.write, measure=missing, known=known, count=count or tuner.count, quiet=quiet
        )
    for report in reports:
        if not report.found and not quiet:
            print(report, file=sys.stderr)
        if report.complaint:
            warnings.warn(report.complaint, stacklevel=2)
    return made, reports


def tune_texts(
    tuner: Tuner, texts: tuple[str, str], job: Job, inputs: Sequence[Any], layout: str, path: str, measure: bool
) -> tuple[str, str]:
    """Both texts of a module, without and with locations, with the best choices in them: where nothing can be measured, the file's."""
    refusal = tuner.refusal(job.device) if measure else ""
    if refusal:
        warnings.warn(f"tune=True measures nothing: {refusal}; schedules are those of the tune file, or the usual ones", stacklevel=2)
    measure = measure and not refusal and not tuner.busy(inputs[0].device)
    choices, _ = tune_module(tuner, texts[0], job, inputs, layout=layout, path=path, measure=measure)
    return tuner.write(texts[0], choices), tuner.write(texts[1], choices)


def versions(**more: str) -> tuple[tuple[str, str], ...]:
    """What a result depends on besides the kernel: releases of attn-mlir, torch, the MLIR bindings, and of `more`."""
    told = {"attn_mlir": attn_mlir.__version__, "torch": torch.__version__, **more}
    return tuple(sorted(told.items()))


def release(distribution: str) -> str:
    """The release of a distribution, or "none"."""
    try:
        return importlib.metadata.version(distribution)
    except importlib.metadata.PackageNotFoundError:
        return "none"


class _Nothing:
    """A bench that is never asked."""

    def compile(self, texts: Sequence[str], done: Callable[[], None]) -> list[str]:
        raise AssertionError("nothing is measured")

    def prepare(self, text: str) -> Callable[[], Any]:
        raise AssertionError("nothing is measured")

    def agree(self, results: Any, reference: Any) -> bool:
        raise AssertionError("nothing is measured")

    def time(self, call: Callable[[], Any], repeats: int) -> float:
        raise AssertionError("nothing is measured")
