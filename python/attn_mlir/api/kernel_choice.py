"""What decides which kernels a call can take: how torch looks at it, and what its device has."""

import contextlib
from typing import Any

import torch
from torch._C._functorch import peek_interpreter_stack
from torch.autograd import forward_ad

from attn_mlir.backends import backend_for
from attn_mlir.errors import ArgumentError
from attn_mlir.runtime.call import Call
from attn_mlir.runtime.dispatch import program_on
from attn_mlir.runtime.varlen import largest

_HOPPER = (9, 0)
"""The compute capability of those GPUs of NVIDIA whose kernels read keys in pages."""


def is_differentiated() -> bool:
    """Whether calls are inside of a transform of torch.func, or where tensors have tangents."""
    return peek_interpreter_stack() is not None or forward_ad._current_level >= 0


def is_transformed() -> bool:
    """Whether torch looks at calls in another way: transforms, tangents, modes."""
    return is_differentiated() or torch._C._len_torch_dispatch_stack() > 0


def reads_inside(call: Call, most: tuple[Any, Any] | None) -> bool:
    """Whether a call that looks up positions in tensors of its own is seen to read captured tensors inside of their bounds.

    Where it is not, the call may still be right, as checks look at each of these tensors by itself. `most`: see `largest`; None: keys are
    not packed.
    """
    program = program_on(call)
    if not program.kinds.tensors or not program.reads.from_data():
        return True
    try:
        with contextlib.nullcontext() if most is None else largest(*most):
            program.check(call.values[3:], call.problem.sizes, call.problem.device)
    except ArgumentError:
        return False
    return True


def reads_pages(target: str, tensor: torch.Tensor) -> bool:
    """Whether kernels of a device read keys in pages; `tensor` is one of the call's, on the GPU that is asked."""
    backend = backend_for(target)
    if backend is None or not backend.paged:
        return False
    return backend.name != "nvidia" or (tensor.is_cuda and torch.cuda.get_device_capability(tensor.device) == _HOPPER)
