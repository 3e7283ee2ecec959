"""Kernels that `attn-tile` makes of `attn.chunk`, run by the evaluator, against the recurrence."""

import itertools
from typing import Any

import numpy as np
import pytest

from attn_mlir.mlir import ir
from attn_mlir.passes.pipeline import Pipeline
from attn_mlir.reference.evaluator import evaluate
from attn_mlir.reference.tiles import run_kernel
from attn_mlir.registry import registry
from contexts import loaded_context
from linear_programs import Linear, error, inputs, recurrence

_EVERYTHING = {"initial": True, "final": True, "factor": True, "interval": 16, "element": "f64", "score": "f64"}


def check(program: Linear, batch: int, heads: dict[str, int], length: int, sub: int = 16, **more: Any) -> None:
    given = inputs(program, batch, heads, length, **more)
    wanted = recurrence(program, given)
    with loaded_context():
        module = ir.Module.parse(program.text())
        module.body.operations[0].attributes["tile.numerics"] = ir.Attribute.parse(f"{{sub_chunk = {sub}}}")
        Pipeline.parse("attn-tile-chunks,canonicalize,cse", registry()).run(module)
        slots = program.v // (program.value_block or program.v)
        shapes = {name: value.shape for name, value in wanted.items()}
        of_slots = [name for name in ("products", "diagonal") if name in shapes and slots > 1 and program.channels == "none"]
        shapes |= {name: (slots, *shapes[name]) for name in of_slots}
        outputs = {name: np.full(shape, np.nan) for name, shape in shapes.items()}
        run_kernel(module.body.operations[0].operation, [*given.values(), *outputs.values()])
    outputs |= {name: outputs[name].sum(0) for name in of_slots}
    if program.offsets and program.interval:  # rows behind a sequence's last state are not written
        outputs["states"] = np.nan_to_num(outputs["states"])
    for name, value in wanted.items():
        assert error(outputs[name], value) < 1e-12, name


@pytest.mark.parametrize(
    ("direction", "state", "mods"), list(itertools.product(("forward", "backward"), ("kv", "vk"), ({}, {"mods": True}, {"row_mods": True})))
)
def test_one_decay_for_all_channels(direction: str, state: str, mods: dict[str, bool]) -> None:
    program = Linear(direction=direction, state=state, chunk=8, k=4, v=6, **mods, **_EVERYTHING)
    check(program, 2, {"q": 2, "k": 1, "v": 4, "decay": 4, "factor": 2}, 21)


@pytest.mark.parametrize(("direction", "state"), list(itertools.product(("forward", "backward"), ("kv", "vk"))))
@pytest.mark.parametrize(
    "fields",
    [
        {"diagonal": True},
        {"result": True},
        {"diagonal": True, "result": True, "row_mods": True},
        {"diagonal": True, "result": True, "value_block": 2},
    ],
)
def test_terms_that_products_leave_out_and_factors_behind_sums(direction: str, state: str, fields: dict[str, Any]) -> None:
    program = Linear(direction=direction, state=state, chunk=8, k=4, v=6, **_EVERYTHING, **fields)
    check(program, 2, {"q": 2, "k": 1, "v": 4, "decay": 4, "factor": 2}, 21)


@pytest.mark.parametrize("row_mods", [False, True])
def test_factors_of_rows_where_o_is_all_there_is(row_mods: bool) -> None:
    """They stand with those of q."""
    program = Linear(result=True, row_mods=row_mods, chunk=8, k=4, v=6, element="f64", score="f64", initial=True, final=True, offsets=True)
    check(program, 1, {"q": 1, "k": 2, "v": 4, "decay": 2}, 40, offsets=np.array([0, 5, 5, 25, 40]))


@pytest.mark.parametrize(("direction", "state"), list(itertools.product(("forward", "backward"), ("kv", "vk"))))
@pytest.mark.parametrize("fields", [{}, {"mods": True}, {"row_mods": True, "result": True, "value_block": 2}])
def test_what_rows_get_of_their_own_row_of_v(direction: str, state: str, fields: dict[str, Any]) -> None:
    more = {"initial": True, "final": True, "element": "f64", "score": "f64", "offsets": True}
    program = Linear(skip=True, direction=direction, state=state, chunk=8, k=4, v=6, **fields, **more)
    check(program, 1, {"q": 1, "k": 2, "v": 4, "decay": 2}, 40, offsets=np.array([0, 5, 5, 25, 40]))


@pytest.mark.parametrize(("direction", "channels"), list(itertools.product(("forward", "backward"), ("key", "value"))))
@pytest.mark.parametrize(("chunk", "sub", "value_block"), [(4, 16, 0), (4, 1, 2), (16, 4, 2), (16, 2, 0), (6, 4, 0), (12, 2, 0)])
def test_decays_of_channels(direction: str, channels: str, chunk: int, sub: int, value_block: int) -> None:
    state = "kv" if channels == "key" else "vk"
    more = {**_EVERYTHING, "interval": 48, "direction": direction, "channels": channels, "state": state, "mods": True}
    check(Linear(chunk=chunk, k=6, v=4, value_block=value_block, **more), 1, {"q": 1, "k": 2, "v": 2, "decay": 1}, 55, sub)


def rounded_products(program: Linear, given: dict[str, Any], name: str = "products") -> float:
    """The error of products (or another result) where numbers are rounded to 16 bits as the program says."""
    wanted = recurrence(program, given)
    with loaded_context():
        module = ir.Module.parse(program.text())
        Pipeline.parse("attn-tile,canonicalize,cse", registry()).run(module)
        made = {name: np.full(value.shape, np.nan) for name, value in wanted.items()}
        run_kernel(module.body.operations[0].operation, [*given.values(), *made.values()], rounding=True)
    return error(made[name], wanted[name])


@pytest.mark.parametrize("direction", ["forward", "backward"])
def test_strong_decays_of_channels_rounded_to_f16(direction: str) -> None:
    """What is rounded is seen from the nearest place: exp(-10) times it would be among the numbers of which f16 has few digits."""
    program = Linear(k=16, v=16, chunk=32, direction=direction, channels="value", state="vk", factor=True, interval=32, element="f16")
    given = inputs(program, 1, {"q": 1, "k": 1, "v": 1, "decay": 1, "factor": 1}, 32)
    given = {name: x.astype(np.float16).astype(float) / (32.0 if name == "v" else 1.0) for name, x in given.items()}
    given["decay"] -= 10.0
    assert rounded_products(program, given) < 1e-3


@pytest.mark.parametrize("direction", ["forward", "backward"])
@pytest.mark.parametrize(("channels", "element"), [("none", "bf16"), ("value", "bf16"), ("value", "f16")])
def test_products_are_sums_of_two_pieces(direction: str, channels: str, element: str) -> None:
    """Of states, of what enters them, of weights in bf16, and where channels have decays, of v times weights.

    Factors of rows are not rounded.
    """
    more = {"channels": channels, "row_mods": channels == "none", "state": "vk", "factor": True, "interval": 32, "element": element}
    program = Linear(k=4, v=8, chunk=32, direction=direction, **more)
    given = inputs(program, 1, {"q": 1, "k": 1, "v": 1, "decay": 1, "factor": 1}, 64)
    rng = np.random.default_rng(0)
    # Numbers of few digits: neither they nor q k^T are rounded.
    given |= {name: rng.integers(-6, 7, given[name].shape).astype(float) for name in ("q", "k", "v", "factor")}
    assert rounded_products(program, given) < (5e-5 if element == "bf16" else 3e-6)


def test_terms_that_products_leave_out_are_not_rounded() -> None:
    program = Linear(k=8, v=8, chunk=32, direction="backward", state="vk", factor=True, diagonal=True, result=True, element="bf16")
    given = inputs(program, 1, {"q": 1, "k": 1, "v": 1, "decay": 1, "factor": 1}, 64)
    # Few digits: the inputs themselves are not rounded.
    given |= {name: np.round(given[name] * 16) / 16 for name in ("q", "k", "v", "factor")}
    assert rounded_products(program, given, "diagonal") < 1e-6


@pytest.mark.parametrize(("direction", "state"), list(itertools.product(("forward", "backward"), ("kv", "vk"))))
def test_sequences_of_offsets_and_blocks_of_columns(direction: str, state: str) -> None:
    program = Linear(direction=direction, state=state, offsets=True, mods=True, chunk=8, k=4, v=6, value_block=2, **_EVERYTHING)
    check(program, 1, {"q": 2, "k": 2, "v": 2, "decay": 2}, 40, offsets=np.array([0, 5, 5, 25, 40]))


@pytest.mark.parametrize("length", [1, 8, 9])
def test_without_decay_and_initial_state(length: int) -> None:
    check(Linear(decay=False, chunk=8, k=4, v=6, element="f64", score="f64", final=True), 1, {"q": 1, "k": 1, "v": 2}, length)


def test_heads_of_another_operand() -> None:
    program = Linear(heads=0, chunk=4, k=4, v=2, element="f64", score="f64")
    check(program, 1, {"q": 4, "k": 1, "v": 2, "decay": 4}, 9)


def kernel_of(
    text: str, given: list[np.ndarray], shape: tuple[int, ...], pipeline: str = "attn-tile{block-q=4},canonicalize,cse"
) -> np.ndarray:
    out = np.full(shape, np.nan)
    with loaded_context():
        module = ir.Module.parse(text)
        Pipeline.parse("attn-tile{block-q=4},canonicalize,cse", registry()).run(module)
        run_kernel(module.body.operations[0].operation, [*given, out])
    return out


@pytest.mark.parametrize("columns", ["", "x3"])
def test_sums_of_heads(columns: str) -> None:
    x_type = f"tensor<?x?x?{columns}xf64>"
    text = f"""
func.func @f(%x: {x_type}, %like: tensor<?x?x?x5xf64>) -> {x_type} {{
  %r = "attn.head_sum"(%x, %like) : ({x_type}, tensor<?x?x?x5xf64>) -> {x_type}
  return %r : {x_type}
}}"""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(2, 6, 7, 3) if columns else (2, 6, 7))
    wanted = x.reshape(2, 2, 3, *x.shape[2:]).sum(2)
    assert error(kernel_of(text, [x, np.zeros((2, 2, 7, 5))], wanted.shape), wanted) < 1e-14


@pytest.mark.parametrize("columns", ["", "x4"])
@pytest.mark.parametrize("offsets", [None, [0, 3, 3, 20, 27]])
def test_gradients_of_decays(columns: str, offsets: list[int] | None) -> None:
    type_, extra = f"tensor<?x?x?{columns}xf64>", "" if offsets is None else ", %offsets: tensor<?xi32>"
    operands = "%a, %b, %s, %e" + (", %offsets" if offsets else "")
    types = f"{type_}, {type_}, tensor<?x?x?x3xf64>, tensor<?x?x?x3xf64>" + (", tensor<?xi32>" if offsets else "")
    text = f"""
func.func @f(%a: {type_}, %b: {type_}, %s: tensor<?x?x?x3xf64>, %e: tensor<?x?x?x3xf64>{extra}) -> {type_} {{
  %r = "attn.decay_gradient"({operands}) {{interval = 8 : i64, rows = 4 : i64}} : ({types}) -> {type_}
  return %r : {type_}
}}"""
    rng = np.random.default_rng(0)
    length, spans = 27, [(0, 27)] if offsets is None else list(itertools.pairwise(offsets))
    batch, count = (2, 4) if offsets is None else (1, length // 8 + len(spans))
    a, b = rng.normal(size=(2, batch, 3, length, *((4,) if columns else ())))
    s, e = rng.normal(size=(2, batch, 3, count * 4, 3))
    wanted = np.zeros_like(a)
    for number, (begin, end) in enumerate(spans):
        first = 0 if offsets is None else begin // 8 + number
        for t in range(begin, end):
            start, row = begin + (t - begin) // 8 * 8, (first + (t - begin) // 8) * 4
            passing = (s * e)[:, :, row : row + 4].sum(-1)
            wanted[:, :, t] = (b - a)[:, :, start:t].sum(2) + (passing if columns else passing.sum(-1))
    given = [a, b, s, e, *([] if offsets is None else [np.array(offsets)])]
    assert error(kernel_of(text, given, wanted.shape), wanted) < 1e-13


@pytest.mark.parametrize("columns", ["", "x4"])
def test_gradients_of_decays_from_two_scans_each(columns: str) -> None:
    """They are those of sums, on the evaluator and as a kernel."""
    type_, states = f"tensor<?x?x?{columns}xf64>", "tensor<?x?x?x3xf64>"
    types = ", ".join([type_] * 4 + [states] * 3)
    text = f"""
func.func @f(%a: {type_}, %a_2: {type_}, %b: {type_}, %b_2: {type_}, %s: {states}, %e: {states}, %e_2: {states}) -> {type_} {{
  %r = "attn.decay_gradient_sum"(%a, %a_2, %b, %b_2, %s, %e, %e_2) {{interval = 8 : i64, rows = 4 : i64}} : ({types}) -> {type_}
  return %r : {type_}
}}"""
    rng = np.random.default_rng(0)
    a, a_2, b, b_2 = rng.normal(size=(4, 2, 3, 27, *((4,) if columns else ())))
    s, e, e_2 = rng.normal(size=(3, 2, 3, 16, 3))
    passing = (s * (e + e_2)).sum(-1).reshape(2, 3, 4, 4)
    passing = passing if columns else passing.sum(-1)
    wanted = np.zeros_like(a)
    for t in range(27):
        wanted[:, :, t] = (b + b_2 - a - a_2)[:, :, t // 8 * 8 : t].sum(2) + passing[:, :, t // 8]
    given = [a, a_2, b, b_2, s, e, e_2]
    assert error(kernel_of(text, given, wanted.shape), wanted) < 1e-13
    with loaded_context():
        (found,) = evaluate(ir.Module.parse(text), given, "f")
    assert error(found, wanted) < 1e-13


def test_elements_with_the_sums_of_their_rows() -> None:
    """Rows divided by their sums of squares, which come out, too: one kernel."""
    text = """
func.func @f(%x: tensor<?x?x?x5xf64>) -> tensor<?x?x?x5xf64> {
  %squares = "attn.row_dot"(%x, %x) : (tensor<?x?x?x5xf64>, tensor<?x?x?x5xf64>) -> tensor<?x?x?xf64>
  %weights = "attn.elements"(%x) ({
    "attn.element"() ({
    ^bb0(%b: index, %h: index, %i: index, %d: index):
      %value = tensor.extract %x[%b, %h, %i, %d] : tensor<?x?x?x5xf64>
      %square = tensor.extract %squares[%b, %h, %i] : tensor<?x?x?xf64>
      %unit = arith.divf %value, %square : f64
      "attn.yield"(%unit) : (f64) -> ()
    }) : () -> ()
  }) : (tensor<?x?x?x5xf64>) -> none
  %r = "attn.collect"(%weights) {weight = 0 : i64} : (none) -> tensor<?x?x?x5xf64>
  return %r : tensor<?x?x?x5xf64>
}"""
    x = np.random.default_rng(0).normal(size=(2, 3, 7, 5))
    wanted = x / (x * x).sum(-1, keepdims=True)
    assert error(kernel_of(text, [x], wanted.shape), wanted) < 1e-14
