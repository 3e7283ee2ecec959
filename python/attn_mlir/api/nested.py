"""Jagged nested tensors (`layout=torch.jagged`) in `attention`: they are packed sequences, and so is the result."""

from typing import Any

import torch

from attn_mlir.api.varlen import attention_varlen
from attn_mlir.errors import ArgumentError, UnsupportedError

_RAGGED = {"bhsd": 2, "bshd": 1}


def attention_nested(q: Any, k: Any, v: Any, layout: Any, extra: Any, **options: Any) -> Any:
    """What `attention` gives for nested q, k and v: o in their order, lse and states [B, Hq, jagged]; `options` as `attention_varlen`'s."""
    if torch.compiler.is_dynamo_compiling():
        raise UnsupportedError("nested tensors inside of torch.compile: pass q.values() and int32 offsets to attn_mlir.attention_varlen")
    if extra:
        raise UnsupportedError(
            "extra_qk takes no nested tensors: pad q, k, v and the additional pairs, and leave the padding out with mask_mod"
        )
    if layout not in _RAGGED:
        raise ArgumentError(f'q is a nested tensor, for which layout is "bhsd" or "bshd", got {layout!r}')
    packed = {name: _packed(name, tensor, layout) for name, tensor in (("q", q), ("k", k), ("v", v))}
    of_q, of_k, of_v = (offsets for _, offsets in packed.values())
    if of_k is not of_v and not torch.equal(of_k, of_v):
        raise ArgumentError("v is a nested tensor with other lengths than k")
    q, k, v = (values for values, _ in packed.values())
    made = attention_varlen(q, k, v, of_q.int(), of_k.int(), **options)
    o, *rows = made if options["return_lse"] or options["return_states"] else (made,)
    o = tuple([_nested(each, of_q, layout) for each in o]) if isinstance(o, tuple) else _nested(o, of_q, layout)
    return (o, *(_rows(each, of_q) for each in rows)) if rows else o


def _packed(name: str, tensor: Any, layout: str) -> tuple[torch.Tensor, torch.Tensor]:
    """The rows of all sequences, [positions, H, D], and the offsets."""
    if not (isinstance(tensor, torch.Tensor) and tensor.is_nested and tensor.layout == torch.jagged):
        raise ArgumentError(f"{name} is not a jagged nested tensor, as others of q, k and v are: make it one, or none of them")
    if tensor.dim() != 4 or tensor._ragged_idx != _RAGGED[layout] or tensor._lengths is not None:
        order = "[batch, head, jagged, dim]" if layout == "bhsd" else "[batch, jagged, head, dim]"
        raise ArgumentError(
            f'{name} must be {order} without holes for layout="{layout}", got a nested tensor of shape {list(tensor.shape)}'
        )
    return (tensor.transpose(1, 2) if layout == "bhsd" else tensor).values(), tensor.offsets()


def _nested(o: torch.Tensor, offsets: torch.Tensor, layout: str) -> torch.Tensor:
    made = torch.nested.nested_tensor_from_jagged(o, offsets)
    return made.transpose(1, 2) if layout == "bhsd" else made


def _rows(rows: Any, offsets: torch.Tensor) -> Any:
    if isinstance(rows, dict):
        return {name: _rows(value, offsets) for name, value in rows.items()}
    return torch.nested.nested_tensor_from_jagged(rows.transpose(0, 1), offsets).transpose(1, 2)
