"""What attentions and engines tell of themselves: `stages()`, `ir(stage)`, `explain()` and `report(path)`.

What a report is of is found by `seeing.subjects`, which is imported where one is asked for.
"""

import importlib
from typing import Any, ClassVar

import torch

from attn_mlir.errors import ArgumentError
from attn_mlir.frontend.entry import Entry
from attn_mlir.mlir import LOCK
from attn_mlir.passes.pipeline import PIPELINES
from attn_mlir.runtime.programs import program_of

_CODE = ("tilelang", "cuda", "hip")
"""Stages that are source code and no IR."""


class _Reported:
    _subject: ClassVar[str]
    """The function of `seeing.subjects` for objects of the class."""

    def _traced(self) -> Entry:
        """The trace for dtype and head dimensions of the last call."""
        raise NotImplementedError

    def _compiled(self) -> tuple[Entry, str]:
        """The same as the last call ran it, tuned, and the device."""
        entry, device, tuning = self._traced(), self._device, self._tuning  # type: ignore[attr-defined]
        return (entry if tuning is None else tuning.latest(entry, device)), device

    def stages(self) -> dict[str, str]:
        """The program as IR, "traced" and after each pass, by the pass's name, for device, dtype and sizes of the last call.

        At first: CPU, f32, 64 columns, decays for each step; engines have dtype and sizes of their own.
        """
        entry, device = self._compiled()
        with LOCK:
            return program_of(entry).kernel(device).stages()

    def ir(self, stage: str = "traced", pretty: bool = False) -> str:
        """The program after one stage of `stages()`, or after the last one of a named pipeline, as MLIR or, `pretty`, for people.

        CUDA, HIP and TileLang are what they are. Raises ArgumentError for an unknown stage.
        """
        made = {"traced": self._traced().traced.text} if stage == "traced" else self.stages()
        of_pipeline = [name for name in made if name in PIPELINES.get(stage, "").split(",")]
        stage = of_pipeline[-1] if of_pipeline else stage
        if stage not in made:
            raise ArgumentError(f"stage is one of {', '.join(made)}; got {stage!r}")
        if not pretty or stage in _CODE:
            return made[stage]
        return importlib.import_module("attn_mlir.pretty").pretty_text(made[stage])

    def _write(self, path: Any, backward: bool, binaries: bool, **form: Any) -> None:
        find = getattr(importlib.import_module("attn_mlir.seeing.subjects"), self._subject)
        importlib.import_module("attn_mlir.seeing.report").write_report(path, find(self, backward=backward, **form), backward, binaries)


class AttentionReport(_Reported):
    """What `Attention` and `AttentionEngine` tell of themselves."""

    def report(
        self,
        path: Any,
        *,
        q_len: int = 4096,
        kv_len: int | None = None,
        b: Any = 0,
        h: Any = 0,
        num_heads: int | None = None,
        backward: bool = False,
        device: str | None = None,
        dtype: torch.dtype | None = None,
        head_dim: int | None = None,
        binaries: bool = True,
    ) -> None:
        """Writes one HTML page, without anything from a network: from the functions to the code, with linked lines (docs/seeing.md).

        It is of the last call's device, dtype and head dimensions (at first: CPU, f32, 64), or of `device`, `dtype` and `head_dim`; engines
        have dtype and head dimensions of their own. No GPU is needed for reading what is made for one. backward: also of the backward pass.
        q_len, kv_len, b, h, num_heads: for the picture of the mask, see `attn_mlir.visualize`. binaries: kernels for GPUs are compiled for
        their registers, where the compiler is there.

        Raises ArgumentError where `path` is no .html, and for dtypes and head dimensions of engines; UnsupportedError for devices without a
        report.
        """
        shown = {"q_len": q_len, "kv_len": kv_len, "b": b, "h": h, "num_heads": num_heads}
        self._write(path, backward, binaries, device=device, dtype=dtype, head_dim=head_dim, **shown)


class LinearReport(_Reported):
    """The same of `LinearAttention` and `LinearAttentionEngine`."""

    def explain(self) -> str:
        """What was derived from the recurrence: the chunked form, its factors, and their check."""
        entry = self._traced()
        return importlib.import_module("attn_mlir.api.describe").explain_entry(entry, entry.traced.located)

    def report(
        self,
        path: Any,
        *,
        backward: bool = False,
        device: str | None = None,
        dtype: torch.dtype | None = None,
        head_dim: int | None = None,
        binaries: bool = True,
    ) -> None:
        """Writes one HTML page: from the functions to the code, with linked lines; see `Attention.report` and docs/seeing.md."""
        self._write(path, backward, binaries, device=device, dtype=dtype, head_dim=head_dim)
