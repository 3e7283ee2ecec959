"""Sums over keys a step late, as a pass of the `warp` dialect makes them: evaluated in every schedule, and with faults."""

from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch

from attn_mlir import masks
from attn_mlir.backends.nvidia import pipeline
from attn_mlir.backends.nvidia.warp import RULES, kernel_code
from attn_mlir.backends.nvidia.warp.printer import WarpPrinter
from attn_mlir.mlir import ir
from attn_mlir.passes.regions import find_all
from attn_mlir.reference.warp import schedules_of
from machine_code import compiled
from test_warp_backward import Ops, Sizes, Whole, find, gradients, of_pairs, pairs_of, problem, program, right_in_each
from warp_text import check_text
from weight_faults import told_early, without

_DIM = 128


@pytest.fixture(scope="module")
def whole() -> Whole:
    """The backward pass of all passes."""
    return of_pairs(program(pipeline.SCHEDULE, key_sums="auto", dim=_DIM))


def test_every_schedule(whole: Whole) -> None:
    made, _, text = whole
    assert "warp-delay-sums" not in text and "warp-pipeline-exchange" not in text
    right_in_each(made, schedules_of(pairs_of(made)).values(), problem(300, _DIM))


def test_machine_code(whole: Whole) -> None:
    """Nothing spills, and no product waits for another one that it does not need."""
    found = pairs_of(whole[0])
    with found.context:
        check_text(found)
        code = kernel_code(found, RULES)
    binary = compiled(code)
    assert binary.spills == 0 and binary.stack == 0 and not binary.warnings


def test_yields_printed_one_after_the_other_are_found(whole: Whole, monkeypatch: pytest.MonkeyPatch) -> None:
    """The count of weights is the one that the ring has before it goes on: kernels that read it later waited for weights of nobody."""

    def in_order(printer: WarpPrinter, targets: Sequence[str], values: Sequence[ir.Value]) -> None:
        for target, value in zip(targets, values, strict=True):
            printer.assign(target, value)

    monkeypatch.setattr(WarpPrinter, "assign_all", in_order)
    found = pairs_of(whole[0])
    with found.context, pytest.raises(AssertionError):
        check_text(found)


@pytest.mark.parametrize(("sizes", "options"), [
    ((2, 1, 127, 300, 128), {"mask_mod": masks.causal()}),
    ((1, 1, 17, 1, 128), {"mask_mod": masks.causal()}),
    ((2, 2, 300, 130, 128), {"mask_mod": masks.sliding_window(40, 10)}),
    ((1, 1, 130, 70, 128), {}),
], ids=["causal", "one key", "window and fully masked rows", "all keys"])  # fmt: skip
def test_gradients(sizes: Sizes, options: dict[str, Any]) -> None:
    got = gradients(sizes, "cuda-emulated", torch.float16, options)
    for mine, wanted in zip(got, gradients(sizes, "cpu", torch.float64, options), strict=True):
        assert float((mine.double() - wanted).norm()) <= 2e-3 * float(wanted.norm()) + 1e-3


def ring(ops: Ops, which: str) -> ir.Value:
    """The barriers of the ring of weights: the last ones before those of messages."""
    rings = [op.results[0] for op in ops["mbarrier"] if str(op.results[0].type) == "!warp.barrier<2 : i64, 8 : i64>"]
    return rings[-2 if which == "full" else -1]


def given_back_early(ops: Ops) -> None:
    """Weights are given back before their product is done."""
    for op in [op for op in ops["arrive"] if op.operands[0] == ring(ops, "free")]:
        branch = op.parent
        assert branch is not None
        before = [view.operation for view in branch.operation.block.operations]
        waits = [each for each in before[: before.index(branch.operation)] if each.name == "warp.mma_wait"]
        if waits:
            op.move_before(waits[-1])


def first_kept(ops: Ops) -> None:
    """What is multiplied in the first iteration of a tile is added."""
    for op in [op for op in ops["scf.if"] if not list(op.results) and find_all(op, "warp.add_async")]:
        with op.location, ir.InsertionPoint(op):
            i1 = ir.IntegerType.get_signless(1)
            always = ir.Operation.create("arith.constant", results=[i1], attributes={"value": ir.IntegerAttr.get(i1, 1)}).result
        op.operands[0] = always


def own_row(ops: Ops) -> None:
    """Sums are added to the rows of the iteration in which they are multiplied."""
    for loop in [op for op in ops["scf.for"] if any(v.operation.name == "warp.mma_async" for v in op.regions[0].blocks[0].operations)]:
        for add in find_all(loop, "warp.add_async"):
            add.operands[4] = loop.regions[0].blocks[0].arguments[0]


_LATE, _EARLY = "overwritten while read", "read before full"
FAULTS: list[tuple[str, str, Callable[[Ops], None]]] = [
    ("weights written before they are given back", f"{_LATE}, overwritten twice, wrong phase", without(ring, "wait", "free")),
    ("weights multiplied before they are told", f"{_EARLY}, {_LATE}", without(ring, "wait", "full")),
    ("weights not told", "deadlock", without(ring, "arrive", "full")),
    ("weights not given back", "deadlock", without(ring, "arrive", "free")),
    (
        "weights given back before their product is done, without weights, too",
        f"{_LATE}, deadlock, too many arrivals, missed phase",
        given_back_early,
    ),
    ("weights told before they are written", f"{_EARLY}, {_LATE}, missing fence", told_early(ring)),
    ("weights written without a fence", "missing fence", lambda ops: ops["fence_async"][0].erase()),
    ("what the first iteration multiplies is added", "wrong numbers, too many arrivals, deadlock, wrong phase", first_kept),
    ("sums added to the rows of the next iteration", "wrong numbers", own_row),
]


@pytest.mark.parametrize(("kinds", "plant"), [(k, p) for _, k, p in FAULTS], ids=[name for name, _, _ in FAULTS])
def test_faults_are_found(whole: Whole, kinds: str, plant: Callable[[Ops], None]) -> None:
    find(whole, kinds, plant, _DIM)
