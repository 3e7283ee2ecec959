"""Gives copies to a warp of their own: a producer beside the consumers."""

import itertools
from collections.abc import Callable
from dataclasses import dataclass

from attn_mlir.backends.nvidia import thresholds
from attn_mlir.backends.nvidia.forming import rings
from attn_mlir.backends.nvidia.forming.facts import chosen, launch_registers
from attn_mlir.backends.nvidia.forming.refusal import Refused, change_kernels
from attn_mlir.backends.nvidia.forming.slicing import Slice
from attn_mlir.dialects.numbers import i64, number
from attn_mlir.dialects.warp.barriers import FIRST_WARP, IN_TURN
from attn_mlir.mlir import ir
from attn_mlir.passes.base import Pass
from attn_mlir.passes.regions import clone_op, find_all, maker, walk

PURE = (
    *("warp.map", "warp.reduce", "warp.drop", "warp.view", "warp.stage", "warp.vote", "warp.concat", "warp.columns", "warp.yield"),
    *("warp.block_id", "warp.block_count", "warp.find_pages"),
)

_PAGES = "warp.copy_pages_async"
_OF_WARPS = ("warp.transpose", "warp.make_rows", _PAGES)
"""What the four warps of a warpgroup share."""


@dataclass(frozen=True)
class SpecializeWarps(Pass):
    """Splits the only role of a kernel: a producer, one warp, runs what its first warpgroup alone did, copies; consumers run the rest.
    Where it transposes tiles or adds up numbers of rows, too, or copies rows that lie in pages, the producer has four warps. The thread
    or warp that copies a tile waits for its stage alone then: nobody waits for warps that do not fill it, which would fall behind, and
    miss a phase, where a tile has no keys. So does the warp that copies a window, or makes a stage's numbers, which takes stages in turn.

    Both keep the loops and conditions that their ops stand in, and compute the numbers that they need; what a loop carries for the other
    role alone goes. Copies then run ahead of their use as far as free stages let them. `producer_registers` and `consumer_registers`, or
    what `warp.schedule` has under these names, are what threads get then; without either, producers get 24, more where they transpose tiles
    or copy windows, and consumers what is left.

    A kernel stays as it is, with the reason in `warp.refused`, where it has several roles, or nothing is copied by one warpgroup alone.
    """

    name = "warp-specialize"
    producer_registers: int = 0
    consumer_registers: int = 0

    def run(self, module: ir.Operation) -> bool:
        change_kernels(module, self.name, self._split)
        return True

    def _split(self, kernel: ir.Operation) -> None:
        roles = find_all(kernel, "warp.role")
        if len(roles) != 1:
            raise Refused(f"splits the only role of a kernel, there are {len(roles)}")
        role, block = roles[0], roles[0].regions[0].blocks[0]
        issues = [op for op in find_all(role, "scf.if") if is_alone(op, block.arguments[0], *rings.COPIES)]
        if not issues:
            raise Refused("nothing is copied by one warpgroup alone")
        inside = {op for issue in issues for op in walk(issue)}
        launch, producer, consumer = self._registers(kernel, role)
        kernel.attributes["registers"] = i64(launch)
        with role.location, ir.InsertionPoint(role):
            warps = rings.WARPS if any(op.name in _OF_WARPS for op in inside) else 1
            _make(
                "producer",
                {"warpgroups": 1, "warps": warps, "registers": producer},
                role,
                Slice(block, inside),
                _unwrapped(issues, warps),
            )
            others = [op for op in walk(role) if op.name.startswith(("warp.", "memref.store")) and op.name not in PURE and op not in inside]
            numbers = {"warpgroups": number(role, "warpgroups"), "warps": 4, "registers": consumer}
            _make("consumer", numbers, role, Slice(block, others), _dropped(issues))
        role.erase()

    def _registers(self, kernel: ir.Operation, role: ir.Operation) -> tuple[int, int, int]:
        """Those of a thread at launch, of the producer, and of the consumers."""
        count = number(role, "warpgroups")
        launch = launch_registers(number(kernel, "register_file"), count + 1)
        usual = thresholds.TRANSPOSING_REGISTERS if find_all(role, *_OF_WARPS) else thresholds.COUNTING_REGISTERS
        if find_all(role, "warp.copy_window_async"):
            usual = thresholds.WINDOW_REGISTERS[1]
        if find_all(role, _PAGES):
            usual = thresholds.PAGED_REGISTERS[count]
        producer = chosen(kernel, "producer_registers", self.producer_registers, usual)
        left = (launch * (count + 1) - producer) // count // 8 * 8
        consumer = chosen(kernel, "consumer_registers", self.consumer_registers, min(240, left))
        if consumer > left:
            raise Refused(f"consumers cannot have {consumer} registers: {left} are left for each thread beside {producer} of the producer")
        return launch, producer, consumer


def is_alone(op: ir.Operation, warpgroup: ir.Value, *names: str) -> bool:
    """Whether one warpgroup alone does what is in a condition, and that has an op of such names."""
    compared = maker(op.operands[0], "arith.cmpi")
    alone = compared is not None and warpgroup in list(compared.operands) and ir.IntegerAttr(compared.attributes["predicate"]).value == 0
    return alone and not list(op.results) and bool(find_all(op, *names))


Special = Callable[[ir.Operation, dict[ir.Value, ir.Value]], bool]


def _unwrapped(issues: list[ir.Operation], warps: int) -> Special:
    """The producer has one warpgroup, of so many warps: it does what stood in a condition on which one it is."""
    paged = any(find_all(issue, _PAGES) for issue in issues)

    def special(op: ir.Operation, known: dict[ir.Value, ir.Value]) -> bool:
        if op not in issues:
            return False
        made = [clone_op(view.operation, known) for view in list(op.regions[0].blocks[0].operations)[:-1]]
        if warps > 1:
            _wait_alone(made, paged)
        return True

    return special


def _wait_alone(ops: list[ir.Operation], paged: bool) -> None:
    """Lets the thread that an op elects, its warp, or the one whose turn it is wait for what all waited for right before it.

    Of its warp, but for pages: in kernels of 8 bits consumers spilled where the thread waited.
    """
    for wait, op in itertools.pairwise(ops):
        if wait.name == "warp.wait" and op.name == "warp.elect":
            if paged:
                wait.move_before(op.regions[0].blocks[0].operations[0])
            else:
                wait.attributes[FIRST_WARP] = ir.UnitAttr.get()
        elif wait.name == "warp.wait" and op.name == "warp.make_rows":
            wait.attributes[IN_TURN] = ir.UnitAttr.get()


def _dropped(issues: list[ir.Operation]) -> Special:
    return lambda op, known: op in issues


def _make(name: str, numbers: dict[str, int], role: ir.Operation, part: Slice, special: Special) -> None:
    attributes = {"sym_name": ir.StringAttr.get(name), **{key: i64(value) for key, value in numbers.items()}}
    made = ir.Operation.create("warp.role", attributes=attributes, regions=1, loc=role.location)
    argument = role.regions[0].blocks[0].arguments[0]
    block = made.regions[0].blocks.append(argument.type, arg_locs=[argument.location])
    with ir.InsertionPoint(block):
        part.clone({argument: block.arguments[0]}, special)
