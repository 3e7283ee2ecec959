"""The torch operators of a ring: `attn_mlir::ring_forward` and `attn_mlir::ring_backward`, each with all that ranks exchange for it.

They take the name of a traced program (see `runtime.programs`), its captures by kind, and `told`, a JSON object: the name of the process
group, the placement, the device, and what needs a gradient. All ranks run them in the same order, as they do any collective.
"""

import dataclasses
import json
from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch._C._distributed_c10d import _resolve_process_group

from attn_mlir.api.inputs import problem_of
from attn_mlir.capture_kinds import ARGUMENTS
from attn_mlir.distributed.calls import Changed, TracedCall, agreed_call, element_of, found_call, planned
from attn_mlir.distributed.cut_program import CutProgram, cut_program
from attn_mlir.distributed.engine import RingAttention
from attn_mlir.distributed.group import Ranks
from attn_mlir.distributed.model import RING
from attn_mlir.distributed.placement import held
from attn_mlir.distributed.whole import Asked
from attn_mlir.frontend.entry import Entry
from attn_mlir.frontend.given import POSITION, POSITIONS
from attn_mlir.frontend.program import Traced as Program
from attn_mlir.frontend.scope import Captured
from attn_mlir.runtime import compute, programs
from attn_mlir.runtime.row_values import score_of
from attn_mlir.runtime.schemas import define

_ENTRIES: dict[str, Entry] = {}
_LIMIT = 256


def entry_of(name: str) -> Entry:
    """The traced program of this name, whose first captures are positions."""
    found = _ENTRIES.get(name)
    if found is None:
        program = programs.find(name)
        sources = [(POSITION, each) if n < len(POSITIONS) else ("argument", n) for n, each in enumerate(program.names)]
        captures = [Captured(source, each, kind) for source, each, kind in zip(sources, program.names, program.kinds, strict=True)]
        traced = Program(program.text, program.located, tuple(captures), program.outputs, weights=program.weights)
        if len(_ENTRIES) >= _LIMIT:
            _ENTRIES.clear()
        found = _ENTRIES[name] = Entry(traced, [program, program])
    return found


def program_in(name: str, told: str) -> CutProgram:
    """The parts of a program that a ring runs, for a device and for what needs a gradient."""
    words = json.loads(told)
    return cut_program(entry_of(name).traced, words["device"], "+".join(words["wrt"]), programs.find(name).deterministic)


def _traced(name: str, told: str, qkv: tuple[Tensor, Tensor, Tensor], given: tuple[Any, Any, Any], every: Any) -> tuple[TracedCall, Ranks]:
    """The call on this rank, as the others have agreed to it."""
    words, entry, program = json.loads(told), entry_of(name), programs.find(name)
    group = _resolve_process_group(words["group"])
    ranks = Ranks(group, dist.get_rank(group), dist.get_world_size(group))
    values = program.kinds.unpack(given[0], given[1])

    def captures(places: dict[str, int]) -> list[Any]:
        sources = [captured.source for captured in entry.traced.captures]
        return [places[source[1]] if source[0] == POSITION else x for source, x in zip(sources, values, strict=True)]

    with ranks.before_told(qkv[0].device):
        q, k, v = qkv
        problem = problem_of(q, k, v, "bhsd")
        element = element_of(problem, words["device"], qkv[0])
        problem = dataclasses.replace(problem, inputs=dataclasses.replace(problem.inputs, element=element, parts=True))
        call = Asked((), None, False, False, program.deterministic, words["device"], RING)
        wanted = [program.position(each) for each in words["wrt"]]
        made = found_call(problem, qkv[0], call, words["placement"], (entry, words["device"], wanted, captures))
    return agreed_call(made, ranks, words["placement"], program.deterministic, every=every), ranks


def _with_agreed(
    run: Callable[[TracedCall, RingAttention], list[Tensor]], name: str, told: str, qkv: tuple[Tensor, Tensor, Tensor], given: Any
) -> list[Tensor]:
    """What `run` gives of the call and its ring; once more where other ranks turn out to hold other positions than last time."""

    def once(every: Any) -> list[Tensor]:
        traced, ranks = _traced(name, told, qkv, given, every)
        totals = {"Sq": sum(map(held, traced.queries)), "Skv": sum(map(held, traced.keys))}
        programs.find(name).check(traced.captures, {**traced.problem.sizes, **totals}, traced.problem.device)
        ring = RingAttention(traced.program, ranks, planned(traced, ranks), traced.queries[ranks.rank], traced.confirm)
        return run(traced, ring)

    try:
        return once(None)
    except Changed as changed:
        return once(changed.every)


def _run_forward(q: Tensor, k: Tensor, v: Tensor, captures: list[Tensor], *rest: Any) -> list[Tensor]:
    *numbers, program, told = rest

    def run(traced: TracedCall, ring: RingAttention) -> list[Tensor]:
        dtype = _dtype(traced, q)
        found = ring.forward(q.to(dtype), k.to(dtype), v.to(dtype), traced.captures)
        return [x.contiguous() for x in (found if traced.wanted else found[: programs.find(program).made])]

    return _with_agreed(run, program, told, (q, k, v), (captures, numbers))


def _run_backward(qkv: list[Tensor], captures: list[Tensor], *rest: Any) -> list[Tensor]:
    *numbers, results, grads, program, told = rest

    def run(traced: TracedCall, ring: RingAttention) -> list[Tensor]:
        traced.confirm()
        q, k, v = (x.to(_dtype(traced, qkv[0])) for x in qkv)
        given = [g.to(x.dtype) for g, x in zip(grads, results, strict=False)]
        made = ring.backward(q, k, v, traced.captures, results, given)
        likes, found = _wanted(program, told, qkv, captures), []
        for position, gradient, like in zip(traced.wanted, made, likes, strict=True):
            share = torch.zeros_like(like, dtype=torch.float32) if gradient is None else gradient
            found.append((ring.ranks.all_summed(share) if position >= len(qkv) else share).to(like.dtype).contiguous())
        return found

    return _with_agreed(run, program, told, (qkv[0], qkv[1], qkv[2]), (captures, numbers))


def _fake_forward(q: Tensor, k: Tensor, v: Tensor, captures: list[Tensor], *rest: Any) -> list[Tensor]:
    *_, program, told = rest
    words, found, score = json.loads(told), programs.find(program), score_of(q)
    wide = words["device"] == "cpu" and q.dtype != torch.float64
    rows = len(program_in(program, told).form.outputs) if words["wrt"] else len(found.outputs)
    weights = [((*q.shape[:3], v.shape[3]), torch.float32 if wide else q.dtype)] * found.weights
    return compute.empty([*weights, *[(tuple(q.shape[:3]), score)] * rows], q.device, "bhsd")


def _fake_backward(qkv: list[Tensor], captures: list[Tensor], *rest: Any) -> list[Tensor]:
    *_, program, told = rest
    likes = _wanted(program, told, qkv, captures)
    return compute.empty([(tuple(x.shape), x.dtype) for x in likes], qkv[0].device, "bhsd")


def _setup(ctx: Any, inputs: tuple[Any, ...], output: list[Tensor]) -> None:
    q, k, v, captures, *ctx.numbers, ctx.program, ctx.told = inputs
    ctx.captures, ctx.made = len(captures), programs.find(ctx.program).made
    ctx.save_for_backward(q, k, v, *captures, *output)
    ctx.mark_non_differentiable(*output[ctx.made :])
    ctx.set_materialize_grads(False)


def _differentiate(ctx: Any, grads: Sequence[Tensor | None]) -> tuple[Any, ...]:
    tensors = ctx.saved_tensors
    qkv, captures, results = tensors[:3], tensors[3 : 3 + ctx.captures], tensors[3 + ctx.captures :]
    given = [compute.or_zeros(grad, like) for grad, like in zip(grads[: ctx.made], results, strict=False)]
    made = ring_backward(list(qkv), list(captures), *ctx.numbers, list(results), given, ctx.program, ctx.told)
    found: list[Tensor | None] = [None] * (3 + ctx.captures)
    for place, gradient in zip(_places(ctx.program, ctx.told), made, strict=True):
        found[place] = gradient
    return (*found[:3], found[3:], *[None if each else [] for each in ctx.numbers], None, None)


def _places(program: str, told: str) -> list[int]:
    """Where what needs a gradient stands among q, k, v and the captured tensors."""
    found = programs.find(program)
    tensors = found.tensor_positions()
    return [tensors.index(found.position(name)) for name in json.loads(told)["wrt"]]


def _wanted(program: str, told: str, qkv: Sequence[Tensor], captures: Sequence[Tensor]) -> list[Tensor]:
    return [[*qkv, *captures][place] for place in _places(program, told)]


def _dtype(traced: TracedCall, q: Tensor) -> torch.dtype:
    """That in which the ring computes."""
    return torch.float32 if traced.problem.inputs.element == "f32" else q.dtype


ring_forward = define(
    "ring_forward", f"(Tensor q, Tensor k, Tensor v, {ARGUMENTS}, str program, str told) -> Tensor[]", _run_forward, _fake_forward
)
ring_backward = define(
    "ring_backward",
    f"(Tensor[] inputs, {ARGUMENTS}, Tensor[] results, Tensor[] grads, str program, str told) -> Tensor[]",
    _run_backward,
    _fake_backward,
)
ring_forward.register_autograd(_differentiate, setup_context=_setup)
