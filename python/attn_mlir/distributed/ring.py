"""`ring_attention`: attention of a sequence that is cut over the ranks of a mesh's dimension."""

import dataclasses
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor

from attn_mlir.api.given_masks import is_block_mask
from attn_mlir.api.inputs import check_inputs, device_type
from attn_mlir.api.mask_strings import parse
from attn_mlir.api.results import named_results
from attn_mlir.api.rows import softmax
from attn_mlir.distributed import model
from attn_mlir.distributed.calls import Changed, TracedCall, of_pass, pieces, planned, remembered, seen_by, trace_call
from attn_mlir.distributed.cut_program import PASS
from attn_mlir.distributed.engine import RingAttention
from attn_mlir.distributed.group import Ranks, ranks_of
from attn_mlir.distributed.model import ALL_GATHER, RING, STRATEGIES, ULYSSES
from attn_mlir.distributed.placement import Placement, held
from attn_mlir.distributed.plan import message
from attn_mlir.distributed.whole import Asked, ShardLayout, by_gathering, by_heads
from attn_mlir.errors import ArgumentError
from attn_mlir.runtime.orders import heads_first, in_order, input_order, output_order
from attn_mlir.runtime.programs import program_of

_MOST = 16
"""The most ranks for which the choice of a strategy looks at every pair of them."""


def ring_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    mesh: DeviceMesh,
    dim: str | int | None = None,
    placement: Placement = "contiguous",
    row: Callable[..., Any] = softmax,
    score_mod: Callable[..., Any] | None = None,
    mask_mod: Any = None,
    scale: float | None = None,
    query_mod: Callable[..., Any] | None = None,
    key_mod: Callable[..., Any] | None = None,
    value_mod: Callable[..., Any] | None = None,
    layout: Any = "bhsd",
    return_lse: bool = False,
    return_states: bool = False,
    deterministic: bool = False,
    device: str | None = None,
    strategy: str = "auto",
) -> Any:
    """Attention to a sequence that is cut over the ranks along `dim` of `mesh`: what `attention` gives of the whole one, for own queries.

    q, k and v are this rank's shards, [B, H, S_local, D], or DTensors that are sharded along the sequence; o is as q is.

    placement: which positions the ranks hold: "contiguous" (shards of any lengths, one after another), "zigzag" (of 2 n chunks rank r
    holds r and 2 n - 1 - r, which balances causal masks), or a list with the range (begin, end) of each rank, or a list of its ranges.
    `shard` cuts tensors so. The functions see positions in the whole sequence, and all arguments are as those of `attention`.
    Every rank of the dimension makes the call, with the same functions, numbers and captured tensors; the gradients of captured tensors
    are the sums over ranks, on all of them.

    strategy: "ring", where keys and values of the other ranks come one after another while kernels run on those that are there;
    "all_gather", which has all keys and values on each rank, for any row; "ulysses", which exchanges positions for heads; "auto": what
    costs the least by `attn_mlir.distributed.model`.
    """
    if strategy not in ("auto", *STRATEGIES):
        raise ArgumentError(f"strategy is one of auto, {', '.join(STRATEGIES)}; got {strategy!r}")
    if isinstance(mask_mod, str):
        mask_mod = parse(mask_mod)
    if is_block_mask(mask_mod):
        raise ArgumentError("mask_mod is a block mask, which is for whole sequences: pass its mask function")
    ranks = ranks_of(mesh, dim)
    functions = (query_mod, key_mod, value_mod, score_mod, mask_mod, row)
    call = Asked(functions, scale, bool(return_lse), bool(return_states), bool(deterministic), device_type(device), strategy)
    wrapped = q if isinstance(q, DTensor) else None
    q, k, v = (x.to_local() if isinstance(x, DTensor) else x for x in (q, k, v))
    if torch.compiler.is_dynamo_compiling():
        return outside(lambda: _attend((q, k, v), call, ranks, placement, layout))
    made = _attend((q, k, v), call, ranks, placement, layout)
    return made if wrapped is None else _as_dtensor(made, wrapped)


def _attend(qkv: tuple[Tensor, Tensor, Tensor], call: Asked, ranks: Ranks, placement: Placement, layout: Any) -> Any:
    problem = check_inputs(*qkv, layout)
    q, k, v = (heads_first(x, input_order(problem.layout)) for x in qkv)
    inner = dataclasses.replace(problem, layout="bhsd")
    try:
        traced = trace_call(inner, (q, k, v), call, ranks, placement)
        results = _computed(traced, (q, k, v), call, ranks)
    except Changed as changed:
        traced = trace_call(inner, (q, k, v), call, ranks, placement, every=changed.every)
        results = _computed(traced, (q, k, v), call, ranks)
    weights = traced.entry.traced.weights
    every = [in_order(o.to(q.dtype), output_order(problem.layout)).contiguous() for o in results[:weights]]
    return named_results([*every, *results[weights:]], weights, traced.entry.traced.outputs, call.return_lse, call.return_states)


def _computed(traced: TracedCall, qkv: tuple[Tensor, Tensor, Tensor], call: Asked, ranks: Ranks) -> list[Tensor]:
    places = ShardLayout(traced.queries, traced.keys)
    totals = {"Sq": places.totals["q_total"], "Skv": places.totals["kv_total"]}
    program_of(traced.entry).check(traced.captures, {**traced.problem.sizes, **totals}, traced.problem.device)
    strategy = call.strategy
    if strategy == "auto":
        what = ("strategy", ranks.count, traced.element_size, bool(traced.wanted), traced.problem.device_type)
        strategy = remembered(traced, what, lambda: _cheapest(traced, ranks))
    if strategy == RING:
        return _results(traced, qkv, ranks)
    traced.confirm()
    return by_heads(call, ranks, places, qkv) if strategy == ULYSSES else by_gathering(call, ranks, places, qkv)


def _cheapest(traced: TracedCall, ranks: Ranks) -> str:
    """The strategy of the least cost, by what all ranks know alike."""
    sizes, count = traced.problem.sizes, ranks.count
    sees = seen_by(traced.program, traced.captures, sizes)
    parts = [(r, s, message(traced.queries[r], traced.keys[s], sees)) for r in range(count) for s in range(count)] if count <= _MOST else []
    queries, keys = (sum(held(each) for each in ranges) for ranges in (traced.queries, traced.keys))
    seen = sum((w.rows[1] - w.rows[0]) * (w.keys[1] - w.keys[0]) for _, _, part in parts for w in part.work) / max(queries * keys, 1)
    sent = sum(part.length for r, s, part in parts if r != s) / max(keys * (count - 1), 1)
    problem = model.CutProblem(
        count, sizes["B"], sizes["Hq"], sizes["Hkv"], queries, keys, sizes["D"], sizes["Dv"], traced.element_size,
        seen if parts else 1.0, sent if parts else 1.0, bool(traced.wanted),
    )  # fmt: skip
    machine = model.CPU if traced.problem.device_type == "cpu" else model.RankModel()
    return model.cheapest(problem, machine, STRATEGIES if traced.program.merges else (ALL_GATHER, ULYSSES)).strategy


def _results(traced: TracedCall, qkv: tuple[Tensor, Tensor, Tensor], ranks: Ranks) -> list[Tensor]:
    """o and the row outputs; a row that takes several passes over keys goes round for each."""
    program = traced.program
    if not program.merges:
        first, last = program.passes  # whose error comes before anything is sent
        rows = _results(of_pass(traced, first, qkv, ()), qkv, ranks)[1:]
        return _results(dataclasses.replace(of_pass(traced, last, qkv, rows), confirm=lambda: None), qkv, ranks)
    dtype = torch.float32 if traced.problem.inputs.element == "f32" else qkv[0].dtype
    ring = RingAttention(program, ranks, planned(traced, ranks), pieces(traced, ranks)[ranks.rank], traced.confirm)
    tensors = [value for value in traced.captures if isinstance(value, Tensor)]
    if not traced.wanted:
        q, k, v = (x.to(dtype) for x in qkv)
        return ring.forward(q, k, v, traced.captures)[: 1 + len(traced.entry.traced.outputs)]
    return list(_Attention.apply(ring, traced, dtype, *qkv, *tensors))  # type: ignore[no-untyped-call]


class _Attention(torch.autograd.Function):
    """A ring forward, and a ring backward with the row states of the whole sequence."""

    @staticmethod
    def forward(ctx: Any, ring: RingAttention, traced: TracedCall, dtype: torch.dtype, *tensors: Tensor) -> tuple[Tensor, ...]:
        q, k, v = (x.detach().to(dtype) for x in tensors[:3])
        captures = [value.detach() if isinstance(value, Tensor) else value for value in traced.captures]
        finals = ring.forward(q, k, v, captures)
        ctx.ring, ctx.traced, ctx.dtype = ring, traced, dtype
        o = finals[0]
        ctx.save_for_backward(*tensors, o, *finals[1:])
        ctx.count = len(tensors)
        ctx.set_materialize_grads(False)
        return (o, *finals[1 : 1 + len(traced.entry.traced.outputs)])

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor | None) -> tuple[Tensor | None, ...]:  # type: ignore[override]
        tensors, finals = ctx.saved_tensors[: ctx.count], list(ctx.saved_tensors[ctx.count :])
        traced, ring = ctx.traced, ctx.ring
        given = [torch.zeros_like(x) if g is None else g.to(x.dtype) for g, x in zip(grads, finals, strict=False)]
        captured = iter(tensors[3:])
        captures = [next(captured) if isinstance(value, Tensor) else value for value in traced.captures]
        q, k, v = (x.to(ctx.dtype) for x in tensors[:3])
        made = ring.backward(q, k, v, captures, finals, given)
        places = program_of(traced.entry).tensor_positions()
        found: list[Tensor | None] = [None] * len(tensors)
        for position, gradient in zip(traced.wanted, made, strict=True):
            place = places.index(position)
            if position >= 3:
                share = torch.zeros_like(tensors[place], dtype=torch.float32) if gradient is None else gradient
                own = traced.entry.traced.captures[position - 3].source[0] == PASS
                gradient = share if own else ring.ranks.all_summed(share)
            found[place] = None if gradient is None else gradient.to(tensors[place].dtype)
        return (None, None, None, *found)


def _as_dtensor(made: Any, like: DTensor) -> Any:
    """Results as DTensors placed as q is: o as it is, row outputs without the last dimension."""

    def wrap(x: Tensor) -> DTensor:
        shape = torch.Size([*like.shape[: x.dim() - 1], x.shape[-1]] if x.dim() == like.dim() else like.shape[: x.dim()])
        stride = tuple(torch.empty(shape, device="meta").stride())
        return DTensor.from_local(x, like.device_mesh, like.placements, run_check=False, shape=shape, stride=stride)

    if isinstance(made, Tensor):
        return wrap(made)
    if isinstance(made, dict):
        return {name: wrap(x) for name, x in made.items()}
    return tuple(_as_dtensor(each, like) for each in made)


@torch._dynamo.disable(reason="a ring's exchanges are made outside of the graph")
def outside(compute: Callable[[], Any]) -> Any:
    """What is computed, between two graphs."""
    return compute()
