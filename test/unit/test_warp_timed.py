"""Timed runs of scheduled kernels: order of programs, waits and what ends them, loads and products, units that do one thing at a time."""

import itertools
import re
from functools import cache
from pathlib import Path

import numpy as np

from attn_mlir.mlir import ir
from attn_mlir.reference import InputMaker, Sizes, difference, evaluate
from attn_mlir.reference.warp import Costs, Event, kernels_of, read_kernel, run_timed
from attn_mlir.reference.warp.costs import COSTS
from attn_mlir.reference.warp.kernels import RULES
from attn_mlir.reference.warp.machine import Machine
from attn_mlir.reference.warp.program import Inst
from attn_mlir.reference.warp.schedules import drawn
from attn_mlir.reference.warp.units import Steps, Warpgroup
from contexts import loaded_context
from test_warp_kernels import COUNTED, ORDERED, STAGED, TYPES

TEXT = (Path(__file__).parents[1] / "Inputs" / "warp" / "causal-forward.mlir").read_text()
COSTS_OF_TEST = Costs(flops=4096, lanes=128, special=16, bytes=40, latency=600)
SIZES = Sizes(1, 1, 1, 320, 320)


def line(event: Event) -> int:
    found = re.search(r":(\d+):\d+", event.location)
    assert found is not None
    return int(found[1])


def source(event: Event) -> str:
    return TEXT.splitlines()[line(event) - 1]


class Watched(Machine):
    """Notes the ops of warpgroups that a timed run records, in any schedule."""

    def step(self, unit: Warpgroup, inst: Inst) -> Steps:
        if inst.name in COSTS:
            self.__dict__.setdefault("ran", []).append((unit.name, inst.name, str(inst.location)))
        yield from super().step(unit, inst)


def in_context(text: str, arguments: list[np.ndarray], blocks: int) -> list[Event]:
    context = loaded_context()
    with context:
        module = ir.Module.parse(text)
        (kernel,) = kernels_of(module)
        return run_timed(kernel, arguments, COSTS_OF_TEST, blocks)


@cache
def causal() -> tuple[list[Event], list[tuple[str, str, str]], list[float]]:
    """The causal forward's events, what an ordinary run in a random order does, and how far results are from those of attention."""
    context = loaded_context()
    with context:
        module = ir.Module.parse(TEXT)
        (kernel,) = kernels_of(module)
        inputs = InputMaker(SIZES).make(module)
        wanted = evaluate(module, inputs)
        outputs = [np.full(w.shape, np.nan) for w in wanted]
        events = run_timed(kernel, [*inputs, *outputs], COSTS_OF_TEST)
        watched = Watched(read_kernel(kernel), [*inputs, *(np.full(w.shape, np.nan) for w in wanted)], drawn(3), 1, RULES)
        with np.errstate(all="ignore"):
            watched.execute()
        errors = [difference("", got, want).relative for got, want in zip(outputs, wanted, strict=True)]
        return events, watched.__dict__["ran"], errors


def test_a_timed_run_computes_the_same() -> None:
    _, _, errors = causal()
    assert max(errors) < 2e-3


def test_events_of_a_role_are_in_the_order_of_its_program() -> None:
    events, ran, _ = causal()
    units = {event.unit for event in events}
    assert units == {"producer 0", "consumer 0", "consumer 1"}
    for unit in units:
        own = [event for event in events if event.unit == unit]
        mine = [each for each in ran if each[0] == unit]
        assert [(e.unit, e.op) for e in own] == [each[:2] for each in mine]
        assert all(e.location.startswith(location) for e, (_, _, location) in zip(own, mine, strict=True))
        assert all(e.begin <= e.end for e in own)
        for before, after in itertools.pairwise(own):
            assert after.begin >= (before.begin if before.asynchronous else before.end)


def test_a_wait_ends_with_what_it_waits_for() -> None:
    events, _, _ = causal()
    waits = [event for event in events if event.kind == "wait"]
    assert {event.op for event in waits} == {"warp.wait", "warp.mma_wait", "warp.named_sync", "warp.store_wait"}
    for wait in waits:
        if wait.after is None:  # a stage that nobody has used, stores of which none is left, an arrival that ends a phase itself
            assert wait.end == wait.begin
            continue
        cause = events[wait.after]
        assert cause.kind == {"warp.mma_wait": "product", "warp.store_wait": "store"}.get(wait.op, cause.kind)
        done = cause.busy[1] if cause.kind == "product" and cause.busy is not None else cause.end
        assert wait.end == max(wait.begin, done)
    assert any(events[w.after].kind == "arrive" and w.end > w.begin for w in waits if w.after is not None)


def test_the_nth_wait_at_a_barrier_is_for_the_nth_load_and_before_its_product() -> None:
    events, _, _ = causal()
    for barrier, count in (("%q_full", 3), ("%k_full", 11), ("%v_full", 11)):
        loads = [n for n, e in enumerate(events) if e.op == "warp.copy_async" and f"{barrier}," in source(e)]
        assert len(loads) == count
        for unit in ("consumer 0", "consumer 1"):
            own = [e for e in events if e.unit == unit]
            waits = [n for n, e in enumerate(own) if e.op == "warp.wait" and f"({barrier}," in source(e)]
            assert [own[n].after for n in waits] == loads
            for load, wait in zip(loads, waits, strict=True):
                product = next(e for e in own[wait:] if e.kind == "product")
                assert product.begin >= events[load].end > events[load].begin


def test_stages_are_filled_again_after_all_consumers_have_read_them() -> None:
    events, _, _ = causal()
    for barrier in ("%k", "%v"):
        loads = [e for e in events if e.op == "warp.copy_async" and f"{barrier}_full," in source(e)]
        for unit in ("consumer 0", "consumer 1"):
            given_back = [e for e in events if e.unit == unit and e.op == "warp.arrive" and f"({barrier}_free," in source(e)]
            assert len(given_back) == len(loads)
            assert all(load.begin >= back.end for load, back in zip(loads[3:], given_back, strict=False))


def test_units_do_one_thing_at_a_time() -> None:
    events, _, _ = causal()
    for kind, cost in (("product", 2 * 64 * 64 * 64 / 4096), ("load", 64 * 64 * 2 / 40)):
        busy = sorted(e.busy for e in events if e.kind == kind and e.busy is not None)
        assert len(busy) > 20 and all(first[1] <= second[0] + 1e-9 for first, second in itertools.pairwise(busy))
        assert {round(end - begin, 6) for begin, end in busy} >= {round(cost, 6)}


def test_orders_messages_and_loads_to_registers() -> None:
    events = in_context(TYPES + ORDERED, [np.zeros((1, 1, 70)), np.zeros(1, np.int64)], 4)
    passes = {e.block: n for n, e in enumerate(events) if e.op == "warp.order_pass"}
    waits = {e.block: e for e in events if e.op == "warp.order_wait"}
    assert [waits[block].after for block in range(4)] == [None, passes[0], passes[1], passes[2]]
    assert all(waits[block].end >= events[passes[block - 1]].end > 0 for block in range(1, 4))
    sums = np.zeros((1, 5, 64))
    assert sum(e.op == "warp.atomic_add" for e in in_context(TYPES + COUNTED, [sums, np.zeros(1, np.int64)], 3)) == 5 and (sums == 1).all()
    given = [np.ones((1, 1, 60, 64)), np.ones((1, 1, 60, 64)), np.full((1, 1, 60, 72), np.nan)]
    events = in_context(TYPES + STAGED, given, 1)
    loads = [e for e in events if e.op == "warp.load_async"]
    assert [e.end for e in loads] == [e.end for e in events if e.op == "warp.load_wait"]
    assert all(e.busy is not None and e.end >= e.busy[1] + 600 for e in loads)
    assert sum(e.op == "warp.mma" for e in events) == 4


def test_every_op_has_a_cost_or_is_known_to_have_none() -> None:
    """What only names memory, commits or orders; a new op of the dialect needs a decision."""
    made = "alloc columns concat mbarrier registers rows_of_heads stage view".split()
    free = "block_count block_id copy_commit each_warp elect fence_async mma_begin mma_commit next_tile store_commit".split()
    assert {name for name in RULES if name.startswith("warp.")} == {*COSTS, *(f"warp.{name}" for name in (*made, *free))}
