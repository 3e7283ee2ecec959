"""Rows with several scores, weights and outputs: what is shared, what the numeric check sees, and every way to run them."""

import dataclasses
from pathlib import Path

import numpy as np
import pytest

from attn_mlir.mlir import ir
from attn_mlir.passes.derivation import derive, read_row
from attn_mlir.passes.derivation.check import Checker
from attn_mlir.passes.derivation.derive import Derivation
from attn_mlir.passes.derivation.plan import RowPlan
from attn_mlir.passes.derivation.program import OnlineRow
from attn_mlir.passes.derivation.row import Row
from attn_mlir.passes.differentiate import Differentiate
from attn_mlir.passes.guard_empty_rows import GuardEmptyRows
from attn_mlir.passes.online_rewrite import OnlineRewrite
from attn_mlir.passes.outline import Outline
from attn_mlir.passes.regions import find_all, piece, pieces
from attn_mlir.reference import evaluate
from row_cases import CASES
from rows import module_text, parse

KEEP: list[ir.Module] = []
TANGENT = (Path(__file__).parent.parent / "Inputs" / "derivatives" / "softmax-tangent.mlir").read_text()
EXACT = 1e-11
# Passes and accumulators of tangents.
SHAPES = {
    "softmax": (1, 3),
    "sigmoid": (1, 3),
    "l2": (1, 3),
    "layer norm": (1, 5),
    "mean-centred softmax": (1, 3),
    "std temperature": (2, 3),
}


def row_of(text: str) -> Row:
    module = parse(text)
    KEEP.append(module)
    return read_row(find_all(module.operation, "attn.row")[0])


def derived(text: str, limit: int = 2) -> Derivation:
    return derive(row_of(text), limit)


def sums(program: OnlineRow) -> list[int]:
    return [accumulator.source for accumulator in program.plan.accumulators]


def test_sums_are_shared_by_tensor() -> None:
    assert sums(derived(TANGENT).program) == [0, 0, 2]


def test_terms_of_v_share_what_is_made_of_it() -> None:
    mod = """    "attn.value"() ({
    ^bb0(%x: f32, %b: index, %h: index, %kv_idx: index, %d: index):
      %y = arith.addf %x, %x : f32
      "attn.yield"(%y) : (f32) -> ()
    }) : () -> ()
    "attn.score"() ({"""
    assert sums(derived(TANGENT.replace('    "attn.score"() ({', mod)).program) == [0, 0, 2]


def test_shared_sums_do_not_count() -> None:
    """One accumulator for each weight is enough; without p, the tangent has none to share and needs another pass."""
    assert derived(TANGENT, limit=1).program.plan.kv_passes == 1
    alone = TANGENT.replace('"attn.yield"(%p, %p_dot, %p)', '%zero = arith.constant 0.0 : f32\n      "attn.yield"(%zero, %p_dot, %zero)')
    assert derived(alone, limit=1).program.plan.kv_passes == 2
    assert sums(derived(alone).program) == [0, 0]


def test_weights_of_zero_sum_nothing() -> None:
    zeros = TANGENT.replace('"attn.yield"(%p, %p_dot, %p)', '%zero = arith.constant 0.0 : f32\n      "attn.yield"(%zero, %zero, %zero)')
    program = derived(zeros).program
    assert [step.weights for step in program.steps] == [[program.graph.const(0.0)]]
    assert program.o == [program.graph.leaf("acc", 0), program.graph.const(0.0)]


@pytest.mark.parametrize("output", [0, 1])
def test_checker_sees_every_output(output: int) -> None:
    row = row_of(TANGENT)
    program = derive(row).program
    program.o[output] = program.graph.mul(program.o[output], program.graph.const(1 + 1e-8))
    assert Checker(row).check(program).failed


def test_checker_sees_every_source() -> None:
    row = row_of(TANGENT)
    planned = RowPlan(row)
    planned.accumulators[2] = dataclasses.replace(planned.accumulators[2], source=0)
    assert Checker(row).check(OnlineRow(planned)).failed


def test_checker_sees_every_score() -> None:
    """A second score that is taken for the first one is noticed."""
    row = row_of(TANGENT)
    program = derive(row).program
    first, second = row.score_leaves
    step = program.steps[0]
    step.weights[:] = [program.graph.substitute(w, lambda n: first if n is second else None) for w in step.weights]
    assert Checker(row).check(program).failed


def tangent_of(name: str) -> ir.Module:
    case = CASES[name]
    module = parse(module_text(case.rule, case.outputs))
    assert Differentiate(functions="jvp", only=True).run(module.operation)
    assert Outline().run(module.operation)
    return module


@pytest.mark.parametrize("name", SHAPES)
def test_online_form_of_a_tangent(name: str) -> None:
    """Block by block, in parts and merged, the tangent's outputs are those of its definition."""
    case = CASES[name]
    rng = np.random.default_rng(3)
    inputs = [*[rng.standard_normal((1, 2, 13, 4)) for _ in range(3)], np.array([0.7, 1.3])]
    inputs += [rng.standard_normal(x.shape) for x in inputs]
    wanted = evaluate(tangent_of(name), inputs, "attention_jvp")
    module = tangent_of(name)
    assert OnlineRewrite().run(module.operation)
    assert GuardEmptyRows().run(module.operation)
    assert module.operation.verify()
    (online,) = find_all(module.operation, "attn.online")
    assert (len(pieces(online, "attn.step")), online.attributes["accumulators"].value) == SHAPES[name]
    ways = [{"block": (3, 1, 5)}, {"block": 13}, *([{"block": 2, "split": 3}] if piece(online, "attn.merge") else [])]
    assert len(wanted) == 2 + 2 * len(case.outputs)
    for options in ways:
        for got, value in zip(evaluate(module, inputs, "attention_jvp", **options), wanted, strict=True):
            # Rows of one key have no variance.
            got, value = got[:, :, 2:], value[:, :, 2:]
            assert np.abs(got - value).max() <= EXACT * (1 + np.abs(value).max())
