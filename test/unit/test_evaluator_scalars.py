"""The reference evaluator's scalar ops against numpy and hand-computed values."""

import math
from typing import Any

import numpy as np
import pytest

from programs import run

INF, NAN = math.inf, math.nan


def result(expression: str, types: str, result_type: str, *args: Any, **options: Any) -> Any:
    """What `expression` over %0, %1... gives for scalars of the comma-separated `types`."""
    parameters = ", ".join(f"%{i}: {type_.strip()}" for i, type_ in enumerate(types.split(",")))
    text = f"func.func @attention({parameters}) -> {result_type} {{\n  %r = {expression}\n  return %r : {result_type}\n}}"
    return run(text, args, **options)[0].item()


@pytest.mark.parametrize(
    ("op", "args", "wanted"),
    [
        ("arith.addf", (1.5, 2.0), 3.5),
        ("arith.subf", (1.5, 2.0), -0.5),
        ("arith.mulf", (1.5, 2.0), 3.0),
        ("arith.divf", (1.0, 0.0), INF),
        ("arith.remf", (-7.0, 3.0), -1.0),
        ("arith.negf", (1.5,), -1.5),
        ("arith.maximumf", (1.0, NAN), NAN),
        ("arith.minimumf", (NAN, 1.0), NAN),
        ("arith.maxnumf", (1.0, NAN), 1.0),
        ("arith.minnumf", (NAN, 1.0), 1.0),
        ("math.exp", (1.0,), math.e),
        ("math.exp2", (3.0,), 8.0),
        ("math.expm1", (1e-20,), 1e-20),
        ("math.log", (math.e,), 1.0),
        ("math.log2", (8.0,), 3.0),
        ("math.log1p", (1e-20,), 1e-20),
        ("math.sqrt", (2.25,), 1.5),
        ("math.rsqrt", (4.0,), 0.5),
        ("math.absf", (-2.0,), 2.0),
        ("math.tanh", (0.5,), math.tanh(0.5)),
        ("math.erf", (0.5,), math.erf(0.5)),
        ("math.sin", (0.5,), math.sin(0.5)),
        ("math.cos", (0.5,), math.cos(0.5)),
        ("math.powf", (2.0, 0.5), math.sqrt(2.0)),
        ("math.floor", (-1.5,), -2.0),
        ("math.ceil", (-1.5,), -1.0),
        ("math.roundeven", (2.5,), 2.0),
        ("math.round", (2.5,), 3.0),
        ("math.trunc", (-1.5,), -1.0),
        ("math.copysign", (2.0, -1.0), -2.0),
        ("math.fma", (2.0, 3.0, 4.0), 10.0),
    ],
)
def test_float_ops(op: str, args: tuple[float, ...], wanted: float) -> None:
    operands = ", ".join(f"%{i}" for i in range(len(args)))
    got = result(f"{op} {operands} : f64", ", ".join(["f64"] * len(args)), "f64", *args)
    assert got == pytest.approx(wanted, rel=1e-15, nan_ok=True)


@pytest.mark.parametrize(
    ("op", "a", "b", "wanted"),
    [
        ("addi", 5, -7, -2),
        ("subi", 5, 7, -2),
        ("muli", 5, -7, -35),
        ("floordivsi", -7, 2, -4),
        ("ceildivsi", -7, 2, -3),
        ("ceildivsi", 7, 2, 4),
        ("divsi", -7, 2, -3),
        ("remsi", -7, 2, -1),
        ("remsi", 7, -4, 3),
        ("minsi", -1, 1, -1),
        ("maxsi", -1, 1, 1),
        ("minui", -1, 1, 1),
        ("maxui", -1, 1, -1),
        ("andi", 6, 3, 2),
        ("ori", 6, 3, 7),
        ("xori", 6, 3, 5),
        ("shli", 3, 2, 12),
        ("shrsi", -8, 1, -4),
        ("shrui", -8, 1, 2**63 - 4),
        ("divui", 7, 2, 3),
        ("remui", 7, 4, 3),
    ],
)
def test_integer_ops(op: str, a: int, b: int, wanted: int) -> None:
    assert result(f"arith.{op} %0, %1 : index", "index, index", "index", a, b) == wanted


@pytest.mark.parametrize(("bits", "a", "b", "wanted"), [(8, 100, 100, -56), (16, 30000, 10000, -25536), (32, 2**31 - 1, 1, -(2**31))])
def test_integers_wrap_to_their_width(bits: int, a: int, b: int, wanted: int) -> None:
    assert result(f"arith.addi %0, %1 : i{bits}", f"i{bits}, i{bits}", f"i{bits}", a, b) == wanted


@pytest.mark.parametrize(
    ("op", "source", "target", "value", "wanted"),
    [
        ("arith.index_cast", "i32", "index", -3, -3),
        ("arith.index_cast", "index", "i8", 300, 44),
        ("arith.index_castui", "i8", "index", -1, 255),
        ("arith.extsi", "i8", "i32", -3, -3),
        ("arith.extui", "i8", "i32", -3, 253),
        ("arith.extui", "i1", "i32", True, 1),
        ("arith.extsi", "i1", "i32", True, -1),
        ("arith.trunci", "i32", "i8", 511, -1),
        ("arith.trunci", "i32", "i1", 3, True),
        ("arith.sitofp", "i32", "f32", -3, -3.0),
        ("arith.uitofp", "i8", "f32", -1, 255.0),
        ("arith.uitofp", "i1", "f32", True, 1.0),
        ("arith.sitofp", "i1", "f32", True, -1.0),
        ("arith.fptosi", "f32", "i32", -2.7, -2),
        ("arith.extf", "f16", "f32", 0.1, 0.1),
        ("arith.truncf", "f32", "f16", 0.1, 0.1),
    ],
)
def test_casts(op: str, source: str, target: str, value: Any, wanted: Any) -> None:
    got = result(f"{op} %0 : {source} to {target}", source, target, value)
    assert got == wanted
    assert type(got) is type(wanted)


@pytest.mark.parametrize(("type_", "wanted"), [("f16", float(np.float16(0.1))), ("bf16", 0.10009765625), ("f32", float(np.float32(0.1)))])
def test_truncf_rounds_on_request(type_: str, wanted: float) -> None:
    assert result(f"arith.truncf %0 : f64 to {type_}", "f64", type_, 0.1, rounding=True) == wanted
    assert math.isnan(result(f"arith.truncf %0 : f64 to {type_}", "f64", type_, NAN, rounding=True))


FLOAT_PREDICATES = {  # for (1, 2), (1, 1), (2, 1), (1, NaN)
    "false": "0000", "oeq": "0100", "ogt": "0010", "oge": "0110", "olt": "1000", "ole": "1100", "one": "1010", "ord": "1110",
    "ueq": "0101", "ugt": "0011", "uge": "0111", "ult": "1001", "ule": "1101", "une": "1011", "uno": "0001", "true": "1111",
}  # fmt: skip


@pytest.mark.parametrize("predicate", FLOAT_PREDICATES)
def test_float_comparisons(predicate: str) -> None:
    pairs = [(1.0, 2.0), (1.0, 1.0), (2.0, 1.0), (1.0, NAN)]
    got = [result(f"arith.cmpf {predicate}, %0, %1 : f32", "f32, f32", "i1", *pair) for pair in pairs]
    assert "".join("01"[x] for x in got) == FLOAT_PREDICATES[predicate]


INTEGER_PREDICATES = {  # for (1, 2), (1, 1), (1, -1)
    "eq": "010", "ne": "101", "slt": "100", "sle": "110", "sgt": "001", "sge": "011",
    "ult": "101", "ule": "111", "ugt": "000", "uge": "010",
}  # fmt: skip


@pytest.mark.parametrize("predicate", INTEGER_PREDICATES)
def test_integer_comparisons(predicate: str) -> None:
    got = [result(f"arith.cmpi {predicate}, %0, %1 : i32", "i32, i32", "i1", *pair) for pair in [(1, 2), (1, 1), (1, -1)]]
    assert "".join("01"[x] for x in got) == INTEGER_PREDICATES[predicate]


@pytest.mark.parametrize(("condition", "wanted"), [(True, 1.5), (False, -2.0)])
def test_select(condition: bool, wanted: float) -> None:
    assert result("arith.select %0, %1, %2 : f32", "i1, f32, f32", "f32", condition, 1.5, -2.0) == wanted


@pytest.mark.parametrize(
    ("text", "type_", "wanted"),
    [
        ("-0.5 : f32", "f32", -0.5),
        ("true", "i1", True),
        ("-7 : index", "index", -7),
        ("0xFF800000 : f32", "f32", -INF),
        ("250 : i8", "i8", -6),
    ],
)
def test_constants(text: str, type_: str, wanted: Any) -> None:
    assert result(f"arith.constant {text}", "f32", type_, 0.0) == wanted


def test_booleans_are_bits() -> None:
    assert result("arith.xori %0, %1 : i1", "i1, i1", "i1", True, True) is False
    assert result("arith.andi %0, %1 : i1", "i1, i1", "i1", True, False) is False
    assert result("arith.ori %0, %1 : i1", "i1, i1", "i1", True, False) is True
