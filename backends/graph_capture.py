"""Whether calls are being captured into a CUDA graph, which runs them later: what they read has no contents yet, or is read once more."""

import torch

_current_device = getattr(torch._C, "_cuda_getDevice", None)
"""The number of torch's current device; without a guard, as launches ask at every call. None in torch without CUDA."""


def is_capturing(index: int) -> bool:
    """Whether torch's current stream on the GPU of this number is being captured."""
    if _current_device is not None and _current_device() == index:  # as in every warm call
        return torch.cuda.is_current_stream_capturing()
    with torch.cuda.device(index):  # torch tells of the current device alone
        return torch.cuda.is_current_stream_capturing()


def is_captured(device: torch.device) -> bool:
    """The same of a device of any type."""
    return device.type == "cuda" and is_capturing(torch.cuda.current_device() if device.index is None else device.index)
