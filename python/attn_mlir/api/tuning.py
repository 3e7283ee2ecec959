"""`tune=True`: programs whose kernels were measured on the tensors of the first call, or taken from a tune file."""

import dataclasses
import os
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch._C._functorch import maybe_current_level

from attn_mlir import driver, forks
from attn_mlir.errors import ArgumentError
from attn_mlir.frontend.cache import Entry
from attn_mlir.runtime.call import Call
from attn_mlir.runtime.dispatch import is_plain, needing_gradient
from attn_mlir.runtime.orders import output_order
from attn_mlir.runtime.programs import program_of

Wish = tuple[bool, str]
"""Whether to measure what a tune file does not hold, and the file."""


def tuning_of(forward: Wish, backward: Wish, names: Sequence[str] = ("tune_file", "tune_file_bwd")) -> "Tuning | None":
    """The tuning of an attention, None where nothing is wished; `names` are those of the arguments for files.

    Where nothing can be measured, as on an emulated device, the usual schedules stay. Raises ArgumentError for files that are no paths.
    """
    for name, (_, file) in zip(names, (forward, backward), strict=True):
        if not isinstance(file, (str, os.PathLike)):
            raise ArgumentError(f"{name} is a path, got {file!r}")
    return Tuning(forward, backward) if any((*forward, *backward)) else None


class Tuning:
    """The tuned programs of one attention: one for each program, device and bucket of lengths (a power of two)."""

    def __init__(self, forward: Wish, backward: Wish) -> None:
        self._forward, self._backward = forward, backward
        self._tuned: dict[Any, Entry] = {}
        self._latest: dict[tuple[str, str], Entry] = {}
        self._tuners: dict[str, Any] = {}
        self._lock = forks.rlock()

    def entry(self, call: Call) -> Entry:
        """The program to run in place of that of a call: the tuned one, tuned now if this is the first such call.

        It is the call's own on a device whose backend has no tuner.
        """
        entry, device, deterministic = call.entry, call.device, call.deterministic
        if device not in self._tuners:
            self._tuners[device] = driver.tuner_for(device)
        tuner = self._tuners[device]
        if tuner is None:
            return entry
        values = list(call.heads_first())
        q, k = values[:2]
        if maybe_current_level() is not None or not is_plain(values) or not all(size for value in (q, k) for size in value.shape):
            return self.latest(entry, device)
        program = program_of(entry, deterministic)
        wrt = tuple(program.argument(i) for i in needing_gradient(values))
        entry = _with_segment(entry, program, device, wrt, values)
        lengths = tuple((value.shape[2] - 1).bit_length() for value in (q, k))
        # Single queries of grouped heads may have a kernel of their own, and fewer threads other schedules.
        kind = (q.shape[1] == k.shape[1], torch.get_num_threads())
        key = (entry.traced.text, entry.traced.segment, wrt, device, lengths, kind, q.dtype, deterministic)
        with self._lock:
            if key not in self._tuned:
                plain = [value.detach() if isinstance(value, torch.Tensor) else value for value in values]
                job = _Job(tuner, wrt, plain, output_order(call.layout), device, deterministic)
                with torch.no_grad():
                    self._tuned[key] = self._tune(entry, job)
            self._latest[(entry.traced.text, device)] = self._tuned[key]
            return self._tuned[key]

    def latest(self, entry: Entry, device: str) -> Entry:
        """The program that the last call ran in place of `entry`, or itself: inside torch.compile nothing is measured."""
        return self._latest.get((entry.traced.text, device), entry)

    def _tune(self, entry: Entry, job: "_Job") -> Entry:
        if not job.wrt:
            return job.tuned(entry, "", job.values, self._forward)
        entry = job.tuned(entry, "fwd", job.values, self._forward)
        program = program_of(entry, job.deterministic)
        results = program.derivative(job.device, "fwd", "+".join(job.wrt)).run(job.values, job.layout)
        gradients = [torch.randn_like(result) for result in results[: program.made]]
        return job.tuned(entry, "bwd", [*job.values, *results, *gradients], (self._backward[0], self._backward[1] or self._forward[1]))


@dataclasses.dataclass(frozen=True)
class _Job:
    """What tuning one program needs to know of the call."""

    tuner: Callable[..., Any]
    wrt: tuple[str, ...]
    values: list[Any]
    layout: str
    device: str
    deterministic: bool

    def tuned(self, entry: Entry, function: str, inputs: list[Any], wish: Wish) -> Entry:
        """The entry with the best kernels of one function."""
        traced = entry.traced
        is_written = bool(traced.written[0]) and function != ""
        texts = traced.written if is_written else (traced.text, traced.located)
        name = f"written-{function}" if is_written else function
        measure, file = wish
        made = self.tuner(
            texts, name, self.wrt, inputs, deterministic=self.deterministic, layout=self.layout, file=file, measure=measure,
            segment=traced.segment or 0,
        )  # fmt: skip
        if made == texts:
            return entry
        changed = {"written": made} if is_written else {"text": made[0], "located": made[1]}
        return Entry(dataclasses.replace(traced, **changed))


def _with_segment(entry: Entry, program: Any, device: str, wrt: tuple[str, ...], values: Sequence[Any]) -> Entry:
    """The entry with the segments that scans of a linear attention have on these tensors, so that they stay whatever kernels it gets."""
    if entry.traced.linear is None:
        return entry
    segment = program.derivative(device, "bwd" if wrt else "", "+".join(wrt)).segment_for(values)
    return Entry(dataclasses.replace(entry.traced, segment=segment))
