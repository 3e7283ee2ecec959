"""Additions of sums over keys by warps of their own, and claims there: evaluated in every schedule, and with faults."""

from collections.abc import Callable

import pytest

from attn_mlir.backends.gpu.attributes import Fields
from attn_mlir.backends.nvidia import pipeline
from attn_mlir.backends.nvidia.warp import RULES, kernel_code
from attn_mlir.mlir import ir
from attn_mlir.passes.regions import find_all
from attn_mlir.reference.warp import schedules_of
from machine_code import compiled
from test_warp_backward import Ops, Whole, find, of_pairs, pairs_of, problem, program, right_in_each
from warp_text import check_text

_DIM = 128
_ADDED: Fields = {"emitter": "warp", "reduction_warps": 1, "held": 1, "scale": 1, "block_q": 128, "block_kv": 64}
_CLAIMED: Fields = {**_ADDED, "claims": 1}
FORMS: dict[str, tuple[int, str, Fields]] = {
    "at once": (128, "consumers", _ADDED),
    "late": (128, "late", _ADDED),
    "claimed": (128, "late", _CLAIMED),
    "named barriers": (128, "late", {**_CLAIMED, "named": 1, "elect": 0}),
    "of a warpgroup": (64, "warpgroup", _CLAIMED),
}
"""Columns, who makes sums over keys, and what else is chosen."""


@pytest.mark.parametrize("form", FORMS)
def test_every_schedule(form: str) -> None:
    dim, key_sums, more = FORMS[form]
    made = program(pipeline.SCHEDULE, key_sums=key_sums, dim=dim, more=more)
    names = [ir.StringAttr(role.attributes["sym_name"]).value for role in find_all(pairs_of(made), "warp.role")]
    assert "additions" in names
    right_in_each(made, schedules_of(pairs_of(made)).values(), problem(300, dim))


@pytest.fixture(scope="module")
def claiming() -> Whole:
    """The one with all of it."""
    return of_pairs(program(pipeline.SCHEDULE, key_sums="late", dim=_DIM, more=_CLAIMED))


def test_text_and_machine_code(claiming: Whole) -> None:
    """The text does what the IR says, and no product waits for another one that it does not need."""
    found = pairs_of(claiming[0])
    with found.context:
        assert len(find_all(found, "warp.hold")) == 6
        check_text(found)
        code = kernel_code(found, RULES)
    binary = compiled(code)
    assert binary.spills <= 64 and not binary.warnings  # once a tile, by roles of 24 registers


def _adds(op: ir.Operation) -> bool:
    """Whether an op is for the thread that adds."""
    elect = op.block.owner.operation
    return elect.name == "warp.elect" and bool(find_all(elect, "warp.add_async"))


def buffers(ops: Ops) -> ir.Value:
    """The barriers by which warps that add give buffers back: one for each of two warpgroups, where one arrives."""
    return next(op.operands[0] for op in ops["arrive"] if _adds(op))


def not_awaited(ops: Ops) -> None:
    """Sums are written before the ones before were read."""
    free = buffers(ops)
    for op in [op for op in ops["wait"] if op.operands[0] == free]:
        op.erase()


def given_back_at_once(ops: Ops) -> None:
    """A buffer is given back before the addition has read it."""
    for op in [op for op in ops["arrive"] if _adds(op)]:
        op.move_before(next(view.operation for view in op.block.operations if view.operation.name == "warp.store_wait"))


def not_given_back(ops: Ops) -> None:
    """A buffer is never given back."""
    for op in [op for op in ops["arrive"] if _adds(op)]:
        op.erase()


def told_before_written(ops: Ops) -> None:
    """A warp is told of sums before these are written."""
    for op in ops["named_arrive"]:
        op.move_before(next(view.operation for view in op.block.operations if view.operation.name == "warp.write"))


def never_told(ops: Ops) -> None:
    """Of a store that is done nobody hears."""
    for op in ops["order_pass"]:
        op.erase()


def told_at_once(ops: Ops) -> None:
    """Of a store all hear before it is done."""
    for op in [op for op in ops["store_wait"] if op.block.owner.operation.name == "scf.if"]:
        op.erase()


def other_columns(ops: Ops) -> None:
    """Registers have other columns of keys than the first ones."""
    for op in [op for op in ops["view"] if ir.MemRefType(op.results[0].type).shape == [64, 16]]:
        with op.location, ir.InsertionPoint(op):
            op.operands[3] = ir.Operation.create(
                "arith.constant", results=[ir.IndexType.get()], attributes={"value": ir.IntegerAttr.get(ir.IndexType.get(), 16)}
            ).result


FAULTS: list[tuple[str, Callable[[Ops], None]]] = [
    ("overwritten while read", not_awaited),
    ("overwritten while read", given_back_at_once),
    ("deadlock", not_given_back),
    ("read before full, overwritten while read, missing fence", told_before_written),
    ("deadlock", never_told),
    ("added before written", told_at_once),
    ("other numbers", other_columns),
]


@pytest.mark.parametrize(("kinds", "plant"), FAULTS, ids=[plant.__name__ for _, plant in FAULTS])
def test_faults_are_found(claiming: Whole, kinds: str, plant: Callable[[Ops], None]) -> None:
    find(claiming, kinds, plant, _DIM)
