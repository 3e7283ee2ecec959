"""Lets loops count the uses of rings once that are used alike."""

from collections.abc import Hashable
from dataclasses import dataclass, field

from attn_mlir.backends.nvidia.forming.facts import said
from attn_mlir.backends.nvidia.forming.refusal import Refused, change_kernels
from attn_mlir.mlir import ir
from attn_mlir.passes.base import Pass
from attn_mlir.passes.regions import find_all, walk


@dataclass(frozen=True)
class MergeCounts(Pass):
    """In each role, finds the numbers that loops carry and that are always the same, as the counts of two rings whose tiles come
    together: they begin with the same and grow alike, in all loops that hand them on. The first one stands for the others, so that stages
    and phases are computed once.

    It comes last: passes before it tell rings by their counts. It is done where `counts` in `warp.schedule` is 1,
    which no kernel has by itself. Where there are no such numbers the kernel stays as it is, with the reason in `warp.refused`.
    """

    name = "warp-merge-counts"

    def run(self, module: ir.Operation) -> bool:
        change_kernels(module, self.name, _merge)
        return True


def _merge(kernel: ir.Operation) -> None:
    if said(kernel, "counts", "0") != "1":
        raise Refused("the schedule counts the uses of each ring")
    if not [role for role in find_all(kernel, "warp.role") if _Numbers(role).merge()]:
        raise Refused("no loop carries a number twice")


@dataclass
class _Numbers:
    """The whole numbers that the loops of a role carry, in classes of those that may be the same: fewer and fewer."""

    role: ir.Operation
    places: list[tuple[ir.Value, list[ir.Value]]] = field(default_factory=list)
    """An argument or a result of a loop, and what it is made of: the number at first, or that which an iteration hands on."""
    classes: dict[ir.Value, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for op in walk(self.role):
            self._read(op)
        # Numbers of different loops are never the same at the same time: they only look alike.
        homes: dict[Hashable, int] = {}
        self.classes = {value: homes.setdefault(_home(value), len(homes)) for value, _ in self.places}

    def _read(self, op: ir.Operation) -> None:
        if op.name == "scf.for":
            block = op.regions[0].blocks[0]
            handed = list(block.operations[-1].operation.operands)
            self._add(list(block.arguments)[1:], list(op.operands)[3:], handed)
            self._add(list(op.results), list(op.operands)[3:], handed)
        elif op.name == "scf.while":
            before, after = (region.blocks[0] for region in op.regions)
            _, *kept = before.operations[-1].operation.operands
            self._add(list(before.arguments), list(op.operands), list(after.operations[-1].operation.operands))
            self._add(list(after.arguments), kept, kept)
            self._add(list(op.results), kept, kept)

    def _add(self, values: list[ir.Value], *sources: list[ir.Value]) -> None:
        for value, *made_of in zip(values, *sources, strict=True):
            if isinstance(value.type, ir.IndexType):
                self.places.append((value, made_of))

    def merge(self) -> bool:
        """Lets the first of equal numbers stand for the others of its block or loop; whether there are any."""
        while self._split():
            pass
        seen: dict[Hashable, ir.Value] = {}
        merged = False
        for value, _ in self.places:
            first = seen.setdefault((*_home(value), self.classes[value]), value)
            if first != value and any(True for _ in value.uses):
                value.replace_all_uses_with(first)
                merged = True
        return merged

    def _split(self) -> bool:
        """Splits classes whose numbers are made of different ones; whether there were any."""
        known: dict[ir.Value, Hashable] = {}
        numbers: dict[Hashable, int] = {}
        made = {value: (self.classes[value], *(self._key(each, known) for each in sources)) for value, sources in self.places}
        found = {value: numbers.setdefault(key, len(numbers)) for value, key in made.items()}
        split = len(numbers) > len(set(self.classes.values()))
        self.classes = found
        return split

    def _key(self, value: ir.Value, known: dict[ir.Value, Hashable]) -> Hashable:
        """What a number is, by classes of those that loops carry."""
        if value in self.classes:
            return ("class", self.classes[value])
        if value not in known:
            op = None if isinstance(value.owner, ir.Block) else value.owner.operation
            if op is None or not op.name.startswith("arith.") or len(op.results) != 1:
                known[value] = value
            else:
                attributes = tuple(f"{name} {op.attributes[name]}" for name in op.attributes)
                known[value] = (op.name, attributes, *(self._key(operand, known) for operand in op.operands))
        return known[value]


def _home(value: ir.Value) -> tuple[Hashable, ...]:
    """The block or loop that a number belongs to."""
    return ("block", value.owner) if isinstance(value.owner, ir.Block) else ("op", value.owner.operation)
