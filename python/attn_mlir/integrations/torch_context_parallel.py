"""Rings of attn_mlir inside of PyTorch's `context_parallel`, for scaled_dot_product_attention as torch has it or with a row of one's own.

from attn_mlir.integrations import torch_context_parallel
torch_context_parallel.install(score_mod=..., row=...)

`torch.distributed.tensor.experimental.context_parallel` cuts buffers over the ranks of a mesh and replaces
`torch.nn.functional.scaled_dot_product_attention` meanwhile by one function of its module, the only place where it can be had otherwise.
"""

import functools
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed.tensor.experimental._context_parallel._attention as torch_cp
import torch.nn.functional as F
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh

from attn_mlir.api import masks
from attn_mlir.distributed import ring_attention
from attn_mlir.errors import ArgumentError, UnsupportedError

_HOOKS = ("_enable_context_parallel_dispatcher_impl", "_disable_context_parallel_dispatcher_impl")
_BEFORE: dict[str, Callable[..., None]] = {}
_REPLACED: list[Callable[..., Any]] = []


class RingInstallation:
    """What `install` returns: leaving it as a context manager, or `uninstall()`, puts PyTorch's ring back."""

    def __enter__(self) -> "RingInstallation":
        return self

    def __exit__(self, *_: object) -> None:
        self.uninstall()

    def uninstall(self) -> None:
        """Puts PyTorch's ring back."""
        for name, function in _BEFORE.items():
            setattr(torch_cp, name, function)
        _BEFORE.clear()


def install(**options: Any) -> RingInstallation:
    """Lets `context_parallel` compute scaled_dot_product_attention by `ring_attention` until it is uninstalled.

    options: what `ring_attention` takes besides q, k, v, mesh and placement: row, score_mod, mask_mod (beside is_causal), strategy...
    Positions are those of whole sequences, "zigzag" where torch balances its load, as it does by default.
    Raises UnsupportedError where this version of torch has no such place.
    """
    unknown = [name for name in ("mesh", "dim", "placement", "scale", "layout") if name in options]
    if unknown:
        raise ArgumentError(f"{', '.join(unknown)} is what context_parallel and the call of scaled_dot_product_attention say: leave it out")
    if not all(hasattr(torch_cp, name) for name in _HOOKS):
        raise UnsupportedError(f"torch {torch.__version__} has no {' and '.join(_HOOKS)}: call attn_mlir.distributed.ring_attention")
    if not _BEFORE:
        _BEFORE.update({name: getattr(torch_cp, name) for name in _HOOKS})
    setattr(torch_cp, _HOOKS[0], functools.partial(_enable, options))
    setattr(torch_cp, _HOOKS[1], _disable)
    return RingInstallation()


def _enable(options: dict[str, Any], seq_dim: int, mesh: DeviceMesh) -> None:
    placement = "zigzag" if torch_cp._cp_options.enable_load_balance else "contiguous"
    _REPLACED.append(F.scaled_dot_product_attention)
    F.scaled_dot_product_attention = functools.partial(_attention, (mesh, placement, options))  # type: ignore[assignment]


def _disable() -> None:
    F.scaled_dot_product_attention = _REPLACED.pop()


def _attention(
    ring: tuple[DeviceMesh, str, dict[str, Any]], query: Tensor, key: Tensor, value: Tensor, attn_mask: Tensor | None = None,
    dropout_p: float = 0.0, is_causal: bool = False, *, scale: float | None = None, enable_gqa: bool = False,
) -> Tensor:  # fmt: skip
    """scaled_dot_product_attention of a rank's shards; `ring` is the mesh, the placement, and the options of `ring_attention`."""
    mesh, placement, options = ring
    if attn_mask is not None:
        raise UnsupportedError("attn_mask is a tensor of all pairs, of which a rank has no part: pass mask_mod to install()")
    if dropout_p:
        raise UnsupportedError("rings have no dropout: pass dropout_p=0")
    if query.shape[1] != key.shape[1] and not enable_gqa:
        raise ArgumentError(f"q has {query.shape[1]} heads and k has {key.shape[1]}: pass enable_gqa=True")
    given = options.get("mask_mod")
    mask = given if not is_causal else masks.causal() if given is None else _both(given)
    return ring_attention(query, key, value, mesh=mesh, placement=placement, scale=scale, **{**options, "mask_mod": mask})


def _both(mask_mod: Callable[..., Any]) -> Callable[..., Any]:
    def causal_too(b: Any, h: Any, q_idx: Any, kv_idx: Any) -> Any:
        return mask_mod(b, h, q_idx, kv_idx) & (q_idx >= kv_idx)

    return causal_too
