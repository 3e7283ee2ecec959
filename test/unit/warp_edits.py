"""Finds ops of a scheduled kernel and changes them: how faults are planted."""

from collections.abc import Callable
from typing import Any

from attn_mlir.dialects.regions import walk
from attn_mlir.mlir import ir

BARRIERS = ("q_full", "q_free", "k_full", "k_free", "v_full", "v_free")
BUFFERS = ("q", "k", "v", "messages")


class Edit:
    """The kernel of test/Inputs/warp/causal-forward.mlir, whose ops are found in the order in which they are printed."""

    def __init__(self, kernel: ir.Operation) -> None:
        self.all = list(walk(kernel))
        self.barriers: dict[str, ir.Value] = dict(
            zip(BARRIERS, (op.results[0] for op in self.all if op.name == "warp.mbarrier"), strict=True)
        )
        self.buffers: dict[str, ir.Value] = dict(zip(BUFFERS, (op.results[0] for op in self.all if op.name == "warp.alloc"), strict=True))

    def find(self, name: str, number: int = 0, of: str = "", role: str = "") -> ir.Operation:
        """Op number so and so of a name; `of` (a barrier) and `role` narrow it."""
        found = [op for op in self.all if op.name == f"warp.{name}" or op.name == name]
        found = [op for op in found if (not of or self.barriers[of] in list(op.operands)) and (not role or _role(op) == role)]
        return found[number]

    def drop(self, name: str, number: int = 0, of: str = "", role: str = "") -> None:
        """Takes an op without results away."""
        self.find(name, number, of, role).erase()

    def set(self, name: str, key: str, value: int, number: int = 0, of: str = "", role: str = "") -> None:
        """Changes a number of an op."""
        self.find(name, number, of, role).attributes[key] = ir.IntegerAttr.get(ir.IntegerType.get_signless(64), value)

    def replace(self, op: ir.Operation, number: int, value: ir.Value) -> None:
        """Gives an op another operand."""
        op.operands[number] = value

    def constant(self, value: int, at: ir.Operation) -> ir.Value:
        """An index before an op."""
        index = ir.IndexType.get()
        with ir.InsertionPoint(at), at.location:
            return ir.Operation.create("arith.constant", results=[index], attributes={"value": ir.IntegerAttr.get(index, value)}).result

    def binary(self, name: str, a: ir.Value, b: int, at: ir.Operation) -> ir.Value:
        """Arithmetic with a number, before an op."""
        with ir.InsertionPoint(at), at.location:
            return ir.Operation.create(f"arith.{name}", results=[a.type], operands=[a, self.constant(b, at)]).result

    def flip(self, wait: ir.Operation) -> None:
        """The other phase."""
        wait.operands[2] = self.binary("xori", wait.operands[2], 1, wait)

    def retype(self, value: ir.Value, text: str) -> None:
        """Gives a value another type."""
        value.set_type(ir.Type.parse(text))


def _role(op: ir.Operation) -> str:
    while op.name not in ("warp.role", "warp.kernel"):
        assert op.parent is not None
        op = op.parent.operation
    return ir.StringAttr(op.attributes["sym_name"]).value


def arrivals(name: str, count: int) -> Callable[[Edit], None]:
    """Lets a barrier await so many arrivals."""

    def edit(e: Edit) -> None:
        e.retype(e.barriers[name], f"!warp.barrier<{e.barriers[name].type.stages}, {count} : i64>")

    return edit


def two_stages_of(buffer: str) -> Callable[[Edit], Any]:
    """Lets a ring use two of the three stages that its barriers have."""

    def edit(e: Edit) -> None:
        for view in [op for op in e.all if op.name == "warp.view" and op.operands[0] == e.buffers[buffer]]:
            stage = view.operands[1].owner
            view.operands[1] = e.binary("remui", stage.operands[0], 2, view)

    return edit


def read_in_flight(e: Edit) -> None:
    """Uses scores without a wait."""
    wait = e.find("mma_wait", 1)
    wait.results[0].replace_all_uses_with(wait.operands[0])


def elected(e: Edit) -> None:
    """One thread gives a stage back for all warps."""
    arrive = e.find("arrive", 1, "k_free")
    with ir.InsertionPoint(arrive), arrive.location:
        block = ir.Operation.create("warp.elect", regions=1).regions[0].blocks.append()
    with ir.InsertionPoint(block), arrive.location:
        ir.Operation.create("warp.arrive", operands=list(arrive.operands))
    arrive.erase()


def two_barriers(e: Edit) -> None:
    """A copy of keys counts at the barrier of values."""
    e.replace(e.find("copy_async", 1), 6, e.barriers["v_full"])


def late_message(e: Edit) -> None:
    """A message is read when its stage has been given back."""
    e.find("memref.load", 1).move_after(e.find("arrive", 0, "k_free"))


def few_messages(e: Edit) -> None:
    """Messages have a stage less than keys."""
    e.retype(e.buffers["messages"], "memref<2x2xi32, #warp.shared<0 : i64>>")


def first_rows(e: Edit) -> None:
    """Row values of each tile go to the first rows."""
    e.replace(e.find("store"), 4, e.constant(0, e.find("store")))


def no_free_keys(e: Edit) -> None:
    """Keys are loaded without a wait for a free stage."""
    e.drop("wait", 0, "k_free", "producer")
