"""Backward passes whose maps need numbers made late, terms of places, or rounded tiles: evaluated in several schedules, and with faults."""

from typing import Any

import pytest
import torch

import attn_mlir
from attn_mlir import masks, mods, rows
from attn_mlir.backends.gpu.attributes import Fields
from attn_mlir.backends.nvidia import pipeline
from attn_mlir.backends.nvidia.emulation import driver
from attn_mlir.backends.nvidia.emulation.program import EmulatedLaunchPlan
from attn_mlir.backends.nvidia.warp import RULES, kernel_code
from attn_mlir.backends.program import prepare_derivative
from attn_mlir.frontend.emit import Inputs
from attn_mlir.mlir import ir
from attn_mlir.passes.regions import find_all, maker
from attn_mlir.reference.warp import schedules_of
from machine_code import compiled
from test_warp_backward import Ops, Problem, Whole, find_in, of_pairs, operand, pairs_of, right_in_each
from warp_text import check_text

_DIM = 128
_ADDED: Fields = {
    "emitter": "warp", "arch": "sm_90a", "key_sums": "late", "reduction_warps": 1, "claims": 1, "scale": 1, "named": 1, "elect": 0,
    "unsigned_lanes": 1, "block_q": 128, "block_kv": 64,
}  # fmt: skip
_SLOPES = torch.tensor([0.5, 0.1])
_CAP = 3.0


def sloped(s: Any, b: Any, h: Any, i: Any, j: Any) -> Any:
    """ALiBi with slopes that are captured."""
    return s + _SLOPES[h] * (j - i)


FORMS: dict[str, tuple[dict[str, Any], list[Any]]] = {
    "retention": ({"row": rows.retention}, []),
    "sloped": ({"score_mod": sloped}, [_SLOPES]),
    "narrow": ({"score_mod": sloped}, [_SLOPES]),
    "softcap": ({"score_mod": mods.softcap(_CAP)}, [_CAP]),
}
"""How they are written, all under a causal mask, and what they capture. The narrow one has 64 columns, and no late sums."""
_NARROW: Fields = {"key_sums": "consumers", "block_kv": 128, "named": 0}


def columns(form: str) -> int:
    return 64 if form == "narrow" else _DIM


def program(form: str) -> EmulatedLaunchPlan:
    call = attn_mlir.Attention(mask_mod=masks.causal(), **FORMS[form][0])
    call.__dict__.update(_last=Inputs("f16", columns(form), columns(form)), _form=None)
    prepared = prepare_derivative("bwd", ("q", "k", "v"), pipeline.outline("sm_90a"))
    return driver._compile(call.ir(), *prepared, {**_ADDED, **(_NARROW if form == "narrow" else {})})  # pyright: ignore[reportPrivateUsage]


def problem(form: str, length: int) -> Problem:
    """What the backward pass takes, two heads of queries and one of keys, and the gradients in float64."""
    draw, dim = torch.Generator().manual_seed(1), columns(form)
    q, do = (torch.randn(1, 2, length, dim, generator=draw).half() for _ in range(2))
    k, v = (torch.randn(1, 1, length, dim, generator=draw).half() for _ in range(2))
    wide = [x.double().requires_grad_() for x in (q, k, v)]
    places = torch.arange(length, dtype=torch.float64)
    scores = wide[0] @ wide[1].mT / dim**0.5
    if form in ("sloped", "narrow"):
        scores = scores + _SLOPES.double()[:, None, None] * (places - places[:, None])
    elif form == "softcap":
        scores = _CAP * (scores / _CAP).tanh()
    seen = torch.ones(length, length, dtype=torch.bool).tril()
    if form == "retention":
        weights = scores.masked_fill(~seen, 0.0)
        total = weights.detach().abs().sum(-1)
        o = weights @ wide[2] / total.clamp(min=1.0)[..., None]
        saved = [total.float()]
    else:
        scores = scores.masked_fill(~seen, -torch.inf)
        o, most = scores.softmax(-1) @ wide[2], scores.amax(-1)
        saved = [most.float(), (scores - most[..., None]).exp().sum(-1).float()]
    inputs = [q, k, v, *FORMS[form][1], o.half(), *saved, do]
    return [x.detach() if isinstance(x, torch.Tensor) else x for x in inputs], torch.autograd.grad(o, wide, do.double())


@pytest.mark.parametrize(("form", "step"), [("sloped", 2), ("retention", 4), ("narrow", 4), ("softcap", 4)])
def test_schedules(form: str, step: int) -> None:
    """Two blocks of keys and three of queries; some schedules each, as one takes a second, the last of which draws at random."""
    made = program(form)
    right_in_each(made, list(schedules_of(pairs_of(made)).values())[::step], problem(form, 130))


@pytest.mark.parametrize("length", [1, 17, 127])
@pytest.mark.parametrize("form", FORMS)
def test_odd_lengths(form: str, length: int) -> None:
    made = program(form)
    right_in_each(made, [next(iter(schedules_of(pairs_of(made)).values()))], problem(form, length))


@pytest.fixture(scope="module")
def of_slopes() -> Whole:
    return of_pairs(program("sloped"))


def loops_of(made: EmulatedLaunchPlan) -> list[list[ir.Operation]]:
    """What stands in the loops over queries whose maps read two products."""
    blocks = [loop.regions[0].blocks[0] for loop in find_all(pairs_of(made), "scf.for")]
    each = [[view.operation for view in block.operations] for block in blocks]
    return [ops for ops in each if sum(op.name == "warp.mma_wait" for op in ops) > 3]


def test_terms_of_places_come_with_the_numbers(of_slopes: Whole) -> None:
    """Maps compute nothing of a query's place: the producer did."""
    copies = find_all(pairs_of(of_slopes[0]), "warp.copy_rows_scaled")
    assert sum(maker(op.operands[4], "arith.constant") is None for op in copies) == len(copies) // 2 > 0
    for ops in loops_of(of_slopes[0]):
        for map_ in [op for op in ops if op.name == "warp.map" and len(op.regions[0].blocks[0].arguments) == 2]:
            column = map_.regions[0].blocks[0].arguments[1]
            casts = [maker(op.operands[0], "arith.index_cast") for op in find_all(map_, "arith.sitofp")]
            assert all(cast is not None and column not in list(cast.operands) for cast in casts)


def test_exponentials_fly_with_the_second_product(of_slopes: Whole) -> None:
    capped = program("softcap")
    for made in (of_slopes[0], capped):
        loops = loops_of(made)
        assert loops
        for ops in loops:
            waits = [n for n, op in enumerate(ops) if op.name == "warp.mma_wait"]
            early = [op for op in ops[waits[0] : waits[1]] if op.name == "warp.map"]
            assert any(find_all(op, "math.exp2", "math.exp") for op in early)


def test_weights_are_rounded_while_the_second_product_flies() -> None:
    """Each of retention's weights needs one of the products, and the number of a query is read once, before both have landed."""
    made = program("retention")
    loops = loops_of(made)
    assert loops
    for ops in loops:
        waits = [n for n, op in enumerate(ops) if op.name == "warp.mma_wait"]
        early = [op for op in ops[waits[0] : waits[1]] if op.name == "warp.map"]
        assert any(ir.RankedTensorType(value.type).element_type == ir.F16Type.get(value.context) for op in early for value in op.results)
        reads = [op for op in ops if op.name == "warp.map" and find_all(op, "memref.load")]
        assert len(reads) == 1 and ops.index(reads[0]) < waits[0]


@pytest.mark.parametrize("form", FORMS)
def test_text_and_machine_code(form: str) -> None:
    made = program(form)
    found = pairs_of(made)
    with found.context:
        check_text(found)
        code = kernel_code(found, RULES)
    binary = compiled(code)
    assert binary.spills <= 64 and not binary.warnings


def flat(ops: Ops) -> None:
    """No term of places comes with numbers of rows."""
    for op in ops["copy_rows_scaled"]:
        with op.location, ir.InsertionPoint(op):
            zero = ir.FloatAttr.get(ir.F32Type.get(), 0.0)
            op.operands[4] = ir.Operation.create("arith.constant", results=[ir.F32Type.get()], attributes={"value": zero}).result


@pytest.mark.parametrize(("kinds", "plant"), [
    ("wrong numbers", flat),
    ("wrong numbers", operand("copy_rows_scaled", 0, 3, ("copy_async", 0, 4))),
], ids=["no slopes", "other rows"])  # fmt: skip
def test_faults_are_found(of_slopes: Whole, kinds: str, plant: Any) -> None:
    find_in(of_slopes, kinds, plant, problem("sloped", 300))
