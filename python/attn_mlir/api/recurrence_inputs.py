"""Checks what ready-made linear attentions are given, under their own argument names. Tensors are [B, T, H, D]."""

import math
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from attn_mlir.api.inputs import MAX_STATE_DIM, check_dtype, check_element, check_head_dim
from attn_mlir.api.linear import linear_attention
from attn_mlir.api.linear_inputs import described
from attn_mlir.errors import ArgumentError


def sizes_of(x: Any, name: str = "v") -> tuple[int, ...]:
    """The sizes of an input, [B, T, H, D]."""
    if not isinstance(x, Tensor) or x.dim() != 4:
        raise ArgumentError(f"{name} must have 4 dimensions, [batch, position, head, dim], got {described(x)}")
    return tuple(x.shape)


def check(name: str, value: Any, like: Tensor, *wanted: tuple[int, ...]) -> None:
    """Checks that a tensor has one of some shapes, floating elements, and the device of `like`."""
    if not isinstance(value, Tensor) or tuple(value.shape) not in wanted:
        raise ArgumentError(f"{name} must be a tensor of shape {' or '.join(str(list(w)) for w in wanted)}, got {described(value)}")
    if not value.is_floating_point():
        raise ArgumentError(f"{name} has dtype {value.dtype}: use float32")
    if value.device != like.device:
        raise ArgumentError(f"{name} is on {value.device}, but other inputs are on {like.device}: move it with {name}.to(...)")


def with_state(*inputs: Any, output_final_state: bool, **options: Any) -> tuple[Tensor, Tensor | None]:
    """`linear_attention` of tensors [B, T, H, D]: (o, final_state), which is None without output_final_state."""
    made = linear_attention(*inputs, output_final_state=output_final_state, layout="bshd", **options)
    return made if output_final_state else (made, None)


def check_limit(limit: Any) -> tuple[float, float]:
    """The pair `dt_limit`."""
    pair = list(limit) if isinstance(limit, (tuple, list)) else []
    numbers = all(isinstance(x, (int, float)) and not isinstance(x, bool) for x in pair)
    if len(pair) != 2 or not numbers or not 0 <= pair[0] <= pair[1]:
        raise ArgumentError(f"dt_limit must be (low, high) with 0 <= low <= high, where high may be {math.inf}, got {limit!r}")
    return pair[0], pair[1]


def first_positions(sequences: Tensor) -> Tensor:
    """Where a sequence begins that is not the first of its batch entry, bool [B, T]: `sequences`, [B, T], numbers them by position."""
    return functional.pad(sequences[:, 1:] != sequences[:, :-1], (1, 0))


def check_mamba2(x: Any, B: Any, C: Any, chunk_size: Any, cu_seqlens: Any, **others: Any) -> None:
    """Checks the inputs of `mamba2`; those of `others` that are not needed may be None."""
    if not isinstance(x, Tensor) or x.dim() != 4:
        raise ArgumentError(f"x must be a tensor [B, T, H, P], got {described(x)}")
    check_element("x", x)
    sizes = tuple(x.shape)
    for name, value in (("B", B), ("C", C)):
        if not isinstance(value, Tensor) or value.dim() != 4 or tuple(value.shape[:2]) != sizes[:2]:
            raise ArgumentError(f"{name} must be a tensor of shape [{sizes[0]}, {sizes[1]}, G, N], got {described(value)}")
        check_dtype(name, value, x, "x")
        if value.shape[3] != B.shape[3] or (sizes[2] % value.shape[2] if value.shape[2] else sizes[2]):
            groups = f"[{sizes[0]}, {sizes[1]}, G, {B.shape[3]}], with G dividing the {sizes[2]} heads of x"
            raise ArgumentError(f"{name} must be a tensor of shape {groups}, got {described(value)}")
    check_head_dim("x has P =", sizes[3], MAX_STATE_DIM)
    check_head_dim("B has N =", B.shape[3], MAX_STATE_DIM)
    if chunk_size is not None and (not isinstance(chunk_size, int) or isinstance(chunk_size, bool) or chunk_size < 1):
        raise ArgumentError(f"chunk_size must be a positive number or None, got {described(chunk_size)}; it has no effect")
    sequences = cu_seqlens.shape[0] - 1 if isinstance(cu_seqlens, Tensor) and cu_seqlens.dim() == 1 else sizes[0]
    heads = sizes[2:3]
    wanted = {
        "dt": (sizes[:3],), "A": (heads,), "initial_states": ((sequences, sizes[2], sizes[3], B.shape[3]),), "D": (heads, sizes[2:]),
        "z": (sizes,), "dt_bias": (heads,),
    }  # fmt: skip
    for name, shapes in wanted.items():
        if others[name] is not None or name in ("dt", "A"):
            check(name, others[name], x, *shapes)
    if others["seq_idx"] is not None:
        _check_sequences(others["seq_idx"], cu_seqlens, x)


def _check_sequences(seq_idx: Any, cu_seqlens: Any, x: Tensor) -> None:
    if cu_seqlens is not None:
        raise ArgumentError("seq_idx and cu_seqlens both say where sequences begin: pass one of them")
    if not isinstance(seq_idx, Tensor) or tuple(seq_idx.shape) != tuple(x.shape[:2]):
        raise ArgumentError(f"seq_idx must be a tensor of shape {list(x.shape[:2])}, got {described(seq_idx)}")
    if seq_idx.dtype not in (torch.int32, torch.int64):
        raise ArgumentError(f"seq_idx has dtype {seq_idx.dtype}: use int32 or int64")
    if seq_idx.device != x.device:
        raise ArgumentError(f"seq_idx is on {seq_idx.device}, but other inputs are on {x.device}: move it with seq_idx.to(...)")
