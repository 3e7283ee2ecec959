"""Work beside a call: compiling what is likely to be needed next."""

import contextlib
import threading
from collections.abc import Callable

import torch

_NAME = "attn-mlir-ahead"


def is_here() -> bool:
    """Whether this is one of its threads, for which nobody waits who would not do the work again."""
    return threading.current_thread().name == _NAME


def in_background(work: Callable[[], object]) -> None:
    """Does it in a thread, for torch's current device. Whoever needs what failed there does it again, and is told why."""
    index = torch.cuda.current_device() if torch.cuda.is_available() else -1

    def run() -> None:
        with contextlib.suppress(Exception), torch.cuda.device(index):
            work()

    threading.Thread(target=run, name=_NAME).start()
