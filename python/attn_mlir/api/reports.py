"""`report(path)` of attentions and engines: what it is of is found by `seeing.subjects`, which is imported where a report is asked for."""

import importlib
from typing import Any, ClassVar

import torch


class _Reported:
    _subject: ClassVar[str]
    """The function of `seeing.subjects` for objects of the class."""

    def _write(self, path: Any, backward: bool, binaries: bool, **form: Any) -> None:
        find = getattr(importlib.import_module("attn_mlir.seeing.subjects"), self._subject)
        importlib.import_module("attn_mlir.seeing.report").write_report(path, find(self, backward=backward, **form), backward, binaries)


class AttentionReport(_Reported):
    """`report` of `Attention` and `AttentionEngine`."""

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
    """`report` of `LinearAttention` and `LinearAttentionEngine`."""

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
