"""Kernels that are slower than their device can do: said once, with the reason, or refused where `ATTN_MLIR_STRICT=1` is set."""

import os
from collections.abc import Callable, Mapping
from typing import Any

from attn_mlir.callers import warn
from attn_mlir.dialects import loaded
from attn_mlir.errors import AttnError, PerformanceWarning, UnsupportedError
from attn_mlir.mlir import LOCK, ir
from attn_mlir.passes.position_code import position_code


def is_strict() -> bool:
    """Whether slow kernels are errors."""
    return os.environ.get("ATTN_MLIR_STRICT", "0") not in ("", "0")


def tell(kernel: Any, device: str, located: Callable[[], Mapping[str, str]], notes: dict[str, str], text: str = "") -> None:
    """Warns of the slow kernels of a compiled program, or raises UnsupportedError; adds what it says to `notes`, by their names.

    `located` looks again, in the program with locations, for reasons that name the user's lines; `text` is that program. What only the
    compiler of a kernel finds, such as registers that do not suffice, is told before the kernel's first launch.
    """
    listeners = getattr(kernel, "listeners", None)
    if listeners is not None:
        listeners.append(lambda slow: _tell_compiled(slow, device, notes, text))
    slow = getattr(kernel, "slow", None)
    if not slow:
        return
    try:
        slow = {**slow, **located()}
    except AttnError:
        pass  # the reasons are known, only the lines are not
    for name, reason in slow.items():
        if notes.get(name) != reason:
            told(f"on {device} {name} is slower than it could be: {reason}")
            notes[name] = reason


def _tell_compiled(slow: Mapping[str, str], device: str, notes: dict[str, str], text: str) -> None:
    """The same for what a compiler found."""
    for name, reason in slow.items():
        if name in notes:
            continue
        reason = because(reason, _position_code(text))
        told(f"on {device} {name} is slower than it could be: {reason}")
        notes[name] = reason


def because(reason: str, likely: str) -> str:
    """A reason with what is likely to be behind it, if anything is known."""
    return f"{reason}, probably for {likely}" if likely else reason


def _position_code(text: str) -> str:
    """See `position_code`; empty for what is no module."""
    with LOCK, loaded():
        try:
            return position_code(ir.Module.parse(text).operation)
        except ir.MLIRError:
            return ""


def told(text: str, page: str = "docs/nvidia.md") -> None:
    """Warns, at the line of the user's code that led here; `page` is where to read on. Raises UnsupportedError where that is asked for."""
    if is_strict():
        raise UnsupportedError(f"{text}; ATTN_MLIR_STRICT=1 refuses that")
    warn(f"{text}. {page} tells what is fast; ATTN_MLIR_STRICT=1 makes this an error", PerformanceWarning)
