"""`ring_attention`: attention of a sequence that is cut over the ranks of a mesh's dimension."""

import dataclasses
import itertools
import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor

from attn_mlir.api.dropout import Dropout, dropout_of
from attn_mlir.api.given_masks import is_block_mask
from attn_mlir.api.inputs import check_inputs, device_type
from attn_mlir.api.mask_strings import parse
from attn_mlir.api.options import named_results
from attn_mlir.api.rows import softmax
from attn_mlir.distributed import model
from attn_mlir.distributed.calls import Changed, TracedCall, of_pass, planned, remembered, seen_by, trace_call
from attn_mlir.distributed.cut_program import PASS
from attn_mlir.distributed.engine import RingAttention
from attn_mlir.distributed.group import Ranks, ranks_of
from attn_mlir.distributed.model import ALL_GATHER, RING, STRATEGIES, ULYSSES
from attn_mlir.distributed.outside import outside
from attn_mlir.distributed.packed import by_position, cut_parts, joined, layout_of, offsets_of, taken, whole_documents
from attn_mlir.distributed.placement import Placement, held
from attn_mlir.distributed.plan import message
from attn_mlir.distributed.whole import Asked, ShardLayout, by_gathering, by_heads
from attn_mlir.errors import ArgumentError, UnsupportedError
from attn_mlir.runtime.orders import heads_first, in_order, input_order, output_order
from attn_mlir.runtime.programs import program_of
from attn_mlir.runtime.row_values import score_of

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
    dropout_p: float = 0.0,
    dropout_seed: Any = None,
    cu_seqlens: Tensor | None = None,
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

    dropout_p, dropout_seed: see `attention`, whose bits it drops. Tensors of a seed are read on the host. Without a seed every rank draws
    one, and that of the first counts, which takes an exchange that is waited for.

    cu_seqlens: the sequence is packed documents, B = 1: document n is the positions from cu_seqlens[n] to cu_seqlens[n + 1] of the whole
    sequence, int32 [documents + 1], the same on all ranks, and read on the host. Ranks may cut it anywhere. As in `attention_varlen`, the
    functions get the number of the document as b, and positions, q_len() and kv_len() of it. What ranks share no document of is neither
    sent nor computed; documents that a rank has whole are computed as `attention_varlen` does. strategy: "ring".
    """
    mods, asked = (query_mod, key_mod, value_mod, score_mod), (scale, bool(return_lse), bool(return_states), bool(deterministic))
    how, dropout = (device, strategy, layout), (dropout_p, dropout_seed)
    if torch.compiler.is_dynamo_compiling():
        from attn_mlir.distributed import compiled  # with operators, which take long to register

        if strategy in ("auto", RING) and not dropout_p and cu_seqlens is None and not isinstance(q, DTensor):
            options = ((*mods, _mask_of(mask_mod), row), scale, layout, return_lse, return_states, device, deterministic)
            return compiled.ring_in_graph((q, k, v), options, mesh, dim, placement)
        where = (ranks_of(mesh, dim), placement)
        return outside(lambda: _call((q, k, v), (*mods, mask_mod, row), asked, how, where, dropout, cu_seqlens))
    return _call((q, k, v), (*mods, mask_mod, row), asked, how, (ranks_of(mesh, dim), placement), dropout, cu_seqlens)


def _mask_of(mask_mod: Any) -> Any:
    """The mask function. Raises ArgumentError for a block mask."""
    if isinstance(mask_mod, str):
        return parse(mask_mod)
    if is_block_mask(mask_mod):
        raise ArgumentError("mask_mod is a block mask, which is for whole sequences: pass its mask function")
    return mask_mod


def _call(
    qkv: tuple[Any, Any, Any],
    functions: tuple[Any, ...],
    asked: tuple[float | None, bool, bool, bool],
    how: tuple[Any, str, Any],
    where: tuple[Ranks, Placement],
    dropout: tuple[Any, Any],
    cu_seqlens: Any,
) -> Any:
    """The call outside of graphs; `how` are the device, the strategy and the layout."""
    (device, strategy, layout), (ranks, placement) = how, where
    wrapped = qkv[0] if isinstance(qkv[0], DTensor) else None
    q, k, v = (x.to_local() if isinstance(x, DTensor) else x for x in qkv)
    with ranks.before_told(getattr(q, "device", torch.device("cpu"))):
        if strategy not in ("auto", *STRATEGIES):
            raise ArgumentError(f"strategy is one of auto, {', '.join(STRATEGIES)}; got {strategy!r}")
        functions = (*functions[:4], _mask_of(functions[4]), functions[5])
        kept, target = dropout_of(*dropout, q), device_type(device)
    if kept.form is not None:
        kept = _of_all_ranks(kept, dropout[1] is None, ranks, q.device)
    made = _attend((q, k, v), Asked(functions, *asked, target, strategy, kept), ranks, placement, layout, cu_seqlens)
    return made if wrapped is None else _as_dtensor(made, wrapped)


def _of_all_ranks(kept: Dropout, drawn: bool, ranks: Ranks, device: torch.device) -> Dropout:
    """Dropout with integers for a seed; where it was drawn, those of the first rank."""
    seed, offset, *rest = kept.values.values()
    pair = [int(seed), int(offset)]
    if drawn:
        pair = ranks.all_gather("seeds of ring_attention", pair, device)[0]
    return Dropout(("int", "int"), dict(zip(kept.values, [*pair, *rest], strict=True)))


def _attend(qkv: tuple[Tensor, Tensor, Tensor], call: Asked, ranks: Ranks, placement: Placement, layout: Any, cu_seqlens: Any) -> Any:
    with ranks.before_told(getattr(qkv[0], "device", torch.device("cpu"))):
        problem = check_inputs(*qkv, layout)
        documents = () if cu_seqlens is None else offsets_of(cu_seqlens, problem.sizes["B"])
        if documents and call.strategy not in ("auto", RING):
            raise ArgumentError(f'packed documents (cu_seqlens) go round in a ring: use strategy="ring", not {call.strategy!r}')
    computed = _computed if cu_seqlens is None else _packed
    q, k, v = (heads_first(x, input_order(problem.layout)) for x in qkv)
    inner = dataclasses.replace(problem, layout="bhsd")
    try:
        traced = trace_call(inner, (q, k, v), call, ranks, placement, documents=documents)
        results = computed(traced, (q, k, v), call, ranks)
    except Changed as changed:
        traced = trace_call(inner, (q, k, v), call, ranks, placement, every=changed.every, documents=documents)
        results = computed(traced, (q, k, v), call, ranks)
    weights = traced.entry.traced.weights
    every = [in_order(o.to(q.dtype), output_order(problem.layout)).contiguous() for o in results[:weights]]
    return named_results([*every, *results[weights:]], weights, traced.entry.traced.outputs, call.return_lse, call.return_states)


def _computed(traced: TracedCall, qkv: tuple[Tensor, Tensor, Tensor], call: Asked, ranks: Ranks) -> list[Tensor]:
    places = ShardLayout(traced.queries, traced.keys)
    totals = {"Sq": places.totals["q_total"], "Skv": places.totals["kv_total"]}
    program_of(traced.entry).check(traced.captures, {**traced.problem.sizes, **totals}, traced.problem.device)
    strategy = call.strategy
    if strategy == "auto":
        what = ("strategy", ranks.count, qkv[0].element_size(), bool(traced.wanted), traced.problem.device_type)
        strategy = remembered(traced, what, lambda: _cheapest(traced, ranks, qkv[0].element_size()))
    if strategy == RING:
        return _results(traced, qkv, ranks)
    traced.confirm()
    return by_heads(call, ranks, places, qkv) if strategy == ULYSSES else by_gathering(call, ranks, places, qkv)


def _packed(traced: TracedCall, qkv: tuple[Tensor, Tensor, Tensor], call: Asked, ranks: Ranks) -> list[Tensor]:
    """o and the row outputs of packed documents."""
    offsets, total = traced.documents, sum(held(each) for each in traced.queries)
    if traced.queries != traced.keys:
        raise ArgumentError("with cu_seqlens q and k are the same documents, but the ranks hold other positions of q than of k")
    if offsets[-1] > total:
        raise ArgumentError(f"cu_seqlens ends at {offsets[-1]}, but the ranks hold {total} positions")
    most = max(end - begin for begin, end in itertools.pairwise(offsets))
    sizes = {**traced.problem.sizes, "B": len(offsets) - 1, "Sq": most, "Skv": most}
    program_of(traced.entry).check(traced.captures, sizes, traced.problem.device)
    layout = layout_of(traced.queries, offsets)
    own, q = layout[ranks.rank], qkv[0]
    whole = whole_documents(call, ranks, qkv, by_position(own), offsets) if any(by_position(parts) for parts in layout) else None
    cut = None
    if any(cut_parts(parts) for parts in layout):
        shards = tuple(tuple(part.positions for part in cut_parts(parts)) for parts in layout)
        q_, k_, v_ = (taken(x, cut_parts(own)) for x in qkv)
        cut = _results(dataclasses.replace(traced, queries=shards, keys=shards), (q_, k_, v_), ranks)
        cut = [x.to(q.dtype) if x.dim() == 4 else x for x in cut]
    else:
        traced.confirm()
    score = score_of(q)
    o, row = q.new_zeros((*q.shape[:2], 0, qkv[2].shape[3])), q.new_zeros((*q.shape[:2], 0), dtype=score)
    names = traced.entry.traced.outputs
    return joined(own, whole, cut, [*[(o, 0.0)] * traced.entry.traced.weights, *((row, -math.inf if n == "lse" else 0.0) for n in names)])


def _cheapest(traced: TracedCall, ranks: Ranks, element_size: int) -> str:
    """The strategy of the least cost, by what all ranks know alike."""
    sizes, count = traced.problem.sizes, ranks.count
    sees = seen_by(traced.program, traced.captures, sizes)
    parts = [(r, s, message(traced.queries[r], traced.keys[s], sees)) for r in range(count) for s in range(count)] if count <= _MOST else []
    queries, keys = (sum(held(each) for each in ranges) for ranges in (traced.queries, traced.keys))
    seen = sum((w.rows[1] - w.rows[0]) * (w.keys[1] - w.keys[0]) for _, _, part in parts for w in part.work) / max(queries * keys, 1)
    sent = sum(part.length for r, s, part in parts if r != s) / max(keys * (count - 1), 1)
    problem = model.CutProblem(
        count, sizes["B"], sizes["Hq"], sizes["Hkv"], queries, keys, sizes["D"], sizes["Dv"], element_size,
        seen if parts else 1.0, sent if parts else 1.0, bool(traced.wanted),
    )  # fmt: skip
    machine = model.CPU if traced.problem.device_type == "cpu" else model.RankModel()
    possible = STRATEGIES if traced.program.merges else (ALL_GATHER, ULYSSES)
    drops = any(captured.source[0] == "dropout" for captured in traced.entry.traced.captures)
    return model.cheapest(problem, machine, tuple(s for s in possible if not (drops and s == ULYSSES))).strategy


def _results(traced: TracedCall, qkv: tuple[Tensor, Tensor, Tensor], ranks: Ranks) -> list[Tensor]:
    """o and the row outputs; a row that takes several passes over keys goes round for each."""
    program = traced.program
    if not program.merges:
        try:
            first, last = program.passes
        except UnsupportedError as error:  # on all ranks, before anything is sent
            way_out = "let ranks cut documents where they end" if traced.documents else 'strategy="all_gather" computes every row'
            raise UnsupportedError(f"this row has no ring over ranks: {way_out}. {error}") from error
        rows = _results(of_pass(traced, first, qkv, ()), qkv, ranks)[1:]
        return _results(dataclasses.replace(of_pass(traced, last, qkv, rows), confirm=lambda: None), qkv, ranks)
    dtype = torch.float32 if traced.problem.inputs.element == "f32" else qkv[0].dtype
    ring = RingAttention(program, ranks, planned(traced, ranks), traced.queries[ranks.rank], traced.confirm, traced.documents)
    tensors = [value for value in traced.captures if isinstance(value, Tensor)]
    if not traced.wanted:
        q, k, v = (x.to(dtype) for x in qkv)
        return ring.forward(q, k, v, traced.captures)[: program_of(traced.entry).made]
    return list(_Attention.apply(ring, traced, dtype, *qkv, *tensors))  # type: ignore[no-untyped-call]


class _Attention(torch.autograd.Function):
    """A ring forward, and a ring backward with the row states of the whole sequence."""

    @staticmethod
    def forward(ctx: Any, ring: RingAttention, traced: TracedCall, dtype: torch.dtype, *tensors: Tensor) -> tuple[Tensor, ...]:
        q, k, v = (x.detach().to(dtype) for x in tensors[:3])
        captures = [value.detach() if isinstance(value, Tensor) else value for value in traced.captures]
        finals = ring.forward(q, k, v, captures)
        ctx.ring, ctx.traced, ctx.dtype = ring, traced, dtype
        ctx.save_for_backward(*tensors, *finals)
        ctx.count = len(tensors)
        ctx.set_materialize_grads(False)
        return tuple(finals[: program_of(traced.entry).made])

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
