"""Packed sequences, sums in order, tangents, wide rows in kernels for sm_80: the evaluator against float64, faults, machine code."""

from collections.abc import Callable
from typing import Any
from unittest import mock

import pytest
import torch
import torch.autograd.forward_ad as forward_ad

from attn_mlir import attention, attention_varlen, driver, masks
from attn_mlir.backends.nvidia import driver as nvidia
from attn_mlir.backends.nvidia import pipeline
from attn_mlir.backends.nvidia.emulation.program import EmulatedLaunchPlan
from attn_mlir.mlir import ir
from attn_mlir.reference.warp import Fault
from attn_mlir.runtime import programs
from machine_code import compiled
from test_warp_ampere_backward import DEVICE, code_of, program
from test_warp_backward import CAUSAL, Ops, drop, drop_all, gradients, of_pairs, planted, problem
from varlen_cases import CASES, Case, offsets

LENGTHS = ((17, 0, 140, 1, 5, 0), (17, 3, 140, 1, 2, 0))
Tensor = torch.Tensor


def close(got: Tensor, wanted: Tensor, limit: float = 2e-3) -> None:
    assert torch.isfinite(got).all()
    assert float((got.double() - wanted).norm()) <= limit * float(wanted.norm()) + 1e-6


def case_of(name: str) -> Case:
    """A case with few heads, whose captured tensors have no gradients: those of sums over pairs are TileLang's."""
    case = CASES[name]()
    case.heads = case.heads if case.captures else (2, 1)
    for each in case.captures:
        each.requires_grad_(False)
    return case


@pytest.mark.parametrize(("name", "columns", "ordered"), [
    ("causal", 64, False), ("causal", 128, False), ("alibi", 64, False), ("window", 64, False), ("sigmoid", 64, False),
    ("retention", 64, False), ("dropout", 64, False), ("causal", 64, True), ("sigmoid", 128, True),
])  # fmt: skip
def test_packed_sequences(name: str, columns: int, ordered: bool) -> None:
    """Without queries or keys, of one row, longer than a block; rows of no sequence, which hold NaN, reach nothing."""
    case, draw = case_of(name), torch.Generator().manual_seed(3)
    rows = [(sum(LENGTHS[n > 0]) + 2, case.heads[n > 0], columns) for n in range(3)]
    q, k, v = (torch.randn(shape, generator=draw).half() for shape in rows)
    for each in (q, k, v):
        each[-2:] = torch.nan
        each.requires_grad_()
    options = {"return_lse": True} if case.weigh is None else {}
    made = case.run(q, k, v, LENGTHS, device=DEVICE, deterministic=ordered, **options)
    o, lse = made if options else (made, None)
    wide = [x.detach()[:-2].double().requires_grad_() for x in (q, k, v)]
    wanted, wanted_lse = case.reference(wide[0], wide[1], wide[2], LENGTHS)
    close(o[:-2], wanted)
    assert (o[-2:] == 0).all()
    if lse is not None:
        close(lse[:, :-2].exp(), wanted_lse.exp())
    do = torch.randn(o.shape, generator=draw).half()
    for got, exact in zip(torch.autograd.grad(o, (q, k, v), do), torch.autograd.grad(wanted, wide, do[:-2].double()), strict=True):
        close(got[:-2], exact)
        assert (got[-2:] == 0).all()


@pytest.mark.parametrize(("columns", "ordered", "options"), [
    (64, True, CAUSAL), (64, True, {}), (128, True, CAUSAL), (192, False, {}), (256, False, CAUSAL), (256, True, {}),
])  # fmt: skip
def test_gradients(columns: int, ordered: bool, options: dict[str, Any]) -> None:
    sizes, own = (2, 1, 150, 140, columns), {"deterministic": True} if ordered else {}
    for mine, wanted in zip(
        gradients(sizes, DEVICE, torch.float16, {**options, **own}), gradients(sizes, "cpu", torch.float64, options), strict=True
    ):
        close(mine, wanted)


@pytest.mark.parametrize(("columns", "options"), [(64, CAUSAL), (64, {}), (128, CAUSAL), (192, {})])
def test_tangents(columns: int, options: dict[str, Any]) -> None:
    draw, made = torch.Generator().manual_seed(1), []
    tensors = [torch.randn(1, 2, 100, columns, generator=draw).half() for _ in range(6)]
    for device, dtype in ((DEVICE, torch.float16), ("cpu", torch.float64)):
        x = [each.to(dtype) for each in tensors]
        with forward_ad.dual_level():
            duals = [forward_ad.make_dual(value, tangent) for value, tangent in zip(x[:3], x[3:], strict=True)]
            made.append(forward_ad.unpack_dual(attention(duals[0], duals[1], duals[2], device=device, **options)))
    for got, wanted in zip(*made, strict=True):
        close(got, wanted)


def at(name: str, which: int, position: int, value: Callable[[ir.Operation], ir.Value]) -> Callable[[Ops], None]:
    """Gives an op another operand, made of itself."""

    def change(ops: Ops) -> None:
        op = ops[name][which]
        op.operands[position] = value(op)

    return change


def added_first(ops: Ops) -> None:
    """Each warpgroup adds before its thread waits."""
    for add, wait in zip(ops["atomic_add"], ops["order_wait"], strict=True):
        add.move_before(wait.parent)  # type: ignore[arg-type]


ORDER = {
    "a thread block is not waited for": (drop_all("order_wait"), "unordered additions"),
    "the turn is not passed on": (drop("order_pass", 0), "deadlock"),
    "passed on before all have added": (drop("named_sync", -1), "unordered additions"),
    "added before one thread has waited": (added_first, "unordered additions"),
    "another number is waited for": (at("order_wait", 0, 2, lambda op: op.operands[1]), "deadlock"),
    "a first tile that is read before it is told": (drop("named_sync", 0), "read before|race|ordered"),
    "numbers that do not wrap": (at("next_tile", 0, 1, lambda op: op.operands[1].owner.operation.operands[0]), "counter left"),
}


@pytest.fixture(scope="module")
def ordered() -> tuple[EmulatedLaunchPlan, str, str]:
    """The causal backward pass in a fixed order, by two warpgroups."""
    return of_pairs(program(pipeline.OTHERS, deterministic=1))


@pytest.mark.parametrize("name", ORDER)
def test_faults_of_the_order_are_found(ordered: tuple[EmulatedLaunchPlan, str, str], name: str) -> None:
    made, kernel, text = ordered
    inputs, _ = problem(300)
    plant, kinds = ORDER[name]
    with (
        mock.patch.dict(made._kernels, {kernel: planted(text, plant)}),  # pyright: ignore[reportPrivateUsage]
        pytest.raises(Fault, match=kinds),
    ):
        made.run(inputs)


def traced(form: str, columns: int) -> str:
    q = torch.randn(12, 2, columns).half().requires_grad_()
    cu, options = offsets([9, 3]), {} if form == "full" else CAUSAL
    with mock.patch.object(programs.Program, "sizes", autospec=True, side_effect=programs.Program.sizes) as ran:
        attention_varlen(q, q, q, cu, cu.clone(), **options)
    return ran.call_args.args[0].text


def packed_inputs() -> tuple[list[Tensor], tuple[Tensor, ...]]:
    """What the backward pass of packed causal attention takes, two sequences of 140 and 130 positions, and the gradients in float64."""
    lengths, case = ((140, 130), (140, 130)), case_of("causal")
    draw = torch.Generator().manual_seed(5)
    q, do = (torch.randn(1, 2, 270, 64, generator=draw).half() for _ in range(2))
    k, v = (torch.randn(1, 1, 270, 64, generator=draw).half() for _ in range(2))
    cu = offsets(lengths[0])
    inputs: list[Any] = [q, k, v, cu[:-1], cu.diff(), cu[:-1], cu.diff()]
    made = driver.compile_derivative(traced("causal", 64), DEVICE, "fwd", ["q", "k", "v"]).run(inputs)
    wide = [x[0].transpose(0, 1).double().requires_grad_() for x in (q, k, v)]
    wanted, _ = case.reference(wide[0], wide[1], wide[2], lengths)
    grads = torch.autograd.grad(wanted, wide, do[0].transpose(0, 1).double())
    return [*inputs, *made, do], tuple(each.transpose(0, 1)[None] for each in grads)


def of_other_rows(ops: Ops) -> None:
    """Numbers of rows are those of the first sequence for all."""
    for op in ops["copy_rows_lanes_async"]:
        begin = op.operands[3].owner.operation.operands[0].owner.operation  # type: ignore[union-attr]
        op.operands[3].owner.operation.operands[0] = begin.operands[1]  # type: ignore[union-attr]


def of_no_sequence(ops: Ops) -> None:
    """Tiles are those of the entry where the sequence begins."""
    for op in ops["copy_lanes_async"]:
        op.operands[1] = op.operands[1].owner.operation.operands[0]  # type: ignore[union-attr]


def first_alone(ops: Ops) -> None:
    """Sums over keys are added to the rows that the whole tensor ends with."""
    for op in ops["atomic_add"]:
        op.operands[2] = ops["atomic_add"][0].operands[5]


PACKED = {
    "numbers of rows of another sequence": of_other_rows,
    "tiles of another sequence": of_no_sequence,
    "sums added to another sequence": first_alone,
}


@pytest.mark.parametrize("name", PACKED)
def test_faults_of_packed_sequences_are_found(name: str) -> None:
    made = driver.compile_derivative(traced("causal", 64), DEVICE, "bwd", ["q", "k", "v"])
    assert isinstance(made, EmulatedLaunchPlan)
    inputs, wanted = packed_inputs()
    for got, exact in zip(made.run(inputs), wanted, strict=True):
        close(got, exact)
    _, kernel, text = of_pairs(made)
    with mock.patch.dict(made._kernels, {kernel: planted(text, PACKED[name])}):  # pyright: ignore[reportPrivateUsage]
        try:
            found = made.run(inputs)
        except Fault:
            return
    assert not all(float((a.double() - b).norm()) <= 2e-3 * float(b.norm()) for a, b in zip(found, wanted, strict=True))


def test_machine_code_in_a_fixed_order() -> None:
    """Without spills at 128 columns; counters are read and written as sm_80 can."""
    made = program(pipeline.OTHERS, 128, deterministic=1)
    code = code_of(made)
    binary = compiled(code)
    assert binary.spills == 0 and "attn::semaphore_release(" in code.source and "atomicInc(" in code.source
    assert "elect_one() {" not in code.source.partition('extern "C"')[2]


@pytest.mark.parametrize(("function", "form", "columns", "names"), [
    ("fwd", "causal", 64, ["attention_fwd"]), ("bwd", "full", 64, ["attention_bwd_2_pairs"]),
])  # fmt: skip
def test_gpus_take_packed_kernels(function: str, form: str, columns: int, names: list[str]) -> None:
    """Made by the dialect where nobody asks for it, in the blocks that passes form; with an order, too."""
    text = traced(form, columns)
    with mock.patch.object(nvidia, "_for_device", return_value={"arch": "sm_80"}):
        for ordered in (False, True):
            made = driver.compile_derivative(text, "cuda", function, ["q", "k", "v"], ordered)
            units = {unit.code.name: unit for unit in made.units.values()}  # type: ignore[attr-defined]
            assert all(units[name].schedule["emitter"] == "warp" for name in names)
            assert all("slow" not in unit.schedule for unit in units.values())
            pairs = [unit for unit in units.values() if unit.kernel.grid == "pairs"]
            assert [unit.schedule.get("semaphore_parts") for unit in pairs] == [2 if ordered else None] * len(pairs)


def test_windows_of_packed_sequences_have_no_order() -> None:
    """Queries of later keys may begin nowhere: the reason is told, and so is who else does not add them in order."""
    q = torch.randn(12, 2, 64).half().requires_grad_()
    cu = offsets([9, 3])
    o = attention_varlen(q, q, q, cu, cu.clone(), mask_mod=masks.sliding_window(20, 0), device=DEVICE, deterministic=True)
    with pytest.raises(Exception, match="begin and end later for later keys"):
        o.float().sum().backward()
