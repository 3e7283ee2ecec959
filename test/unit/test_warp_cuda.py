"""The printer of scheduled kernels: its text says what the IR does, nvcc makes code without spills of it, faults of rules are found."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from attn_mlir.backends.nvidia.warp import RULES, fragments, kernel_code
from attn_mlir.backends.nvidia.warp import printer as printing
from attn_mlir.backends.nvidia.warp.printer import Rule, WarpPrinter
from attn_mlir.errors import UnsupportedError
from attn_mlir.mlir import ir
from attn_mlir.passes.regions import find_all
from attn_mlir.reference.warp import kernels_of
from contexts import loaded_context
from machine_code import compiled
from warp_text import check_text, executed

TEXT = (Path(__file__).parents[1] / "Inputs" / "warp" / "causal-forward.mlir").read_text()


@pytest.fixture(scope="module")
def kernel() -> ir.Operation:
    context = loaded_context()
    with context:
        module = ir.Module.parse(TEXT)
        kernels = kernels_of(module)
    assert len(kernels) == 1
    KEPT.append(module)
    return kernels[0]


KEPT: list[ir.Module] = []
"""A module lives as long as the handles of its ops are used."""


def test_machine_code_has_no_spills_and_fits_the_roles(kernel: ir.Operation) -> None:
    """ptxas takes what the launch gives; the roles' own budgets are met by `setmaxnreg`, or code would spill."""
    binary = compiled(kernel_code(kernel, RULES))
    assert binary.spills == 0 and binary.stack == 0
    assert binary.registers <= ir.IntegerAttr(kernel.attributes["registers"]).value
    given = [ir.IntegerAttr(role.attributes["registers"]).value for role in find_all(kernel, "warp.role")]
    assert binary.registers <= max(given)


def test_text_says_what_the_kernel_does(kernel: ir.Operation) -> None:
    check_text(kernel)


@pytest.mark.parametrize(
    "turn",
    [[1, 0], [1, 2, 0], [0, 0, 1], [1, 1, 2], [2, 1, 0], [1, 0, 3, 2], [3, 0, 1, 1], [1, 2, 3, 3]],
    ids=lambda turn: "".join(map(str, turn)),
)
@pytest.mark.parametrize("kind", ["index", "f32"])
def test_loops_hand_on_all_numbers_at_once(kernel: ir.Operation, turn: list[int], kind: str) -> None:
    """Each number of an iteration is one of the iteration before, in any order, rings of them included."""
    names = [f"%c{n}" for n in range(len(turn))]
    text = f"""
    func.func @f(%zero: index, %one: index, {", ".join(f"%s{n}: {kind}" for n in range(len(turn)))}) {{
      %r:{len(turn)} = scf.for %i = %zero to %one step %one iter_args({", ".join(f"{c} = %s{n}" for n, c in enumerate(names))})
          -> ({", ".join([kind] * len(turn))}) {{
        scf.yield {", ".join(names[n] for n in turn)} : {", ".join([kind] * len(turn))}
      }}
      return
    }}"""
    with kernel.context:
        module = ir.Module.parse(text)
        (found,) = find_all(module.operation, "scf.for")
        printer = WarpPrinter(kernel, RULES)
        printer.printed.update({value: f"v{n}" for n, value in enumerate(found.regions[0].blocks[0].arguments)})
        values = list(find_all(found, "scf.yield")[0].operands)
        targets = [f"v{n}" for n in range(1, len(turn) + 1)]
        begin = len(printer.writer.lines)
        printer.assign_all(targets, values)
    assert executed(printer.writer.lines[begin:], targets) == [f"v{n + 1}" for n in turn]


def test_kernels_that_differ_in_one_op_differ_in_its_lines() -> None:
    context = loaded_context()
    with context:
        texts = [ir.Module.parse(t) for t in (TEXT, TEXT.replace("{pending = 1 : i64}", "{pending = 0 : i64}"))]
        one, two = (kernel_code(kernels_of(module)[0], RULES).source.splitlines() for module in texts)
    assert len(one) == len(two)
    assert [(a.strip(), b.strip()) for a, b in zip(one, two, strict=True) if a != b] == [
        ("attn::wgmma_wait<1>();", "attn::wgmma_wait<0>();")
    ]


def test_op_without_a_rule_is_named(kernel: ir.Operation) -> None:
    rules = {name: rule for name, rule in RULES.items() if name != "warp.vote"}
    with pytest.raises(UnsupportedError, match=r"has no rule for 'warp\.vote'"):
        kernel_code(kernel, rules)


@dataclass(frozen=True)
class Planted:
    """A fault of the printer: another rule for an op, or another function of a module."""

    name: str
    op: str = ""
    rule: Callable[[Rule], Rule] | None = None
    patch: tuple[Any, str, Callable[[Any], Any]] | None = None


def _silent(rule: Rule) -> Rule:
    return lambda printer, op, *operands: None


def _twice(rule: Rule) -> Rule:
    def again(printer: WarpPrinter, op: ir.Operation, *operands: Any) -> None:
        rule(printer, op, *operands)
        rule(printer, op, *operands)

    return again


def _says(text: str) -> Callable[[Rule], Rule]:
    return lambda rule: lambda printer, op, *operands: printer.line(text)


def _wrong_place(place: Callable[..., str]) -> Callable[..., str]:
    return lambda tile, register, axis, lane="lane": place(tile, register, axis, lane).replace("* 16", "* 8")


def _along(along: Callable[..., str]) -> Callable[..., str]:
    """Digits in the other order."""
    return lambda index, digits, axis: along(index, tuple(digits)[::-1], axis)


def _no_alignment(shared: Callable[..., str]) -> Callable[..., str]:
    return lambda printer, size, alignment: shared(printer, size + 8, 8)


def _half(shared: Callable[..., str]) -> Callable[..., str]:
    return lambda printer, size, alignment: shared(printer, size // 2, alignment)


def _pending(rule: Rule) -> Rule:
    def more(printer: WarpPrinter, op: ir.Operation, product: str) -> None:
        printer.line("attn::wgmma_wait<3>();")
        printer.printed[op.results[0]] = product

    return more


def _arrival(rule: Rule) -> Rule:
    return lambda printer, op, barrier, stage, phase: RULES["warp.arrive"](printer, op, barrier, stage)


FAULTS = [
    *[Planted(f"{op} is not printed", f"warp.{op}", _silent) for op in
      ("wait", "arrive", "arrive_expect", "named_sync", "named_arrive", "fence_async", "mma_begin", "mma_commit", "store_commit",
       "store_wait")],
    Planted("products are committed twice", "warp.mma_commit", _twice),
    Planted("a wait that leaves products in flight", "warp.mma_wait", _pending),
    Planted("named barriers of too few threads", "warp.named_sync", _says("attn::named_sync(1, 128);")),
    Planted("bytes of another tile", "warp.arrive_expect", _says("attn::barrier_arrive_expect(0, 1);")),
    Planted("an arrival in place of a wait", "warp.wait", _arrival),
    Planted("rows of the next warp too near", patch=(fragments, "place", _wrong_place)),
    Planted("digits in the wrong order", patch=(fragments, "along", _along)),
    Planted("tiles that are not aligned", patch=(printing.WarpPrinter, "shared", _no_alignment)),
    Planted("tiles that overlap", patch=(printing.WarpPrinter, "shared", _half)),
]  # fmt: skip


@pytest.mark.parametrize("planted", FAULTS, ids=lambda planted: planted.name)
def test_planted_fault_of_the_printer_is_found(planted: Planted, kernel: ir.Operation, monkeypatch: pytest.MonkeyPatch) -> None:
    rules = dict(RULES)
    if planted.rule is not None:
        rules[planted.op] = planted.rule(RULES[planted.op])
    if planted.patch is not None:
        owner, name, change = planted.patch
        monkeypatch.setattr(owner, name, change(getattr(owner, name)))
    with pytest.raises((AssertionError, UnsupportedError)):
        check_text(kernel, rules)
