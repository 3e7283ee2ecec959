"""What decides which kernels a call can take: how torch looks at it, and what its device has."""

import torch
from torch._C._functorch import peek_interpreter_stack
from torch.autograd import forward_ad

from attn_mlir.backends import backend_for

_HOPPER = (9, 0)
"""The compute capability of those GPUs of NVIDIA whose kernels read keys in pages."""


def is_differentiated() -> bool:
    """Whether calls are inside of a transform of torch.func, or where tensors have tangents."""
    return peek_interpreter_stack() is not None or forward_ad._current_level >= 0


def is_transformed() -> bool:
    """Whether torch looks at calls in another way: transforms, tangents, modes."""
    return is_differentiated() or torch._C._len_torch_dispatch_stack() > 0


def reads_pages(target: str, tensor: torch.Tensor) -> bool:
    """Whether kernels of a device read keys in pages; `tensor` is one of the call's, on the GPU that is asked."""
    backend = backend_for(target)
    if backend is None or not backend.paged:
        return False
    return backend.name != "nvidia" or (tensor.is_cuda and torch.cuda.get_device_capability(tensor.device) == _HOPPER)
