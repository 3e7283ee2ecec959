"""Kernels that are slower than their device can do: said once, with the reason, or refused where `ATTN_MLIR_STRICT=1` is set."""

import os
from collections.abc import Callable, Mapping
from typing import Any

from attn_mlir.callers import warn
from attn_mlir.errors import AttnError, PerformanceWarning, UnsupportedError


def is_strict() -> bool:
    """Whether slow kernels are errors."""
    return os.environ.get("ATTN_MLIR_STRICT", "0") not in ("", "0")


def tell(kernel: Any, device: str, located: Callable[[], Mapping[str, str]], notes: dict[str, str]) -> None:
    """Warns of the slow kernels of a compiled program, or raises UnsupportedError; adds what it says to `notes`, by their names.

    `located` looks again, in the program with locations, for reasons that name the user's lines.
    """
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


def told(text: str) -> None:
    """Warns, at the line of the user's code that led here. Raises UnsupportedError where that is asked for."""
    if is_strict():
        raise UnsupportedError(f"{text}; ATTN_MLIR_STRICT=1 refuses that")
    warn(f"{text}. docs/nvidia.md tells what is fast; ATTN_MLIR_STRICT=1 makes this an error", PerformanceWarning)
