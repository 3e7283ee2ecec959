"""Sums over keys by a warpgroup of their own, as passes of the `warp` dialect form it: evaluated behind each pass, and with faults."""

from collections.abc import Callable
from unittest import mock

import pytest
import torch

from attn_mlir.backends.gpu.attributes import Fields
from attn_mlir.backends.nvidia import pipeline
from attn_mlir.backends.nvidia.emulation import kernel
from attn_mlir.backends.nvidia.warp import RULES, kernel_code
from attn_mlir.mlir import ir
from attn_mlir.passes.regions import find_all
from attn_mlir.reference.warp import check_registers, schedules_of
from machine_code import compiled
from test_warp_backward import Ops, Whole, find, of_pairs, pairs_of, problem, program, right_in_each
from warp_text import check_text
from weight_faults import told_early, without

_TIDY = "canonicalize,cse"
_ROLES = f"warp-assign-layouts,{_TIDY},warp-stage-rows,warp-specialize,warp-specialize-sums,warp-pipeline-loads,{_TIDY}"
_WAITS = "warp-split-maps,warp-order-products,warp-delay-waits"
STAGES = {
    "one role": (f"warp-assign-layouts,{_TIDY}", "all 1 first, copies late"),
    "sums": (_ROLES, "sums 0 first, copies late"),
    "held": (f"{_ROLES},warp-hold-factors,{_TIDY}", "consumer 1 first, copies late"),
    "waits": (f"{_ROLES},{_WAITS},{_TIDY}", "consumer 0 first, copies late"),
    "exchange": (f"{_ROLES},{_WAITS},warp-pipeline-exchange,{_TIDY}", "sums 0 first, copies at once"),
    "stores": (f"{_ROLES},warp-draw-tiles{{draw=true}},{_WAITS},warp-stage-stores,{_TIDY}", "consumer 1 first, copies at once"),
}
"""Pipelines behind `tile-schedule`, and an adverse order of warpgroups."""


@pytest.mark.parametrize("stage", STAGES)
def test_behind_each_pass(stage: str) -> None:
    passes, name = STAGES[stage]
    made = program(passes, key_sums="auto")
    right_in_each(made, [schedules_of(pairs_of(made))[name]], problem(200))


CLAIMS: Fields = {"emitter": "warp", "claims": 1, "block_q": 128, "block_kv": 64}


@pytest.fixture(scope="module")
def claiming() -> Whole:
    """The same whose first thread block at a block of queries stores its sums."""
    return of_pairs(program(pipeline.SCHEDULE, key_sums="warpgroup", more=CLAIMS))


def test_the_first_thread_block_stores(claiming: Whole) -> None:
    """Nothing is added to what was in memory before: results are right in every schedule, whoever comes first."""
    made, _, _ = claiming
    with pairs_of(made).context:
        assert len(find_all(pairs_of(made), "warp.claim")) == len(find_all(pairs_of(made), "warp.order_now")) == 3
    right_in_each(made, schedules_of(pairs_of(made)).values(), problem(300))


@pytest.mark.parametrize("length", [200, 300])
def test_up_to_a_number_of_queries(length: int) -> None:
    """Heads of more queries are added to zeros, and nobody asks for their counters."""
    made = program(pipeline.SCHEDULE, key_sums="warpgroup", more={**CLAIMS, "claims": 256})
    right_in_each(made, [schedules_of(pairs_of(made))["sums 0 first, copies late"]], problem(length))


def test_one_stage_of_queries() -> None:
    """They and what consumers write are counted together: what they write stays in one stage, too."""
    made = program(pipeline.SCHEDULE, key_sums="warpgroup", more={"emitter": "warp", "stages": 1, "block_q": 128, "block_kv": 64})
    right_in_each(made, [schedules_of(pairs_of(made))["sums 0 first, copies late"]], problem(140))


def never_told(ops: Ops) -> None:
    """Of a store that is done nobody hears."""
    for op in ops["order_pass"]:
        op.erase()


def told_at_once(ops: Ops) -> None:
    """Of a store all hear before it is done."""
    for op in ops["store_wait"]:
        if not ir.BoolAttr(op.attributes["read"]).value:
            op.attributes["read"] = ir.BoolAttr.get(True)


@pytest.mark.parametrize(
    ("kinds", "plant"),
    [("deadlock", never_told), ("added before written", told_at_once)],
    ids=["never told", "told at once"],
)
def test_faults_of_claims_are_found(claiming: Whole, kinds: str, plant: Callable[[Ops], None]) -> None:
    find(claiming, kinds, plant)


@pytest.fixture(scope="module")
def whole() -> Whole:
    """The backward pass of all passes."""
    return of_pairs(program(pipeline.SCHEDULE, key_sums="auto"))


def test_every_schedule(whole: Whole) -> None:
    made, _, _ = whole
    right_in_each(made, schedules_of(pairs_of(made)).values(), problem(300))


def test_machine_code(whole: Whole) -> None:
    """Three roles; nothing spills, and no product waits for another one that it does not need."""
    found = pairs_of(whole[0])
    with found.context:
        assert set(check_registers(found)) == {"producer", "consumer", "sums"}
        check_text(found)
        code = kernel_code(found, RULES)
    binary = compiled(code)
    assert binary.spills == 0 and binary.stack == 0 and not binary.warnings


def test_a_fixed_order() -> None:
    """The role waits for its turn, and consumers do not: the same bits in adverse schedules."""
    made = program(pipeline.SCHEDULE, deterministic=True, key_sums="auto")
    found = pairs_of(made)
    with found.context:
        waiting = [role for role in find_all(found, "warp.role") if find_all(role, "warp.order_wait")]
        assert [ir.StringAttr(role.attributes["sym_name"]).value for role in waiting] == ["sums"]
    inputs, wanted = problem(300)
    known, results = schedules_of(found), []
    for name in ("sums 0 first, copies late", "consumer 1 first, copies late", "random 1"):
        with mock.patch.object(kernel, "drawn", return_value=known[name]()):
            results.append(made.run(inputs))
    for mine, theirs in zip(results[0], wanted, strict=True):
        assert float((mine.double() - theirs).norm()) <= 2e-3 * float(theirs.norm())
    assert all(torch.equal(a, b) for others in results[1:] for a, b in zip(results[0], others, strict=True))


def ring(ops: Ops, which: str) -> ir.Value:
    """The barriers of the ring of weights, made after those of what is copied."""
    return ops["mbarrier"][-4 if which == "full" else -3].results[0]


def given_back_early(ops: Ops) -> None:
    """Weights are given back before their product is done."""
    for op in [op for op in ops["arrive"] if op.operands[0] == ring(ops, "free")]:
        before = [view.operation for view in op.block.operations]
        op.move_before([each for each in before[: before.index(op)] if each.name == "warp.mma_wait"][-1])


def keys_of_consumers(ops: Ops) -> None:
    """Keys are given back by consumers alone."""
    ops["arrive"][-1].erase()
    ops["mbarrier"][1].results[0].set_type(ir.Type.parse("!warp.barrier<1 : i64, 8 : i64>"))


def same_stage(ops: Ops) -> None:
    """Weights are written to the first stage alone."""
    for op in [op for op in ops["write"] if op.block == ops["write"][0].block]:
        view = op.operands[1].owner.operation  # type: ignore[union-attr]
        view.operands[1] = view.operands[3]


def while_added(ops: Ops) -> None:
    """Sums are written before the addition before has read those before."""
    (role,) = [op for op in ops["role"] if ir.StringAttr(op.attributes["sym_name"]).value == "sums"]
    for op in find_all(role, "warp.store_wait")[:-1]:
        op.erase()


_LATE, _EARLY = "overwritten while read", "read before full"
FAULTS: list[tuple[str, str, Callable[[Ops], None]]] = [
    ("weights written before they are given back", f"{_LATE}, overwritten twice, wrong phase", without(ring, "wait", "free")),
    ("weights multiplied before they are told", f"{_EARLY}, {_LATE}", without(ring, "wait", "full")),
    ("weights not told", "deadlock", without(ring, "arrive", "full")),
    ("weights not given back", "deadlock", without(ring, "arrive", "free")),
    ("weights given back before their product is done", _LATE, given_back_early),
    ("weights told before they are written", f"{_EARLY}, {_LATE}, missing fence", told_early(ring)),
    ("weights written without a fence", "missing fence", lambda ops: ops["fence_async"][0].erase()),
    ("weights written to one stage alone", f"{_EARLY}, {_LATE}, overwritten twice", same_stage),
    ("keys given back by consumers alone", f"{_LATE}, too many arrivals", keys_of_consumers),
    ("sums written while the addition before reads", _LATE, while_added),
]


@pytest.mark.parametrize(("kinds", "plant"), [(k, p) for _, k, p in FAULTS], ids=[name for name, _, _ in FAULTS])
def test_faults_are_found(whole: Whole, kinds: str, plant: Callable[[Ops], None]) -> None:
    find(whole, kinds, plant)
