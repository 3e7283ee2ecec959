"""Tensors that follow from sizes alone: made once, and kept."""

from collections.abc import Callable
from typing import Any

import torch

from attn_mlir.backends.graph_capture import is_captured

_MOST = 256
"""Sizes whose tensors are kept."""
_KEPT: dict[tuple[Any, ...], dict[str, torch.Tensor]] = {}
_CAPTURED: dict[int, dict[str, torch.Tensor]] = {}
"""Those that CUDA graphs read, by their ids, which are never freed."""


def kept_by_sizes(key: tuple[Any, ...], make: Callable[[], dict[str, torch.Tensor]]) -> dict[str, torch.Tensor]:
    """What follows from sizes alone, and is made once; the last of `key` is the device.

    Each call has to ask for it here, so that what a graph reads is never freed.
    """
    captures = is_captured(key[-1])
    found = _KEPT.get(key)
    if found is None:
        found = make()
        if not captures:  # what a graph makes has no contents before it runs
            if key[-1].type == "cuda":
                torch.cuda.current_stream(key[-1]).synchronize()  # calls on other streams take it, too
            if len(_KEPT) == _MOST:
                for device in {known[-1] for known in _KEPT if known[-1].type == "cuda"}:
                    torch.cuda.synchronize(device)  # kernels on other streams may read them still
                _KEPT.clear()
            _KEPT[key] = found
    elif captures:
        _CAPTURED[id(found)] = found
    return found
