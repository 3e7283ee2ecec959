"""Every known row function: its online form has the expected shape and gives the value of the definition."""

from typing import Any

import numpy as np
import pytest

from attn_mlir.mlir import ir
from attn_mlir.passes.derivation import derive, read_row
from attn_mlir.passes.derivation.check import KEYS, Samples, Simulation, dense
from attn_mlir.passes.guard_empty_rows import GuardEmptyRows
from attn_mlir.passes.online_rewrite import OnlineRewrite
from attn_mlir.passes.regions import block_of, find_all, piece, pieces
from attn_mlir.passes.simplify import Simplify
from attn_mlir.reference import evaluate
from row_cases import CASES, Case
from rows import module_text, parse

EXACT = 1e-12
SINGLE = 1e-5


def text_of(case: Case, type_: str = "f32", keep: str = "sge") -> str:
    return module_text(case.rule, case.outputs, type_).replace("cmpi sge", f"cmpi {keep}")


def rewritten(text: str, guard: bool = False) -> ir.Module:
    module = parse(text)
    assert OnlineRewrite().run(module.operation)
    assert not guard or GuardEmptyRows().run(module.operation)
    assert module.operation.verify()
    return module


def inputs(length: int = 29, seed: int = 0) -> list[np.ndarray]:
    rng = np.random.default_rng(seed)
    return [*[rng.standard_normal((1, 2, length, 4)) for _ in range(3)], np.array([0.7, 1.3])]


def error(got: list[np.ndarray], wanted: list[np.ndarray]) -> float:
    """Relative to the size of each value; NaN and infinities must agree."""
    worst = 0.0
    for a, b in zip(got, wanted, strict=True):
        finite = np.isfinite(b)
        assert (np.isfinite(a) == finite).all()
        worst = max(worst, float((np.abs(a - b)[finite] / (1 + np.abs(b[finite]))).max(initial=0.0)))
    return worst


def ways(online: ir.Operation) -> list[dict[str, Any]]:
    one_kv_pass = len(pieces(online, "attn.step")) == 1
    return [{"block": (3, 1, 5)}, {"block": 29}, *([{"block": 4, "split": 3}] if one_kv_pass else [])]


@pytest.mark.parametrize("name", CASES)
def test_online_form(name: str) -> None:
    case = CASES[name]
    module = rewritten(text_of(case))
    (online,) = find_all(module.operation, "attn.online")
    states = len(list(block_of(pieces(online, "attn.init")[0]).operations)[-1].operands)
    shape = (len(pieces(online, "attn.step")), online.attributes["accumulators"].value, states)
    assert shape == (case.kv_passes, case.accumulators, states if case.states is None else case.states)
    assert (piece(online, "attn.merge") is not None) == (case.kv_passes == 1)
    wanted = evaluate(parse(text_of(case)), inputs())
    for options in ways(online):
        assert error(evaluate(module, inputs(), **options), wanted) < EXACT


@pytest.mark.parametrize("name", CASES)
def test_simplified_and_in_double(name: str) -> None:
    text = text_of(CASES[name], "f64")
    module = parse(text)
    assert Simplify().run(module.operation)
    assert OnlineRewrite().run(module.operation)
    assert "f32" not in str(module)
    assert error(evaluate(module, inputs(), block=4), evaluate(parse(text), inputs())) < EXACT


@pytest.mark.parametrize("name", CASES)
def test_rows_without_keys(name: str) -> None:
    """The first row sees no key: o is 0, lse -inf, and the others are what they were."""
    text = text_of(CASES[name], keep="sgt")
    module = rewritten(text, guard=True)
    wanted = evaluate(parse(text), inputs(9))
    (online,) = find_all(module.operation, "attn.online")
    for options in ways(online):
        o, *rows = evaluate(module, inputs(9), **options)
        assert (o[:, :, 0] == 0).all()
        for output, got in zip(CASES[name].outputs, rows, strict=True):
            assert (got[:, :, 0] == (-np.inf if output == "lse" else 0)).all()
        assert error([x[:, :, 1:] for x in (o, *rows)], [x[:, :, 1:] for x in wanted]) < EXACT
    again = str(module)
    assert GuardEmptyRows().run(module.operation)
    assert str(module) == again


@pytest.mark.parametrize("name", CASES)
def test_single_precision(name: str) -> None:
    case = CASES[name]
    module = parse(text_of(case))
    row = read_row(find_all(module.operation, "attn.row")[0])
    program = derive(row).program
    rng = np.random.default_rng(5)
    rows = 64
    s, v = rng.standard_normal((rows, KEYS)).astype(np.float32), rng.standard_normal((rows, KEYS, 2)).astype(np.float32)
    params = {leaf: rng.standard_normal((rows, 1)).astype(np.float32) for leaf in row.params.leaves}
    present = np.ones(s.shape, bool)
    low = Simulation(program, Samples(s, v, present, params, present[:, 0]), np.float32)
    double = {leaf: x.astype(float) for leaf, x in params.items()}
    _, wanted, outputs = dense(row, Samples(s.astype(float), v.astype(float), present, double, present[:, 0]), s.astype(float))
    runs = [low.run(), *([low.run_merged()] if program.merge else [])]
    for _, o, got in [low.final(*run) for run in runs]:
        assert o.dtype == np.float32
        size = np.abs(wanted).max(axis=1, keepdims=True)
        assert (np.abs(o - wanted) <= SINGLE * size).all()
        assert all(np.abs(a - b).max() <= SINGLE * np.abs(b).max() for a, b in zip(got, outputs, strict=True))


@pytest.mark.parametrize("offset", [100.0, 1000.0])
def test_central_moments_do_not_cancel(offset: float) -> None:
    """In f32 the variance of scores around a large mean is right, where sum s^2 - (sum s)^2 / n would be lost."""
    module = parse(text_of(CASES["layer norm"]))
    row = read_row(find_all(module.operation, "attn.row")[0])
    program = derive(row).program
    rng = np.random.default_rng(2)
    s = (rng.standard_normal((16, KEYS)) + offset).astype(np.float32)
    present = np.ones(s.shape, bool)
    low = Simulation(program, Samples(s, np.zeros((16, KEYS, 2), np.float32), present, {}, present[:, 0]), np.float32)
    variance = s.astype(float).var(axis=1, keepdims=True)
    b = next(i for i, r in enumerate(row.reductions) if r.name == "b")
    for run in (low.run(), low.run_merged()):
        got = low.final(*run)[0][b] / KEYS
        assert np.abs(got / variance - 1).max() < 1e-3 * offset / 1000
        assert np.isfinite(low.final(*run)[1]).all()
