"""torch.autocast: inputs are cast as those of torch's scaled_dot_product_attention are, and the gradients back."""

from typing import Any

import torch
from torch.compiler import is_dynamo_compiling

_is_any_enabled = torch._C._is_any_autocast_enabled
# Asked here: up to torch 2.11 Dynamo cannot trace the question.
_DEVICES = frozenset(name for name in ("cpu", "cuda") if torch.amp.is_autocast_available(name))


def may_cast() -> bool:
    """Whether `cast` has something to look at. Inside of torch.compile that is not asked."""
    return is_dynamo_compiling() or _is_any_enabled()


def cast(*tensors: Any, dtype: torch.dtype | None = None) -> tuple[Any, ...]:
    """The tensors; where autocast is enabled for their devices, in its dtype, or in `dtype` where that is given.

    float64 stays, as it does in torch, and so do 8-bit floats, whose scales are told beside them, and what is no tensor of floats.
    """
    if not may_cast():
        return tensors
    return tuple([_cast(x, dtype) for x in tensors])


def _cast(x: Any, dtype: torch.dtype | None) -> Any:
    if not isinstance(x, torch.Tensor) or not x.is_floating_point() or x.dtype == torch.float64 or x.dtype.itemsize == 1:
        return x
    device = x.device.type
    if device not in _DEVICES or not torch.is_autocast_enabled(device):
        return x
    return x.to(torch.get_autocast_dtype(device) if dtype is None else dtype)
