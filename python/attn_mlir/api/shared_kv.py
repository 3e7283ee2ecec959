"""Latent attention (MLA): one tensor holds keys and values, `kv_shared=True`."""

from collections.abc import Sequence
from typing import Any

import torch
from torch.compiler import is_compiling

from attn_mlir.errors import ArgumentError
from attn_mlir.performance import told
from attn_mlir.runtime.dispatch import may_carry_tangents

Joined = tuple[torch.Tensor, torch.Tensor, torch.Tensor, tuple[Any, ...], bool]
_FORM = "kv_shared=True takes (q, q_pe, kv, k_pe, *custom), or (q, kv_cache) with pages [number, positions, heads of k, head dimension]"


def join(q: Any, k: Any, v: Any, custom: Sequence[Any], value_dim: int) -> Joined:
    """q, k, v, the custom inputs, and whether pages were given, of a call `mod(q, q_pe, kv, k_pe, *custom)` or `mod(q, kv_cache)`.

    Of a head of k the first `value_dim` columns are kv, which is also v; the others, for positions, are k_pe.
    """
    if v is None:
        return *_pages(q, k, value_dim), tuple(custom), True
    if not custom:
        raise ArgumentError(f"the call passes 3 tensors: {_FORM}")
    q_pe, kv, k_pe = k, v, custom[0]
    for name, tensor in (("q", q), ("q_pe", q_pe), ("kv", kv), ("k_pe", k_pe)):
        if not isinstance(tensor, torch.Tensor):
            raise ArgumentError(f"{name} must be a torch.Tensor, got {type(tensor).__name__}: {_FORM}")
        if tensor.dim() != 4:
            raise ArgumentError(f"{name} must have 4 dimensions, [batch, position, head, dim], got shape {list(tensor.shape)}")
    for (name, tensor), (other, like) in ((("q_pe", q_pe), ("q", q)), (("k_pe", k_pe), ("kv", kv))):
        if tensor.shape[:3] != like.shape[:3]:
            raise ArgumentError(f"{name} has shape {list(tensor.shape)} but {other} has {list(like.shape)}: only the last size may differ")
        if tensor.dtype != like.dtype or tensor.device != like.device:
            one, two = (f"{x.dtype} on {x.device}" for x in (tensor, like))
            raise ArgumentError(f"{name} is {one} but {other} is {two}: move or cast one of them")
    if kv.shape[3] != value_dim or q.shape[3] != value_dim or q_pe.shape[3] != k_pe.shape[3]:
        sizes = ", ".join(f"{name} {x.shape[3]}" for name, x in (("q", q), ("q_pe", q_pe), ("kv", kv), ("k_pe", k_pe)))
        raise ArgumentError(
            f"the head dimensions are {sizes}; q and kv must have that of v in qkv_meta, {value_dim}, and q_pe that of k_pe"
        )
    return torch.cat((q, q_pe), dim=3), _joined(kv, k_pe), kv, tuple(custom[1:]), False


def _joined(kv: torch.Tensor, k_pe: torch.Tensor) -> torch.Tensor:
    """kv and k_pe as one tensor: where they lie beside each other in memory, without a copy."""
    if is_compiling() or torch._C._functorch.maybe_current_level() is not None or may_carry_tangents():
        return torch.cat((kv, k_pe), dim=3)
    needs_gradient = torch.is_grad_enabled() and (kv.requires_grad or k_pe.requires_grad)
    dim, size = kv.shape[3], kv.element_size()
    beside = kv.stride() == k_pe.stride() and kv.stride(3) == 1 and kv.data_ptr() + dim * size == k_pe.data_ptr()
    if beside and not needs_gradient and kv.untyped_storage().data_ptr() == k_pe.untyped_storage().data_ptr():
        return kv.as_strided((*kv.shape[:3], dim + k_pe.shape[3]), kv.stride())
    if not needs_gradient and kv.numel():
        told(
            "kv_shared=True copies kv and k_pe into one tensor, since they do not lie beside each other: keep them in one, "
            f"as in kv, k_pe = cache[..., :{dim}], cache[..., {dim}:]"
        )
    return torch.cat((kv, k_pe), dim=3)


def _pages(q: Any, cache: Any, value_dim: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """The pages of a cache, of which each batch has the same number in order."""
    for name, tensor in (("q", q), ("kv_cache", cache)):
        if not isinstance(tensor, torch.Tensor) or tensor.dim() != 4:
            got = f"shape {list(tensor.shape)}" if isinstance(tensor, torch.Tensor) else type(tensor).__name__
            raise ArgumentError(f"{name} must be a tensor of 4 dimensions, got {got}: {_FORM}")
    batches, (pages, *rest) = q.shape[0], cache.shape
    if not batches or pages % batches:
        raise ArgumentError(f"kv_cache has {pages} pages, which {batches} batches cannot share evenly: {_FORM}")
    k = cache.unflatten(0, (batches, pages // batches)).flatten(1, 2)
    if k.shape[3] < value_dim:
        raise ArgumentError(f"kv_cache has head dimension {rest[2]}, less than the {value_dim} of v in qkv_meta")
    return q, k, k[..., :value_dim]
