"""attn-recover-rows: the row of an online function, as formulas, and as values of what was written."""

from typing import Any

import pytest

import engine_helpers as eh
from attn_mlir import Identity, OnlineFunc, OnlineRetention, OnlineSoftmax, SymbolScalar, Var, detach
from attn_mlir.dialects import load_all
from attn_mlir.errors import CompileError
from attn_mlir.mlir import LOCK, ir
from attn_mlir.passes.pipeline import Pipeline
from attn_mlir.registry import registry

QKV = eh.inputs(b=1, h=2, sq=8, d=8)


def online(states: dict[str, str], step: Any, epilogue: Any, outputs: tuple[str, ...] = ()) -> OnlineFunc:
    """An OnlineFunc from its two functions."""
    kind = type("Written", (OnlineFunc,), {"online_fwd": staticmethod(step), "online_fwd_epilogue": staticmethod(epilogue)})
    return kind({n: SymbolScalar(n, Var(v)) for n, v in states.items()}, {n: SymbolScalar(n, Var("0")) for n in outputs})


def row(online_func: OnlineFunc) -> list[str]:
    """What the row computes: its lines in the explanation."""
    text = eh.engine(QKV, online_func=online_func).explain().partition("derived from it")[2]
    lines = text.partition("  row\n")[2].partition("\n\n")[0].splitlines()
    return [line.strip() for line in lines]


def dense(online_func: OnlineFunc) -> str:
    with LOCK, ir.Context() as context:
        load_all(context)
        module = ir.Module.parse(eh.engine(QKV, online_func=online_func).ir())
        Pipeline.parse("attn-recover-rows", registry()).run(module)
        return module.operation.get_asm()


def softmax_base_2(s: Any, r: Any, b: Any, h: Any, q_idx: Any) -> Any:
    m = r["m"].max(s.get_reduce("max") * 1.5)
    scale, p = (r["m"] - m).exp2(), (s * 1.5 - m).exp2()
    return p, {"m": m, "l": r["l"] * scale + p.get_reduce("sum")}, scale


def tanh_average(s: Any, r: Any, b: Any, h: Any, q_idx: Any) -> Any:
    """A running mean: o is what it is after every block."""
    n = r["n"] + (s * 0 + 1).get_reduce("sum")
    return s.tanh() / n.max(1), {"n": n}, r["n"] / n.max(1)


def smallest(s: Any, r: Any, b: Any, h: Any, q_idx: Any) -> Any:
    return s, {"low": r["low"].min(s.get_reduce("min"))}, 1


def off_by_one(s: Any, r: Any, b: Any, h: Any, q_idx: Any) -> Any:
    """A maximum that starts at 0, and a sum that starts with its key."""
    m = r["m"].max(s.get_reduce("max"))
    scale, p = (r["m"] - m).exp(), (s - m).exp()
    return p, {"m": m, "l": r["l"] * scale + p.get_reduce("sum")}, scale


def divide(o: Any, r: Any, b: Any, h: Any, q_idx: Any) -> Any:
    return o / r["l"], {}


@pytest.mark.parametrize(
    ("online_func", "lines"),
    [
        (OnlineSoftmax(), ["m = max s", "r = sum exp(s - m)", "p = exp(s - m) / r", "lse = log(r) + m"]),
        (OnlineRetention(), ["abssum = sum abs(s)", "p = s / max(abssum, 1)", "r = max(abssum, 1)"]),
        (Identity(), ["p = s"]),
        (
            online({"m": "-inf", "l": "0"}, softmax_base_2, divide),
            ["max = max s", "l = sum exp2(s * 1.5 - max * 1.5)", "p = exp2(s * 1.5 - max * 1.5) / l"],
        ),
        (online({"m": "-1e38", "l": "0"}, off_by_one, divide), ["m = max s", "l = sum exp(s - m)", "p = exp(s - m) / l"]),
        (
            online({"m": "0", "l": "1"}, off_by_one, divide),
            ["max = max s", "sum = sum exp(s - max(0, max))", "p = exp(s - max(0, max)) / (exp(0 - max(0, max)) + sum)"],
        ),
        (online({"low": "inf"}, smallest, lambda o, r, *_: (o, {"low": r["low"]}), ("low",)), ["low = min s", "p = s", "low = low"]),
    ],
    ids=["softmax", "retention", "identity", "base 2", "other lowest", "off by one", "minimum"],
)
def test_the_row_of_an_online_function(online_func: OnlineFunc, lines: list[str]) -> None:
    found = row(online_func)
    assert [line.replace("-max(0, max)", "0 - max(0, max)") for line in found] == lines


def test_a_running_mean_is_a_mean() -> None:
    text = dense(online({"n": "0"}, tanh_average, lambda o, r, *_: (o, {})))
    assert text.count('"attn.reduce"') == 1 and text.count("math.tanh") == 1 and "arith.mulf" not in text.partition('"attn.reduce"')[2]


def test_detached_values_stay_detached() -> None:
    assert '"attn.detach"' in dense(online({"n": "0"}, tanh_average, lambda o, r, *_: (o * detach(r["n"]), {})))


def block_maximum(s: Any, r: Any, b: Any, h: Any, q_idx: Any) -> Any:
    """Weights in terms of the block's maximum instead of the row's."""
    p = (s - s.get_reduce("max")).exp()
    return p, {"l": r["l"] + p.get_reduce("sum")}, 1


def last_block(s: Any, r: Any, b: Any, h: Any, q_idx: Any) -> Any:
    """Keeps the last block only."""
    return s, {"l": s.get_reduce("sum")}, 0


def unscaled(s: Any, r: Any, b: Any, h: Any, q_idx: Any) -> Any:
    """Right but for blocks without keys, where 0 / 0 spoils the state."""
    total = s.abs().get_reduce("sum")
    return s, {"l": r["l"] + total * total / total}, 1


@pytest.mark.parametrize("step", [block_maximum, last_block, unscaled])
def test_functions_of_blocks_are_refused(step: Any) -> None:
    with pytest.raises(CompileError, match=r"not independent of how keys are cut into blocks: o is .* over blocks of 2, 2, 1, "):
        dense(online({"l": "0"}, step, divide))


@pytest.mark.parametrize(
    "epilogue",
    [lambda o, r, *_: (o * o, {}), lambda o, r, *_: (o + 1, {}), lambda o, r, *_: (o.max(0), {}), lambda o, r, *_: (r["l"] / o, {})],
)
def test_an_end_that_is_not_linear_is_refused(epilogue: Any) -> None:
    with pytest.raises(CompileError, match="the output is not linear in the sum of weighted values"):
        dense(online({"m": "-inf", "l": "0"}, off_by_one, epilogue))
