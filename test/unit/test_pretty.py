"""IR for people: expressions mean what the ops compute, constants are exact, every stage prints, the same text each time."""

import random
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import attn_mlir
from attn_mlir.errors import ArgumentError
from attn_mlir.mlir import ir
from attn_mlir.passes.pipeline import Pipeline
from attn_mlir.pretty import pretty, pretty_text
from attn_mlir.registry import registry
from contexts import loaded_context

ROOT = Path(__file__).parents[2]
INPUTS = sorted((ROOT / "test/Inputs").rglob("*.mlir"))

BINARY: dict[str, Callable[[int, int], int]] = {
    "arith.addi": lambda a, b: a + b,
    "arith.subi": lambda a, b: a - b,
    "arith.muli": lambda a, b: a * b,
    "arith.andi": lambda a, b: a & b,
    "arith.ori": lambda a, b: a | b,
    "arith.xori": lambda a, b: a ^ b,
    "arith.maxsi": max,
    "arith.minsi": min,
    "arith.floordivsi": lambda a, b: a // (b * b + 1),
}
COMPARED: dict[str, Callable[[int, int], bool]] = {"slt": lambda a, b: a < b, "sge": lambda a, b: a >= b, "ne": lambda a, b: a != b}


def random_function(generator: random.Random, values: list[int]) -> tuple[str, int]:
    """A function of random integer ops on arguments, as MLIR, and what it returns for `values`."""
    lines: list[str] = []
    known = [(f"%a{number}", value) for number, value in enumerate(values)]

    def make(op: str, *operands: str) -> str:
        lines.append(f"%{len(lines)} = {op} {', '.join(operands)} : index")
        return f"%{len(lines) - 1}"

    one = make("arith.constant 1")
    for _ in range(generator.randint(3, 14)):
        (x, a), (y, b) = generator.choice(known), generator.choice(known)
        if generator.random() < 0.25:
            predicate = generator.choice(list(COMPARED))
            truth = make(f"arith.cmpi {predicate},", x, y)
            z, c = generator.choice(known)
            known.append((make("arith.select", truth, x, z), a if COMPARED[predicate](a, b) else c))
            continue
        name = generator.choice(list(BINARY))
        if name == "arith.floordivsi":
            y = make("arith.addi", make("arith.muli", y, y), one)
        known.append((make(name, x, y), BINARY[name](a, b)))
    result, value = known[-1]
    arguments = ", ".join(f"%a{number}: index" for number in range(len(values)))
    return "\n".join([f"func.func @f({arguments}) -> index {{", *lines, f"return {result} : index", "}"]), value


def test_expressions_mean_what_they_say() -> None:
    """Each statement is Python: parentheses stand where, and only where, precedence needs them."""
    generator, parenthesised = random.Random(1), 0
    for _ in range(60):
        values = [generator.randint(-9, 9) for _ in range(3)]
        text, expected = random_function(generator, values)
        header, *body, _ = pretty_text(text).splitlines()
        assert header == "func @f(a0: index, a1: index, a2: index) -> (index) {"
        names: dict[str, Any] = {f"a{number}": value for number, value in enumerate(values)}
        for line in body[:-1]:
            exec(line.strip(), {"max": max, "min": min}, names)
        returned = body[-1].strip().removeprefix("return ")
        assert eval(returned, {"max": max, "min": min}, names) == expected, text
        parenthesised += returned.count("(")
    assert parenthesised > 20


@pytest.mark.parametrize("line", ["return a - (b - c)", "return a - b - c", "return (a + b) * -c", "return a if a < b else c"])
def test_round_trip_of_precedence(line: str) -> None:
    ops = {
        "return a - (b - c)": ["%0 = arith.subf %b, %c : f32", "%1 = arith.subf %a, %0 : f32"],
        "return a - b - c": ["%0 = arith.subf %a, %b : f32", "%1 = arith.subf %0, %c : f32"],
        "return (a + b) * -c": ["%n = arith.negf %c : f32", "%0 = arith.addf %a, %b : f32", "%1 = arith.mulf %0, %n : f32"],
        "return a if a < b else c": ["%0 = arith.cmpf olt, %a, %b : f32", "%1 = arith.select %0, %a, %c : f32"],
    }[line]
    body = "\n".join([*ops, "return %1 : f32"]).replace("%n", "%9")
    assert line in pretty_text(f"func.func @f(%a: f32, %b: f32, %c: f32) -> f32 {{ {body} }}")


@pytest.mark.parametrize("kind", ["f16", "f32", "f64"])
def test_constants_are_exact(kind: str) -> None:
    type_ = {"f16": np.float16, "f32": np.float32, "f64": np.float64}[kind]
    for number in (0.1, 1 / 3, -65504.0, 1e-5, -0.0, float("inf"), 12345.0):
        value = type_(number)
        text = pretty_text(f"func.func @f() -> {kind} {{ %0 = arith.constant {literal(value, kind)} : {kind} return %0 : {kind} }}")
        (told,) = re.findall(r"return (\S+)", text)
        assert type_(told).tobytes() == value.tobytes()
        assert len(told) <= len(repr(float(value))), "not the shortest one"


def literal(value: Any, kind: str) -> str:
    """A number as MLIR reads it: its bits."""
    bits = value.tobytes()[::-1].hex()
    assert len(bits) * 4 == int(kind[1:])
    return f"0x{bits.upper()}"


@pytest.mark.parametrize("path", INPUTS, ids=lambda path: str(path.relative_to(ROOT / "test/Inputs")))
def test_every_input_prints(path: Path) -> None:
    text = path.read_text()
    told = pretty_text(text)
    assert told == pretty_text(text)
    assert "unknown" not in told
    assert "%" not in re.sub(r" %u? ", "", told), "a value printed by MLIR"
    assert "operandSegmentSizes" not in told


@pytest.mark.parametrize(
    ("name", "pipeline"),
    [
        ("alibi-causal-softmax", "attn-pipeline"),
        ("alibi-causal-softmax", "attn-differentiate{functions=bwd},attn-outline{keep-hosts=false},attn-pipeline"),
        ("linear/gla", "attn-pipeline"),
        ("packed-causal", "cpu-kernel"),
        ("softmax-f16", "nvidia-kernel"),
        ("causal-softmax", "cpu-kernel,cpu-lower-tiles"),
    ],
)
def test_every_stage_prints(name: str, pipeline: str) -> None:
    text = (ROOT / f"test/Inputs/{name}.mlir").read_text()
    told: list[str] = []
    with loaded_context():
        module = ir.Module.parse(text)
        Pipeline.parse(pipeline, registry()).run(module, after=[lambda step, operation, seconds: told.append(pretty(operation, text))])
    assert len(told) > 5
    assert not any("unknown" in each for each in told)


def test_page_quotes_what_is_printed() -> None:
    text = (ROOT / "test/Inputs/alibi-causal-softmax.mlir").read_text()
    with loaded_context():
        module = ir.Module.parse(text)
        Pipeline.parse("attn-pipeline", registry()).run(module)
        told, count = pretty(module.operation, text), len(str(module).splitlines())
    page = (ROOT / "docs/pretty.md").read_text()
    quoted = re.search(r"^    max_1:.*?^    }$", page, re.MULTILINE | re.DOTALL)
    assert quoted is not None
    assert re.sub(r"^    ", "  ", quoted[0], flags=re.MULTILINE) in told
    assert "takes less than half as many lines" in page
    assert told.count("\n") < 0.5 * count


def relu_normalised(s: Any) -> Any:
    w = s.max(0.0)
    return w / (w.sum() + 1e-6)


def test_ir_of_every_entry_point() -> None:
    meta = attn_mlir.meta_tensor(1, 2, 8, 16, dtype=torch.float32)
    made = [
        attn_mlir.Attention(row=relu_normalised),
        attn_mlir.LinearAttention(),
        attn_mlir.AttentionEngine((meta, meta, meta)),
        attn_mlir.LinearAttentionEngine((meta, meta, meta)),
    ]
    for each in made:
        assert each.ir(pretty=True).startswith("func @attention(q: ?x?x?x")
        assert each.ir().startswith("module {")
    told = made[0].ir("attn-tile", pretty=True)
    assert "weight[i, j] = max(" in told
    with pytest.raises(ArgumentError, match="stage is one of traced, "):
        made[0].ir("attn-tiles", pretty=True)


def test_names_are_those_of_the_author() -> None:
    slopes = torch.ones(4)
    told = attn_mlir.Attention(score_mod=lambda score, b, h, q_idx, kv_idx: score + slopes[h] * (kv_idx - q_idx)).ir(pretty=True)
    assert "slopes: ?xf32" in told
    assert "slopes[h] * f32(i64(kv_idx - q_idx))" in told
