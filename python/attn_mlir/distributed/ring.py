"""`ring_attention`: attention of a sequence that is cut over the ranks of a mesh's dimension."""

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor

from attn_mlir.api.given_masks import is_block_mask
from attn_mlir.api.inputs import check_inputs, device_type
from attn_mlir.api.mask_strings import parse
from attn_mlir.api.options import Options
from attn_mlir.api.results import named_results
from attn_mlir.api.rows import softmax
from attn_mlir.distributed.cut_program import CutProgram, cut_program
from attn_mlir.distributed.engine import Ring
from attn_mlir.distributed.group import Ranks, agreed, digest, ranks_of
from attn_mlir.distributed.placement import Placement, Range, Ranges, placed
from attn_mlir.distributed.plan import Sees, Steps, steps
from attn_mlir.errors import ArgumentError
from attn_mlir.frontend.cache import Entry
from attn_mlir.runtime.call import Problem
from attn_mlir.runtime.dispatch import needing_gradient
from attn_mlir.runtime.orders import heads_first, in_order, input_order, output_order
from attn_mlir.runtime.programs import program_of

_PLANS = 64
"""Plans of a program that are kept."""
_WIDE = {torch.float16, torch.bfloat16}
_SHOWN = ("the batch size", "the number of heads of q", "the number of heads of k", "the head dimension of q", "that of v")
_NAMES = (*_SHOWN, "the dtype, the device or what needs a gradient", "the functions", "the placement or numbers that functions capture")


@dataclasses.dataclass(frozen=True)
class Call:
    """The functions and options of a call, as `attention` takes them."""

    functions: tuple[Any, ...]
    scale: float | None
    return_lse: bool
    return_states: bool
    deterministic: bool
    device: str | None


@dataclasses.dataclass(frozen=True)
class Traced:
    """A call on this rank's shards: the traced program, the captured values, and where everything lies."""

    entry: Entry
    captures: list[Any]
    problem: Problem
    program: CutProgram
    queries: Ranges
    keys: Ranges
    wanted: list[int]
    """Which of q, k, v and the captured values need a gradient."""


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
) -> Any:
    """Attention to a sequence that is cut over the ranks along `dim` of `mesh`: what `attention` gives of the whole one, for own queries.

    q, k and v are this rank's shards, [B, H, S_local, D], or DTensors that are sharded along the sequence; o is as q is.

    placement: which positions the ranks hold: "contiguous" (shards of any lengths, one after another), "zigzag" (of 2 n chunks rank r
    holds r and 2 n - 1 - r, which balances causal masks), or a list with the range (begin, end) of each rank, or a list of its ranges.
    `shard` cuts tensors so. The functions see positions in the whole sequence, and all arguments are as those of `attention`.
    Every rank of the dimension makes the call, with the same functions, numbers and captured tensors; the gradients of captured tensors
    are the sums over ranks, on all of them.
    """
    if isinstance(mask_mod, str):
        mask_mod = parse(mask_mod)
    if is_block_mask(mask_mod):
        raise ArgumentError("mask_mod is a block mask, which is for whole sequences: pass its mask function")
    ranks = ranks_of(mesh, dim)
    functions = (query_mod, key_mod, value_mod, score_mod, mask_mod, row)
    call = Call(functions, scale, bool(return_lse), bool(return_states), bool(deterministic), device_type(device))
    wrapped = q if isinstance(q, DTensor) else None
    q, k, v = (x.to_local() if isinstance(x, DTensor) else x for x in (q, k, v))
    if torch.compiler.is_dynamo_compiling():
        return outside(lambda: _attend((q, k, v), call, ranks, placement, layout))
    made = _attend((q, k, v), call, ranks, placement, layout)
    return made if wrapped is None else _as_dtensor(made, wrapped)


def _attend(qkv: tuple[Tensor, Tensor, Tensor], call: Call, ranks: Ranks, placement: Placement, layout: Any) -> Any:
    problem = check_inputs(*qkv, layout)
    q, k, v = (heads_first(x, input_order(problem.layout)) for x in qkv)
    traced = _traced(dataclasses.replace(problem, layout="bhsd"), (q, k, v), call, ranks, placement)
    results = _results(traced, (q, k, v), ranks)
    o = in_order(results[0].to(q.dtype), output_order(problem.layout)).contiguous()
    outputs = traced.entry.traced.outputs
    if not (call.return_lse or call.return_states):
        return o
    return named_results([o, *results[1:]], 1, outputs, call.return_lse, call.return_states)


def _traced(problem: Problem, qkv: tuple[Tensor, Tensor, Tensor], call: Call, ranks: Ranks, placement: Placement) -> Traced:
    """Traces the call, tells the other ranks, and hears of theirs. Raises on all ranks where they differ."""
    q = qkv[0]
    target = call.device or problem.device_type
    narrow = target != "cpu" and q.dtype in _WIDE
    inputs = dataclasses.replace(problem.inputs, element=problem.inputs.element if narrow or q.dtype not in _WIDE else "f32", parts=True)
    options = Options(call.functions, call.scale, lse=call.return_lse, states=call.return_states)
    entry, scan, factor = options.find(inputs, problem.device)
    places = {"q_offset": 0, "kv_offset": 0, "q_total": 0, "kv_total": 0}
    captures = entry.captures(scan, factor, places)
    wanted = needing_gradient([*qkv, *captures])
    whole = program_of(entry)
    wanted = [i for i in wanted if whole.takes_derivative(i)]
    wrt = "+".join(whole.argument(i) for i in wanted)
    numbers = [value for value in captures if not isinstance(value, Tensor)]
    sizes = problem.sizes
    told = [
        *(sizes[name] for name in ("B", "Hq", "Hkv", "D", "Dv")),
        digest(str(q.dtype), target, wrt, call.deterministic),
        digest(entry.traced.text),
        digest(placement, numbers, [tuple(x.shape) for x in captures if isinstance(x, Tensor)]),
        sizes["Sq"],
        sizes["Skv"],
    ]
    every = ranks.all_gather(told, problem.device)
    agreed(every, _NAMES, _SHOWN)
    queries = placed(placement, [each[-2] for each in every], "q")
    keys = placed(placement, [each[-1] for each in every], "k and v")
    totals = {"q_total": sum(each[-2] for each in every), "kv_total": sum(each[-1] for each in every)}
    captures = entry.captures(scan, factor, {**places, **totals})
    program = cut_program(entry.traced, target, wrt, call.deterministic)
    return Traced(entry, captures, dataclasses.replace(problem, inputs=inputs), program, queries, keys, wanted)


def _results(traced: Traced, qkv: tuple[Tensor, Tensor, Tensor], ranks: Ranks) -> list[Tensor]:
    """o and the row outputs."""
    dtype = torch.float32 if traced.problem.inputs.element == "f32" else qkv[0].dtype
    ring = Ring(traced.program, ranks, _planned(traced, ranks), traced.queries[ranks.rank])
    _ = traced.program.form  # which tells of rows without a merge before anything is sent
    tensors = [value for value in traced.captures if isinstance(value, Tensor)]
    if not traced.wanted:
        return ring.forward(*(x.to(dtype) for x in qkv), traced.captures)[: 1 + len(traced.entry.traced.outputs)]
    return list(_Attention.apply(ring, traced, dtype, *qkv, *tensors))  # type: ignore[no-untyped-call]


def _planned(traced: Traced, ranks: Ranks) -> Steps:
    """What this rank does step by step, found once for the same positions and numbers."""
    plans, sizes = traced.program.plans, traced.problem.sizes
    numbers = tuple(value for value in traced.captures if not isinstance(value, Tensor))
    shapes = tuple(tuple(value.shape) for value in traced.captures if isinstance(value, Tensor))
    key = (ranks.rank, traced.queries, traced.keys, numbers, shapes, tuple(sizes.values()))
    if key not in plans:
        if len(plans) >= _PLANS:
            plans.clear()
        plans[key] = steps(ranks.rank, traced.queries, traced.keys, seen_by(traced.program, traced.captures, sizes))
    return plans[key]


def seen_by(program: CutProgram, captures: Sequence[Any], sizes: dict[str, int]) -> Sees:
    """What queries see of keys, by the program's own bounds."""
    bounds = program.bounds
    known: dict[tuple[Range, Range], Range] = {}

    def sees(query: Range, key: Range) -> Range:
        if bounds is None or query[0] == query[1] or key[0] == key[1]:
            return key
        found = known.get((query, key))
        if found is None:
            rows, columns = query[1] - query[0], key[1] - key[0]
            shapes = [
                torch.empty(0).expand(sizes["B"], heads, length, 0)
                for heads, length in ((sizes["Hq"], rows), *[(sizes["Hkv"], columns)] * 2)
            ]
            indices = [torch.arange(sizes["B"]).reshape(-1, 1), torch.arange(sizes["Hq"]).reshape(1, -1)]
            outer = [*shapes, *program.moved(captures, query[0], key[0])]
            with torch.no_grad():
                begin, _, _, end = bounds(outer, [*indices, 0, rows], torch.float64)
            first, last = int(torch.as_tensor(begin).min()), int(torch.as_tensor(end).max())
            found = known[query, key] = (key[0] + max(first, 0), key[0] + max(min(last, columns), first, 0))
        return found

    return sees


class _Attention(torch.autograd.Function):
    """A ring forward, and a ring backward with the row states of the whole sequence."""

    @staticmethod
    def forward(ctx: Any, ring: Ring, traced: Traced, dtype: torch.dtype, *tensors: Tensor) -> tuple[Tensor, ...]:
        q, k, v = (x.detach().to(dtype) for x in tensors[:3])
        captures = [value.detach() if isinstance(value, Tensor) else value for value in traced.captures]
        finals = ring.forward(q, k, v, captures)
        ctx.ring, ctx.traced, ctx.dtype = ring, traced, dtype
        o = finals[0].to(dtype)
        ctx.save_for_backward(*tensors, o, *finals[1:])
        ctx.count = len(tensors)
        ctx.set_materialize_grads(False)
        return (finals[0] if dtype == tensors[0].dtype == finals[0].dtype else o, *finals[1 : 1 + len(traced.entry.traced.outputs)])

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor | None) -> tuple[Tensor | None, ...]:
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
                gradient = ring.ranks.all_summed(share)
            found[place] = None if gradient is None else gradient.to(tensors[place].dtype)
        return (None, None, None, *found)


def _as_dtensor(made: Any, like: DTensor) -> Any:
    """Results as DTensors placed as q is: o as it is, row outputs without the last dimension."""

    def wrap(x: Tensor) -> DTensor:
        shape = torch.Size([*like.shape[: x.dim() - 1], x.shape[-1]] if x.dim() == like.dim() else like.shape[: x.dim()])
        stride = torch.empty(0).expand(shape).stride() if False else tuple(torch.empty(shape, device="meta").stride())
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
