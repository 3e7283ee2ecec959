"""Warnings at the line of the user's code that led here, however many frames of attn-mlir, torch and threads lie between."""

import os
import sys
import warnings
from types import FrameType

_PACKAGES = ("attn_mlir", "torch", "concurrent", "contextlib", "functools", "threading")
"""What torch generates counts as torch's."""


def warn(text: str, category: type[Warning]) -> None:
    """Warns at the innermost line of other code; at the caller's where there is none, as in the threads of an autograd engine."""
    frame: FrameType | None = sys._getframe(1)
    level = 2
    while frame is not None and _is_between(frame):
        frame, level = frame.f_back, level + 1
    warnings.warn(text, category, stacklevel=2 if frame is None else level)


def _is_between(frame: FrameType) -> bool:
    name, file = str(frame.f_globals.get("__name__", "")), frame.f_code.co_filename
    if name.partition(".")[0] in _PACKAGES or file.startswith("<eval_with_key>"):
        return True
    torch = sys.modules.get("torch")  # some of what it generates has no name, but tells the file that generated it
    return torch is not None and file.startswith(os.path.join(os.path.dirname(torch.__file__ or ""), ""))
