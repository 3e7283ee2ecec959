"""Backward passes for sm_80 as kernels of the `warp` dialect: gradients in the evaluator against float64, faults found, machine code."""

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
import torch

import attn_mlir
from attn_mlir import UnsupportedError, rows
from attn_mlir.backends.gpu.kernel import KernelCode
from attn_mlir.backends.nvidia import driver as nvidia
from attn_mlir.backends.nvidia import pipeline
from attn_mlir.backends.nvidia.emulation import driver, kernel
from attn_mlir.backends.nvidia.emulation.program import EmulatedLaunchPlan
from attn_mlir.backends.nvidia.warp import AMPERE_RULES, kernel_code
from attn_mlir.backends.program import prepare_derivative
from attn_mlir.dialects.regions import walk
from attn_mlir.frontend.emit import Inputs
from attn_mlir.mlir import ir
from attn_mlir.reference.warp import Fault, check_registers, schedules_of
from machine_code import compiled, disassembled
from test_warp_backward import CAUSAL, Ops, Sizes, drop, gradients, number, of_pairs, pairs_of, planted, problem, some
from warp_text import check_text

DEVICE = "cuda-emulated-sm80"
_TIDY = "canonicalize,cse"
_AHEAD = f"warp-assign-layouts,{_TIDY},warp-stage-rows,warp-prefetch-loads"
STAGES = {
    "layouts": (f"warp-assign-layouts,{_TIDY}", "all 1 first, copies late"),
    "rows": (f"warp-assign-layouts,{_TIDY},warp-stage-rows,{_TIDY}", "all 0 first, copies late"),
    "ahead": (f"warp-assign-layouts,{_TIDY},warp-prefetch-loads,{_TIDY}", "all 1 first, copies at once"),
    "rows ahead": (f"{_AHEAD},{_TIDY}", "all 0 first, copies at once"),
    "far ahead": (f"{_AHEAD}{{stages=3}},{_TIDY}", "all 1 first, copies late"),
    "together": (f"{_AHEAD}{{together=true}},{_TIDY}", "all 1 first, copies late"),
    "joined": (f"warp-assign-layouts,{_TIDY},warp-join-loops{{join=true}},{_TIDY},warp-stage-rows,warp-prefetch-loads", "random 0"),
}
"""Pipelines behind `tile-schedule` and an adverse order of warpgroups."""


def with_terms(b: Any, h: Any, i: Any, j: Any) -> Any:
    """A mask of keys that a tensor names."""
    return _SEEN[j]


_SEEN = torch.arange(100) % 3 > 0


def of_slopes(s: Any, b: Any, h: Any, i: Any, j: Any) -> Any:
    """ALiBi with slopes that are captured."""
    return s + _SLOPES[h] * (j - i)


_SLOPES = torch.tensor([0.5, 0.1])


@pytest.mark.parametrize(("sizes", "options"), [
    ((2, 1, 130, 130, 64), CAUSAL),
    ((1, 1, 17, 1, 64), CAUSAL),
    ((1, 1, 1, 40, 64), {}),
    ((1, 1, 70, 70, 64), {**CAUSAL, "row": rows.sigmoid}),
    ((1, 1, 150, 90, 128), {}),
    ((2, 1, 140, 140, 128), CAUSAL),
    ((1, 1, 70, 70, 64), {"mask_mod": some}),
    ((1, 1, 90, 100, 64), {"mask_mod": with_terms}),
    ((2, 2, 80, 80, 64), {**CAUSAL, "score_mod": of_slopes}),
    ((1, 1, 70, 70, 64), {**CAUSAL, "dropout_p": 0.3, "dropout_seed": (5, 3)}),
], ids=["causal", "one key", "one query", "sigmoid", "wide", "wide causal", "fully masked", "captured", "slopes", "dropout"])  # fmt: skip
def test_gradients(sizes: Sizes, options: dict[str, Any]) -> None:
    got = gradients(sizes, DEVICE, torch.float16, options)
    for mine, wanted in zip(got, gradients(sizes, "cpu", torch.float64, options), strict=True):
        assert mine.dtype == torch.float16
        assert float((mine.double() - wanted).norm()) <= 2e-3 * float(wanted.norm()) + 1e-3
    if options.get("mask_mod") is some:
        assert (got[0][:, :, :20] == 0).all() and all((each[:, :, 60:] == 0).all() for each in got[1:])


def test_bf16() -> None:
    sizes = (1, 1, 100, 130, 64)
    for mine, wanted in zip(gradients(sizes, DEVICE, torch.bfloat16, {}), gradients(sizes, "cpu", torch.float64, {}), strict=True):
        assert mine.dtype == torch.bfloat16 and float((mine.double() - wanted).norm()) <= 2e-2 * float(wanted.norm())


def program(passes: str, columns: int = 64, element: str = "f16", **choices: int) -> EmulatedLaunchPlan:
    """The backward pass of causal attention, whose kernel over pairs these passes form."""
    call = attn_mlir.Attention(**CAUSAL)
    call.__dict__.update(_last=Inputs(element, columns, columns), _form=None)
    prepared = prepare_derivative("bwd", ("q", "k", "v"), pipeline.outline("sm_80"))
    with mock.patch.object(pipeline, "OTHERS", passes):
        return driver._compile(call.ir(), *prepared, {"arch": "sm_80", "emitter": "warp", **choices})  # pyright: ignore[reportPrivateUsage]


@pytest.mark.parametrize("stage", STAGES)
def test_behind_each_pass(stage: str) -> None:
    """Two warpgroups, which share the queries of dq; more orders behind all passes."""
    passes, name = STAGES[stage]
    made = program(passes, block_q=128, block_kv=128)
    known, (inputs, wanted) = schedules_of(pairs_of(made)), problem(140)
    for each in [name, *(["all 0 first, copies late"] if stage == "rows ahead" else [])]:
        with mock.patch.object(kernel, "drawn", return_value=known[each]()):
            got = made.run(inputs)
        for mine, theirs in zip(got, wanted, strict=True):
            assert float((mine.double() - theirs).norm()) <= 2e-3 * float(theirs.norm())


Whole = tuple[EmulatedLaunchPlan, str, str]


@pytest.fixture(scope="module")
def whole() -> Whole:
    """The backward pass of all passes, by two warpgroups."""
    return of_pairs(program(pipeline.OTHERS, block_q=128, block_kv=128, together=0))


def swap(name: str, first: int, second: int, position: int) -> Callable[[Ops], None]:
    """Gives an op the operand of another one of its name."""

    def change(ops: Ops) -> None:
        ops[name][first].operands[position] = ops[name][second].operands[position]

    return change


def rows_as_heads(ops: Ops) -> None:
    """dq is added to other rows."""
    add = ops["atomic_add"][0]
    add.operands[4] = add.operands[3]


def other_rows(ops: Ops) -> None:
    """Weights are written to the rows of the first warpgroup."""
    view = ops["write"][0].operands[1].owner.operation  # type: ignore[union-attr]
    view.operands[2] = view.operands[3]


def one_stage(ops: Ops) -> None:
    """Numbers of rows are copied to the stage that is read."""
    for op in ops["copy_rows_lanes_async"]:
        zero = next(v for v in ops["view"][0].operands if str(v.type) == "index")
        op.operands[5] = zero


def no_numbers_ahead(ops: Ops) -> None:
    """Numbers come with the first queries of a loop alone."""
    for op in ops["copy_rows_lanes_async"]:
        if op.parent is not None and op.parent.operation.parent is not None and op.parent.operation.parent.operation.name == "scf.for":
            op.erase()


def meetings_of_weights(ops: Ops) -> None:
    """Nobody waits until all have written weights."""
    for write in ops["write"]:
        later = [view.operation for view in write.block.operations]
        next(op for op in later[later.index(write) :] if op.name == "warp.named_sync").erase()


FAULTS: list[tuple[str, Callable[[Ops], None]]] = [
    ("weights multiplied before all are written", meetings_of_weights),
    ("weights in the rows of another warpgroup", other_rows),
    ("numbers of rows in the stage that is read", one_stage),
    ("a wait that leaves the queries in flight", number("copy_wait", 2, "pending", 2)),
    ("a wait that leaves the gradients in flight", number("copy_wait", 3, "pending", 2)),
    ("queries read before all have copied", drop("named_sync", 4)),
    ("gradients read before all have copied", drop("named_sync", 5)),
    ("dq added to other rows", rows_as_heads),
    ("numbers that are not copied ahead", no_numbers_ahead),
]  # fmt: skip


@pytest.mark.parametrize("plant", [plant for _, plant in FAULTS], ids=[name for name, _ in FAULTS])
def test_faults_are_found(whole: Whole, plant: Callable[[Ops], None]) -> None:
    made, name, text = whole
    inputs, wanted = problem(300)
    with mock.patch.dict(made._kernels, {name: planted(text, plant)}):  # pyright: ignore[reportPrivateUsage]
        try:
            got = made.run(inputs)
        except Fault:
            return
    assert not all(float((a.double() - b).norm()) <= 2e-3 * float(b.norm()) for a, b in zip(got, wanted, strict=True))


def code_of(made: EmulatedLaunchPlan) -> KernelCode:
    """The kernel over pairs as CUDA, whose registers suffice, and whose text is what rules for sm_80 print."""
    found = pairs_of(made)
    with found.context:
        check_registers(found)
        check_text(found, AMPERE_RULES)
        return kernel_code(found, AMPERE_RULES)


@pytest.mark.parametrize(("columns", "element"), [(64, "f16"), (128, "bf16")])
def test_machine_code(columns: int, element: str, tmp_path: Path) -> None:
    """Without spills; products of single warps, both forms of ldmatrix, copies of 16 and of 4 bytes, additions to global memory."""
    made = program(pipeline.OTHERS, columns, element)
    code = code_of(made)
    binary = compiled(code)
    assert code.arch == "sm_80" and binary.spills == 0 and binary.stack == 0
    path = tmp_path / "kernel.fatbin"
    path.write_bytes(binary.code)
    text = disassembled(path)
    found_products = len(re.findall(rf"HMMA\.16816\.F32{'.BF16' if element == 'bf16' else ''} ", text))
    # For a warp's 16 keys: two products of all queries over the columns, two over the queries; for its 16 rows of dq, one over the keys.
    queries, of_dq = (128, 64) if columns == 64 else (64, 64)
    of_loop = 2 * (queries // 8) * (columns // 16) + 2 * (columns // 8) * (queries // 16) + (of_dq // 8) * (128 // 16)
    assert found_products == 3 * of_loop
    for wanted in ("LDSM.16.M88.4 ", "LDSM.16.MT88.4 ", "LDGSTS.E.BYPASS.LTC128B.128", "LDGSTS.E ", "RED.E.ADD.F32"):
        assert wanted in text, wanted
    assert not re.search("UTMA|HGMMA|SYNCS|STSM", text)


def test_who_asks_for_the_emitter_gets_kernels_to_launch() -> None:
    call = attn_mlir.Attention(**CAUSAL)
    call.__dict__.update(_last=Inputs("f16", 64, 64), _form=None)
    prepared = prepare_derivative("bwd", ("q", "k", "v"), pipeline.outline("sm_80"))
    _, units = nvidia._lower(call.ir(), *prepared, {"arch": "sm_80", "emitter": "warp"})  # pyright: ignore[reportPrivateUsage]
    (code,) = (unit.code for name, unit in units.items() if "pairs" in name)
    assert (code.arch, code.grid, code.threads) == ("sm_80", "tiles", 256)


def test_op_without_rule_is_named() -> None:
    """A kernel of Hopper has no printer for sm_80."""
    made = program(pipeline.OTHERS)
    found = pairs_of(made)
    with found.context:
        write = next(op for op in walk(found) if op.name == "warp.write")
        write.operands[0].set_type(ir.Type.parse(str(write.operands[0].type).replace("mma16", "wgmma")))
        with pytest.raises(UnsupportedError, match=r"writes fragments of mma\.sync in 16 bits"):
            kernel_code(found, AMPERE_RULES)
