"""`decode_attention`: a few queries, which every rank has, to keys and values that are cut over the ranks, as a long cache is."""

from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh

from attn_mlir.api.inputs import check_inputs, device_type
from attn_mlir.api.options import named_results
from attn_mlir.api.rows import softmax
from attn_mlir.distributed.calls import agreed_call, find_call, seen_by
from attn_mlir.distributed.engine import Partial
from attn_mlir.distributed.group import Ranks, ranks_of
from attn_mlir.distributed.outside import outside
from attn_mlir.distributed.placement import Placement
from attn_mlir.distributed.plan import message, own
from attn_mlir.distributed.whole import Asked
from attn_mlir.errors import UnsupportedError


def decode_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    mesh: DeviceMesh,
    dim: str | int | None = None,
    placement: Placement = "contiguous",
    row: Callable[..., Any] = softmax,
    score_mod: Callable[..., Any] | None = None,
    mask_mod: Callable[..., Any] | None = None,
    scale: float | None = None,
    query_mod: Callable[..., Any] | None = None,
    key_mod: Callable[..., Any] | None = None,
    value_mod: Callable[..., Any] | None = None,
    return_lse: bool = False,
    return_states: bool = False,
    device: str | None = None,
) -> Any:
    """Attention of the last positions of a sequence, q [B, Hq, Sq, D], the same on all ranks, to keys and values that are cut over ranks.

    k and v are this rank's, [B, Hkv, S_local, D], of any lengths, placed as those of `ring_attention`. Every rank computes a partial result
    of its own keys; these are all that is exchanged, in one gather, and merged on every rank in the order of the ranks by the derived
    rule: o has the same bits on all ranks. Without gradients.
    """
    ranks = ranks_of(mesh, dim)
    functions = (query_mod, key_mod, value_mod, score_mod, mask_mod, row)
    call = Asked(functions, scale, bool(return_lse), bool(return_states), False, device_type(device), "decode")

    def compute() -> Any:
        with torch.no_grad():
            return _decode((q, k, v), call, ranks, placement)

    if torch.is_grad_enabled() and any(x.requires_grad for x in (q, k, v)):
        raise UnsupportedError("decode_attention has no gradients: call it under torch.no_grad(), or use ring_attention")
    return outside(compute) if torch.compiler.is_dynamo_compiling() else compute()


def _decode(qkv: tuple[Tensor, Tensor, Tensor], call: Asked, ranks: Ranks, placement: Placement) -> Any:
    with ranks.before_told(getattr(qkv[0], "device", torch.device("cpu"))):
        made = find_call(check_inputs(*qkv, "bhsd"), qkv, call, placement)
    traced = agreed_call(made, ranks, placement, False, same=True)
    traced.confirm()
    program, captures = traced.program, traced.captures
    dtype = torch.float32 if traced.problem.inputs.element == "f32" else qkv[0].dtype
    q, k, v = (x.to(dtype) for x in qkv)
    query = traced.queries[ranks.rank]
    begin = query[0][0] if query else 0
    outer = program.shapes(q, k, v, program.moved(captures, begin, 0))
    mine = program.empty(q, outer, v.shape[3])
    sees = seen_by(program, captures, traced.problem.sizes)
    for work in own(message(query, traced.keys[ranks.rank], sees)).work:
        columns = slice(*work.columns)
        part = program.partial(q, k[:, :, columns], v[:, :, columns], program.moved(captures, begin, work.keys[0]))
        mine = program.merge(outer, (mine[0], [x.contiguous() for x in mine[1]]), part)
    partials = _gathered(ranks, mine)
    merged = partials[0]
    for other in partials[1:]:
        merged = program.merge(outer, merged, other)
    traced_ = traced.entry.traced
    every = [torch.empty(merged[0][0].shape, dtype=dtype, device=q.device) for _ in range(traced_.weights)]
    rows = program.finalize(outer, merged, every)
    results = [*(o.to(qkv[0].dtype) for o in every), *rows]
    return named_results(results, traced_.weights, traced_.outputs, call.return_lse, call.return_states)


def _gathered(ranks: Ranks, mine: Partial) -> list[Partial]:
    """The partial results of all ranks."""
    tensors = [*mine[0], *mine[1]]
    flat = torch.cat([x.reshape(-1) for x in tensors])
    every = [torch.empty_like(flat) for _ in range(ranks.count)]
    dist.all_gather(every, flat, group=ranks.group)
    found = []
    for one in every:
        parts = one.split([x.numel() for x in tensors])
        shaped = [part.view(x.shape) for part, x in zip(parts, tensors, strict=True)]
        found.append((shaped[: len(mine[0])], shaped[len(mine[0]) :]))
    return found
