"""attention_autotuner's functions: softmax attention and parallel retention on tensors [B, H, S, D], with a description of the GPU."""

from typing import Any

import torch

from attn_mlir.api import masks, rows
from attn_mlir.api.arch import Arch, device_for
from attn_mlir.api.attention import attention
from attn_mlir.errors import ArgumentError

__all__ = ["MultiHeadAttnFunc", "RetNetAttn", "RetNetAttnFunc", "flash_attn_func"]

_CAUSAL = masks.causal()


def flash_attn_func(q: Any, k: Any, v: Any, device_type: Any, causal: bool = False, scale: float | None = None) -> Any:
    """softmax(scale q k^T) v, [B, H, Sq, Dv]; with causal=True query i sees the keys 0 to i. scale=None is 1/sqrt(D).

    attention_autotuner multiplies by 0.125 whatever D is, which is 1/sqrt(D) at D = 64: scale=0.125 gives its numbers.
    device_type: an `Arch`, or a device by name; kernels are made for the device of the tensors whichever `Arch` is given.
    """
    return attention(q, k, v, mask_mod=_causal(causal), scale=scale, device=_device(device_type))


def _retention(q: Any, k: Any, v: Any, mask: Any, device_type: Any, causal: bool = False) -> Any:
    """(s / r) v with s = (q k^T) * mask and r = max(sum |s|, 1), [B, H, Sq, Dv]; mask is [H, Sq, Skv]. There is no scale.

    r counts as a constant in the backward pass, and mask gets no gradient, as in attention_autotuner. device_type, causal: see
    `flash_attn_func`.
    """
    decay = _decay(q, k, mask)
    return attention(
        q, k, v, row=rows.retention, score_mod=lambda score, b, h, q_idx, kv_idx: score * decay[h, q_idx, kv_idx],
        mask_mod=_causal(causal), scale=1.0, device=_device(device_type),
    )  # fmt: skip


class _Function:
    """A function that is called by its own name or by `apply`, as those of autograd are."""

    def __init__(self, function: Any) -> None:
        self.apply = function
        self.__doc__ = function.__doc__

    def __call__(self, *arguments: Any, **options: Any) -> Any:
        return self.apply(*arguments, **options)


MultiHeadAttnFunc = _Function(flash_attn_func)
RetNetAttn = RetNetAttnFunc = _Function(_retention)


def _device(device_type: Any) -> Any:
    if device_type is None or isinstance(device_type, (Arch, str, torch.device)):
        return device_for(device_type)
    if isinstance(device_type, type) and issubclass(device_type, Arch):
        raise ArgumentError(f"device_type is the class {device_type.__name__}; pass an instance: {device_type.__name__}()")
    raise ArgumentError(
        f'device_type is a description of a GPU such as A100(), or a device such as "cpu", got {type(device_type).__name__}'
    )


def _causal(causal: Any) -> Any:
    if not isinstance(causal, (bool, int)):
        raise ArgumentError(f"causal is True or False, got {causal!r}")
    return _CAUSAL if causal else None


def _decay(q: Any, k: Any, mask: Any) -> torch.Tensor:
    """The mask without its gradient, with one part for every head of q."""
    if not isinstance(mask, torch.Tensor) or mask.dim() != 3:
        got = f"shape {list(mask.shape)}" if isinstance(mask, torch.Tensor) else type(mask).__name__
        raise ArgumentError(f"mask must be a tensor [heads, queries, keys], got {got}")
    if isinstance(q, torch.Tensor) and isinstance(k, torch.Tensor) and q.dim() == k.dim() == 4:
        heads, queries, keys = q.shape[1], q.shape[2], k.shape[2]
        if tuple(mask.shape) not in ((heads, queries, keys), (1, queries, keys)):
            raise ArgumentError(f"mask has shape {list(mask.shape)}, but q and k make it [{heads}, {queries}, {keys}], or 1 for all heads")
        return mask.detach().expand(heads, queries, keys)
    return mask.detach()
