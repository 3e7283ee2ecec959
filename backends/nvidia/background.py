"""Work beside a call: compiling what is likely to be needed next."""

import contextlib
import threading
from collections.abc import Callable

import torch


def in_background(work: Callable[[], object]) -> None:
    """Does it in a thread, for torch's current device. Whoever needs what failed there does it again, and is told why."""
    index = torch.cuda.current_device() if torch.cuda.is_available() else -1

    def run() -> None:
        with contextlib.suppress(Exception), torch.cuda.device(index):
            work()

    threading.Thread(target=run, name="attn-mlir-ahead").start()
