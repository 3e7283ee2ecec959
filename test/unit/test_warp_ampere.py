"""Kernels of the `warp` dialect for sm_80: right in adversarial orders, faults found, machine code of mma.sync, ldmatrix and cp.async."""

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from attn_mlir import Attention, masks
from attn_mlir.backends.nvidia import driver
from attn_mlir.backends.nvidia.warp import AMPERE_RULES, WarpPrinter, kernel_code, rules_for
from attn_mlir.backends.program import OUTLINE
from attn_mlir.errors import UnsupportedError
from attn_mlir.frontend.emit import Inputs
from attn_mlir.mlir import ir
from attn_mlir.reference import Sizes
from attn_mlir.reference.warp import Costs, kernels_of, run_timed
from machine_code import compiled, disassembled
from warp_forming import Program, check, formed, missed, problem
from warp_text import check_text

_LAYOUTS = "warp-assign-layouts{arch=sm_80},canonicalize,cse"
_JOINED = f"{_LAYOUTS},warp-order-tiles,warp-join-loops,canonicalize,cse"
PASSES = {
    "layouts": _LAYOUTS,
    "two loops ahead": f"{_LAYOUTS},warp-prefetch-loads{{stages=2}},canonicalize,cse",
    "ahead": f"{_JOINED},warp-prefetch-loads{{stages=2}},canonicalize,cse",
    "far ahead": f"{_JOINED},warp-prefetch-loads{{stages=3}},canonicalize,cse",
}
NARROW, WIDE, PAIR = Program("causal-softmax", 64, 32), Program("causal-softmax", 128, 32), Program("causal-softmax", 256, 64)
"""4 warps of 16 rows, 4 of 32, 8 of 32."""
ORDERS = ("all 0 first, copies late", "all 0 first, copies at once", "random 0")


@pytest.mark.parametrize("stage", PASSES)
def test_masks_odd_lengths_and_groups_behind_each_pass(stage: str) -> None:
    sizes = (
        Sizes(1, 1, 1, 17, 17),
        Sizes(2, 2, 1, 70, 40),
        *([Sizes(1, 1, 1, 1, 1), Sizes(1, 1, 1, 127, 127)] if stage == "ahead" else []),
    )
    for name in ("causal-softmax", "plain-softmax", "sliding-window"):
        for each in sizes:
            check(Program(name, 64, 32), PASSES[stage], each, ORDERS[:2], blocks=3)


@pytest.mark.parametrize("program", [WIDE, PAIR, Program("causal-softmax", 128, 64, "bf16")], ids=str)
def test_warps_with_more_rows_and_other_elements(program: Program) -> None:
    orders = (*ORDERS, "all 1 first, copies late") if program is PAIR else ORDERS
    check(program, PASSES["ahead"], Sizes(1, 2, 2, 127, 127), orders[1:])
    check(program, PASSES["far ahead"], Sizes(1, 1, 1, 300, 200), orders[-1:])


@pytest.mark.parametrize("name", ["relu-normalised", "sigmoid-causal", "layer-norm", "softcap", "alibi-causal-softmax", "relative-bias",
                                  "sink", "empty-rows", "prefix-lm", "document"])  # fmt: skip
def test_any_row(name: str) -> None:
    check(Program(name, 64, 32), PASSES["ahead"], Sizes(1, 2, 1, 65, 70), ORDERS[:1])


@pytest.mark.parametrize("lost", ["warp.named_sync", "warp.copy_wait", "warp.copy_commit", "warp.copy_lanes_async"])
def test_lost_op_is_found(lost: str) -> None:
    """Each op of these names: a meeting of warps (__syncthreads), a wait for copies, a commit, a copy. Three tiles for one thread block.

    Harmless are those before the loop, the wait for queries and their commit: a warp copies the queries that it reads, the stages that are
    filled first were left long ago, the loop's first wait is one for what was copied before, too, and queries may come in the first group.
    """
    lines = str(formed(NARROW, PASSES["ahead"])).splitlines()
    places = [n for n, line in enumerate(lines) if f'"{lost}"(' in line]
    loop = max(n for n, line in enumerate(lines) if "scf.for" in line)
    harmless = {n for n in places if n < loop} if lost in ("warp.named_sync", "warp.copy_wait") else set()
    harmless |= {places[0]} if lost == "warp.copy_commit" else set()
    assert len(places) - len(harmless) >= 2
    for place in places:
        found = missed("\n".join(lines[:place] + lines[place + 1 :]), NARROW, Sizes(1, 1, 1, 130, 130))
        assert found != (place in harmless), f"line {place}: {lines[place].strip()}"


@pytest.mark.parametrize(("name", "old", "new"), [
    ("a wait that leaves one more group in flight", r"(scf\.for.*?pending = )1 :", r"\g<1>2 :"),
    ("copies into the stage that is read", r"(scf\.if %\d+ {\s+%\d+ = arith\.)addi( %arg\d+, %c1)", r"\1muli\2"),
    ("one stage for two", r"memref<2x32x64", "memref<1x32x64"),
    ("rows of a later block", r"(scf\.for .*scf\.for .*?arith\.addi %arg10, )%c1", r"\1%c2"),
])  # fmt: skip
def test_planted_fault_is_found(name: str, old: str, new: str) -> None:
    text = str(formed(NARROW, PASSES["ahead"]))
    changed = re.sub(old, new, text, count=0 if "stage for" in name else 1, flags=re.DOTALL)
    assert changed != text, name
    assert missed(changed, NARROW, Sizes(1, 1, 1, 130, 130)), name


@pytest.mark.parametrize("program", [Program("causal-softmax", 128, 64), Program("causal-softmax", 256, 64, "bf16")], ids=str)
def test_machine_code(program: Program, tmp_path: Path) -> None:
    """Without spills; the products of one loop over blocks of keys, ldmatrix for their factors, copies of 16 bytes."""
    (kernel,) = kernels_of(formed(program, PASSES["ahead"]))
    check_text(kernel, rules_for(kernel))
    code = kernel_code(kernel, rules_for(kernel))
    binary = compiled(code)
    assert code.arch == "sm_80" and code.threads == program.q and binary.spills == 0 and binary.stack == 0
    path = tmp_path / "kernel.fatbin"
    path.write_bytes(binary.code)
    text = disassembled(path)
    # 32 rows of a warp, 64 keys, 64 columns: 2 x 8 x 4 products for scores, as many for sums.
    assert len(re.findall(rf"HMMA\.16816\.F32{'.BF16' if program.element == 'bf16' else ''} ", text)) == 128
    assert len(re.findall(r"LDSM\.16\.M88\.4 ", text)) == 16 + 8 and len(re.findall(r"LDSM\.16\.MT88\.4 ", text)) == 16
    assert "LDGSTS.E.BYPASS.LTC128B.128" in text and "LDGDEPBAR" in text and not re.search("UTMA|HGMMA|SYNCS", text)


PLANTED = {
    "a wait for copies is not printed": ("warp.copy_wait", ""),
    "copies are not committed": ("warp.copy_commit", ""),
    "warps do not meet": ("warp.named_sync", ""),
    "a wait that leaves all in flight": ("warp.copy_wait", "attn::copy_wait<9>();"),
    "too few meet": ("warp.named_sync", "attn::named_sync(1, 64);"),
    "a product of half the depth": ("warp.mma", "attn::multiply<attn::F16, 64, 8, 2, true>();"),
}


@pytest.mark.parametrize("name", PLANTED)
def test_planted_fault_of_the_printer_is_found(name: str) -> None:
    (kernel,) = kernels_of(formed(WIDE, PASSES["ahead"]))
    op, text = PLANTED[name]

    def other(printer: WarpPrinter, op: ir.Operation, *operands: Any) -> None:
        rules_for(kernel)[op.name](printer, op, *operands) if op.results else None
        printer.line(text)

    with pytest.raises(AssertionError):
        check_text(kernel, {**rules_for(kernel), op: other})


def test_op_of_another_chip_is_named() -> None:
    (kernel,) = kernels_of(formed(NARROW, PASSES["layouts"].replace("{arch=sm_80}", "")))
    with pytest.raises(UnsupportedError, match=r"has no rule for 'warp\.mbarrier'"):
        kernel_code(kernel, AMPERE_RULES)


def test_who_asks_for_the_emitter_gets_kernels_to_launch() -> None:
    """A thread block for each tile, aligned tensors, results in the type of q."""
    call = Attention(mask_mod=masks.causal())
    call.__dict__.update(_last=Inputs("f16", 64, 64), _form=None)
    _, units = driver._lower(call.ir(), "attention", OUTLINE, {"arch": "sm_80", "emitter": "warp"})  # pyright: ignore[reportPrivateUsage]
    (unit,) = units.values()
    assert (unit.code.arch, unit.code.grid, unit.code.threads, unit.kernel.block_q) == ("sm_80", "tiles", 128, 128)
    assert [p.align for p in unit.code.parameters if p.kind == "pointer"][:3] == [8, 8, 8]
    assert unit.dtypes[0] == torch.float16


def test_timeline_shows_copies_in_flight() -> None:
    """What is copied ahead is in flight while warps multiply, and every wait is for copies that were issued before it."""
    (kernel,) = kernels_of(formed(NARROW, PASSES["ahead"]))
    inputs, wanted = problem(NARROW, Sizes(1, 1, 1, 100, 100))
    events = run_timed(kernel, [*inputs, *(np.full(each.shape, np.nan) for each in wanted)], Costs(2048, 128, 16, 40, 600))
    copies = [e for e in events if e.op == "warp.copy_lanes_async"]
    assert all(e.asynchronous and e.end >= e.begin + 600 for e in copies)
    assert any(c.begin < e.begin < c.end for c in copies for e in events if e.op == "warp.mma")
    waits = [events[e.after] for e in events if e.op == "warp.copy_wait" and e.after is not None]
    assert waits and all(e in copies for e in waits)
