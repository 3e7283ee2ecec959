"""Passes that form kernels of the `warp` dialect: what each of them leaves runs in the evaluator and is right against float64."""

import re

import numpy as np
import pytest

from attn_mlir.backends.nvidia import pipeline
from attn_mlir.backends.nvidia.warp import RULES, kernel_code
from attn_mlir.reference import Sizes, difference
from attn_mlir.reference.warp import kernels_of, run_scheduled
from attn_mlir.reference.warp.barriers import RULES as RULES_OF_BARRIERS
from attn_mlir.reference.warp.fragments import RULES as RULES_OF_FRAGMENTS
from attn_mlir.reference.warp.kernels import RULES as RULES_OF_KERNELS
from attn_mlir.reference.warp.machine import Machine
from attn_mlir.reference.warp.program import Inst
from attn_mlir.reference.warp.units import Steps, Warpgroup
from machine_code import compiled
from warp_forming import TOLERANCES, Program, check, formed, growing, kernel_of, missed
from warp_text import check_text

_RINGS = "warp-assign-layouts,canonicalize,cse,warp-specialize,warp-pipeline-loads{stages=3},canonicalize,cse"
_JOINED = (
    "warp-assign-layouts,canonicalize,cse,warp-join-loops,canonicalize,cse,warp-specialize,warp-pipeline-loads{stages=2},"
    "canonicalize,cse,warp-overlap-products,canonicalize,cse"
)
_SUMS = "warp-assign-layouts,canonicalize,cse,warp-join-loops,canonicalize,cse,warp-defer-sums,canonicalize,cse"
_ALIGNED = _SUMS.replace("warp-join", "warp-align-tiles{always=true},warp-order-tiles,warp-merge-masks,warp-join")
_STALE = "warp-stale-maximum{always=true}"
_REST = "warp-specialize,warp-pipeline-loads{stages=2},warp-overlap-products,warp-ping-pong,canonicalize,cse"
PASSES = {
    "layouts": "warp-assign-layouts,canonicalize,cse",
    "roles": "warp-assign-layouts,warp-specialize,canonicalize,cse",
    "rings": _RINGS,
    "overlap": f"{_RINGS},warp-overlap-products,canonicalize,cse",
    "vote": f"{_RINGS},warp-overlap-products,warp-conditional-rescale,canonicalize,cse",
    "one loop": "warp-assign-layouts,canonicalize,cse,warp-join-loops,canonicalize,cse",
    "ping-pong": f"{_JOINED},warp-ping-pong,canonicalize,cse",
    "stores": f"{_JOINED},warp-ping-pong,warp-stage-stores,canonicalize,cse",
    "overlap without a producer": "warp-assign-layouts,warp-overlap-products,canonicalize,cse",
    "sums": f"{_SUMS},{_REST},canonicalize,cse",
    "factors": f"{_SUMS},{_REST},warp-stage-stores,canonicalize,cse".replace("warp-overlap", "warp-hold-factors,warp-overlap"),
    "stale": f"{_SUMS},{_REST},{_STALE},warp-conditional-rescale,canonicalize,cse",
    "all": pipeline.SCHEDULE.replace("maximum", "maximum{always=true}"),
    "aligned": f"{_ALIGNED},{_REST},warp-stage-stores,canonicalize,cse",
    "rings without a producer": "warp-assign-layouts,warp-pipeline-loads,canonicalize",
}
"""Pipelines behind `tile-schedule`; each of the passes ends one."""
ROWS = ("relu", "relu-normalised", "sigmoid-causal", "layer-norm", "std-temperature", "softcap", "alibi-causal-softmax", "retention",
        "relative-bias", "sink", "entropy", "softmax-off-by-one", "l2-normalised", "dilated", "length", "empty-rows",
        "prefix-lm", "document")  # fmt: skip
ONE, ODD, LONG, GROUPS = Sizes(1, 1, 1, 1, 1), Sizes(1, 1, 1, 17, 17), Sizes(1, 2, 2, 127, 127), Sizes(2, 2, 1, 130, 40)
ADVERSARIAL = {
    "layouts": ("fair", "all 1 first, copies late", "random 0"),
    "roles": ("producer 0 first, copies at once", "consumer 1 first, copies late", "random 1"),
    "rings": ("producer 0 first, copies late", "consumer 0 first, copies at once", "consumer 1 first, copies late", "random 0"),
    "overlap": ("producer 0 first, copies late", "consumer 0 first, copies at once", "consumer 1 first, copies late", "random 0"),
    "vote": ("producer 0 first, copies late", "consumer 1 first, copies at once"),
    "one loop": ("all 1 first, copies late",),
    "ping-pong": ("producer 0 first, copies late", "consumer 1 first, copies late", "consumer 0 first, copies at once", "random 1"),
    "stores": ("consumer 0 first, copies late", "consumer 1 first, copies at once"),
    "overlap without a producer": ("all 1 first, copies late", "random 0"),
    "sums": ("producer 0 first, copies late", "random 0"),
    "factors": ("producer 0 first, copies late", "consumer 1 first, copies late", "consumer 0 first, copies at once", "random 1"),
    "stale": ("producer 0 first, copies late", "consumer 1 first, copies late", "consumer 0 first, copies at once", "random 1"),
    "all": ("producer 0 first, copies late", "consumer 1 first, copies late", "consumer 0 first, copies at once", "random 1"),
    "aligned": ("producer 0 first, copies late", "random 1"),
    "rings without a producer": ("all 0 first, copies late", "random 1"),
}


@pytest.mark.parametrize("name", ["causal-softmax", "plain-softmax", "sliding-window"])
@pytest.mark.parametrize("stage", PASSES)
def test_masks_odd_lengths_and_groups_behind_each_pass(stage: str, name: str) -> None:
    """Causal, full and window masks: rows of 1, 17, 127 and 130 queries, fewer keys than queries, grouped heads."""
    for sizes in (ONE, ODD, LONG, GROUPS):
        check(Program(name), PASSES[stage], sizes, ADVERSARIAL[stage], blocks=1 if sizes is ODD else 3)


@pytest.mark.parametrize("name", ROWS)
def test_any_row_behind_all_passes(name: str) -> None:
    """In one loop, too, where bodies with and without a mask differ in maps of their own."""
    check(Program(name), PASSES["overlap"], ODD, ADVERSARIAL["overlap"][:2])
    check(Program(name), PASSES["ping-pong"], Sizes(1, 2, 1, 65, 130), ADVERSARIAL["ping-pong"][3:])
    check(Program(name), PASSES["stale"], Sizes(1, 2, 1, 65, 130), ADVERSARIAL["stale"][3:])
    check(Program(name), PASSES["all"], Sizes(1, 2, 1, 65, 130), ADVERSARIAL["all"][3:])


@pytest.mark.parametrize("program", [Program("causal-softmax", 64, 128), Program("causal-softmax", 192, 32, "bf16")], ids=str)
def test_other_blocks_and_elements(program: Program) -> None:
    check(program, PASSES["overlap"], GROUPS, ("fair", "random 1"))


def test_all_schedules() -> None:
    check(Program("causal-softmax"), PASSES["overlap"], Sizes(1, 1, 1, 200, 200), blocks=1)


def test_function_stays_where_a_pass_does_not_apply() -> None:
    module = formed(Program("key-mod"), PASSES["rings"])
    assert not kernels_of(module)
    assert 'warp.refused = {"warp-assign-layouts" = ' in str(module)


@pytest.mark.parametrize("name", ["causal-softmax", "layer-norm"])
@pytest.mark.parametrize("stage", ["rings", "overlap", "vote", "stores", "all"])
def test_machine_code_without_spills(stage: str, name: str) -> None:
    """Printed as it stands: the text says what the IR does, products are not serialised."""
    (kernel,) = kernels_of(formed(Program(name), PASSES[stage]))
    check_text(kernel)
    binary = compiled(kernel_code(kernel, RULES))
    assert binary.spills == 0 and binary.stack == 0


@pytest.mark.parametrize("program", [Program("causal-softmax"), Program("causal-softmax", 192)], ids=str)
def test_one_warpgroup_multiplies_at_a_time(program: Program, monkeypatch: pytest.MonkeyPatch) -> None:
    """In loops, from its turn to the commit of its products, whatever the order; turns go around."""
    multiplying: list[str] = []
    turns: list[str] = []

    def entering(machine: Machine, unit: Warpgroup, inst: Inst, number: int) -> Steps:
        yield from RULES_OF_BARRIERS["warp.named_sync"](machine, unit, inst, number)
        multiplying.append(unit.name)
        turns.append(unit.name)
        assert len(multiplying) == 1

    def leaving(machine: Machine, unit: Warpgroup, inst: Inst, number: int) -> Steps:
        if unit.name in multiplying:
            multiplying.remove(unit.name)
        yield from RULES_OF_BARRIERS["warp.named_arrive"](machine, unit, inst, number)

    monkeypatch.setitem(RULES_OF_KERNELS, "warp.named_sync", entering)
    monkeypatch.setitem(RULES_OF_KERNELS, "warp.named_arrive", leaving)
    for name in ("fair", "random 0", "consumer 1 first, copies late"):
        turns.clear()
        check(program, PASSES["ping-pong"], Sizes(1, 1, 1, 300, 300), (name,), blocks=1)
        groups = program.q // 64
        assert len(turns) > 2 * groups and turns == [f"consumer {n % groups}" for n in range(len(turns))]


@pytest.mark.parametrize("lost", ["warp.named_sync", "warp.named_arrive", "warp.wait", "warp.arrive"])
def test_lost_op_of_one_loop_in_turns_is_found(lost: str) -> None:
    program = Program("causal-softmax")
    lines = str(formed(program, PASSES["ping-pong"])).splitlines()
    places = [n for n, line in enumerate(lines) if f'"{lost}"(' in line]
    assert places
    for place in places:
        assert missed("\n".join(lines[:place] + lines[place + 1 :]), program), f"line {place}: {lines[place].strip()}"


_ORDERED = "warp-assign-layouts,canonicalize,cse,warp-order-tiles{group=2 rounds=true},canonicalize,cse"


def test_ordered_tiles_are_each_taken_once() -> None:
    """Heads that are no multiple of a group, several batches, rounds that are whole and one that is not; and every number of blocks."""
    for blocks in (2, 5):
        check(Program("causal-softmax"), _ORDERED, Sizes(1, 3, 3, 290, 290), ("fair",), blocks)
    check(Program("causal-softmax"), _ORDERED, Sizes(2, 3, 1, 130, 130), ("random 0",), 4)


@pytest.mark.parametrize(("name", "old", "new"), [
    ("rounds turned that are not whole", "arith.andi", "arith.ori"),
    ("heads of a whole group in the last one", "arith.minsi %{width}", "arith.maxsi %{width}"),
    ("numbers of blocks and heads exchanged", "arith.remui", "arith.divui"),
])  # fmt: skip
def test_planted_fault_of_the_order_of_tiles_is_found(name: str, old: str, new: str) -> None:
    """A tile that is taken twice, or never."""
    program = Program("causal-softmax", 64)
    text = str(formed(program, _ORDERED))
    width = re.search(r"(%\d+) = arith.subi %\d+, %\d+ : index\n *%\d+ = arith.minsi \1, %c2", text)
    assert width is not None
    old, new = (each.replace("%{width}", width[1]) for each in (old, new))
    assert old in text
    assert missed(text.replace(old, new), program, Sizes(1, 3, 3, 200, 200), 5), name


@pytest.mark.parametrize("lost", ["warp.fence_async", "warp.named_sync", "warp.store_commit"])
def test_lost_op_of_a_store_is_found(lost: str) -> None:
    """Three tiles for one thread block: what a store before them reads may not be overwritten."""
    program = Program("causal-softmax")
    lines = str(formed(program, PASSES["stores"])).splitlines()
    places = [n for n, line in enumerate(lines) if f'"{lost}"(' in line]
    assert places
    for place in places:
        assert missed("\n".join(lines[:place] + lines[place + 1 :]), program), f"line {place}: {lines[place].strip()}"


@pytest.mark.parametrize(("name", "old", "new"), [
    ("a store that may still be read", "pending = 0 : i64, read = true", "pending = 1 : i64, read = true"),
    ("a role that ends before its stores", "pending = 0 : i64, read = false", "pending = 1 : i64, read = false"),
    ("a barrier of other threads", "threads = 128", "threads = 256"),
])  # fmt: skip
def test_planted_fault_of_a_store_is_found(name: str, old: str, new: str) -> None:
    program = Program("causal-softmax")
    text = str(formed(program, PASSES["stores"]))
    assert old in text
    assert missed(text.replace(old, new), program), name


@pytest.mark.parametrize(("name", "old", "new"), [
    ("turns of the wrong warpgroup", "arith.remui", "arith.minui"),
    ("whole and cut blocks exchanged", "arith.cmpi slt, %arg", "arith.cmpi sge, %arg"),
    ("blocks of the other loop", "arith.ceildivsi", "arith.divsi"),
    ("too few threads in a turn", "threads = 256", "threads = 128"),
])  # fmt: skip
def test_planted_fault_of_one_loop_in_turns_is_found(name: str, old: str, new: str) -> None:
    program = Program("causal-softmax")
    text = str(formed(program, PASSES["ping-pong"]))
    assert old in text
    assert missed(text.replace(old, new), program), name


@pytest.mark.parametrize("lost", ["warp.wait", "warp.arrive", "warp.mma_commit", "warp.mma_begin", "warp.arrive_expect"])
def test_lost_op_of_a_formed_kernel_is_found(lost: str) -> None:
    """Each op of these names, on its own, is missed in some way: the passes make none too many.

    Before a product that writes fresh registers `mma_begin` orders nothing that the evaluator knows of.
    """
    program = Program("causal-softmax", 128)
    lines = str(formed(program, PASSES["overlap"])).splitlines()
    places = [n for n, line in enumerate(lines) if f'"{lost}"(' in line]
    if lost == "warp.mma_begin":
        places = [n for n in places if "%true)" in lines[n + 1]]
    assert len(places) >= 3
    for place in places:
        assert missed("\n".join(lines[:place] + lines[place + 1 :]), program), f"line {place}: {lines[place].strip()}"


def test_warps_take_a_step_again_whose_weights_get_too_large(monkeypatch: pytest.MonkeyPatch) -> None:
    """Scores that grow along the keys: some warps reach the limit, others do not, and all are right."""
    asked: list[bool] = []

    def asking(machine: Machine, unit: Warpgroup, inst: Inst, tile: np.ndarray) -> bool:
        asked.append(RULES_OF_FRAGMENTS["warp.reaches"](machine, unit, inst, tile))
        return asked[-1]

    monkeypatch.setitem(RULES_OF_KERNELS, "warp.reaches", asking)
    for name, stage in (("causal-softmax", "stale"), ("plain-softmax", "all")):
        program, sizes = Program(name), Sizes(1, 1, 1, 300, 300)
        schedules, kernel = kernel_of(program, PASSES[stage])
        inputs, wanted = growing(program, sizes)
        asked.clear()
        outputs = [np.full(each.shape, np.nan) for each in wanted]
        run_scheduled(kernel, [*inputs, *outputs], schedules["random 0"], 1)
        assert {*asked} == {True, False}
        assert difference("o", outputs[0], wanted[0]).relative < TOLERANCES["f16"]


def test_keys_given_back_before_a_warp_has_read_them_again_are_found() -> None:
    """They go back behind the step, not behind the first product."""
    program = Program("causal-softmax")
    lines = str(formed(program, PASSES["stale"])).splitlines()
    last = max(n for n, line in enumerate(lines) if '"warp.reaches"' in line)
    at = next(n for n, line in enumerate(lines) if n > last and '"warp.arrive"' in line)
    wait = max(n for n, line in enumerate(lines) if n < last and "pending = 1" in line)
    moved = [*lines[: wait + 1], lines[at], *lines[wait + 1 : at], *lines[at + 1 :]]
    assert missed("\n".join(moved), program, given=growing)


_STORED = r"arith.select (%\d+), (%\d+), %\w+( : index\n *%\d+ = arith.addi %\w+, %c8)"
"""The row at which a block's results are stored, if they are its own."""


@pytest.mark.parametrize(("name", "stage", "old", "new"), [
    ("weights that nobody asks for", "stale", r'"warp.reaches"\(.*\) \{.*', "arith.constant false"),
    ("a stale factor", "stale", r"arith.cmpf une", "arith.cmpf oeq"),
    ("one column less", "all", r"(arith.addi %\d+, )%c1( : index\n *%\d+ = arith.minsi)", r"\1%c0\2"),
    ("a bound of other columns", "all", r"cmpi slt(, %\d+, %\w+ : i32)", r"cmpi sle\1"),
    ("largest parts instead of their sum", "sums", r'kind = "sum"', 'kind = "max"'),
    ("rows that another block stores", "aligned", _STORED, r"arith.select \1, \2, \2\3"),
    ("blocks that move by rows", "aligned", r"arith.divui (%\d+), %c64", r"arith.divui \1, %c1"),
])  # fmt: skip
def test_planted_fault_of_a_step_is_found(name: str, stage: str, old: str, new: str) -> None:
    program = Program("causal-softmax")
    text = str(formed(program, PASSES[stage]))
    faulty = re.sub(old, new, text)
    assert faulty != text
    assert missed(faulty, program, given=growing), name


def test_queries_given_back_before_they_are_read_are_found() -> None:
    program = Program("causal-softmax")
    lines = str(formed(program, PASSES["factors"])).splitlines()
    at = next(n for n, line in enumerate(lines) if '"warp.read"' in line)
    assert '"warp.arrive"' in lines[at + 1]
    lines[at], lines[at + 1] = lines[at + 1], lines[at]
    assert missed("\n".join(lines), program)
