"""What a chunk of a delta rule's scan does without the state: the ops of its loop, and which of their results the others need."""

from collections.abc import Callable, Container, Iterable

from attn_mlir.backends.gpu.structure import body, is_row, is_tile, operations
from attn_mlir.dialects.tile.names import DOTS
from attn_mlir.mlir import ir
from attn_mlir.passes.regions import maker, walk

SOLVE = "tile.solve_unit"
Crossing = tuple[ir.Value, bool]
"""A tile, and whether it is a triangle that is wanted as its inverse."""


def _makes_rows(op: ir.Operation) -> bool:
    """Whether numbers of f32, one for each row, are all that an op makes."""
    types = [result.type for result in op.results]
    return bool(types) and all(is_row(type_) and isinstance(ir.RankedTensorType(type_).element_type, ir.F32Type) for type_ in types)


def shape_of_tile(tile: ir.Value) -> list[int]:
    return list(ir.RankedTensorType(tile.type).shape)


def with_inner(op: ir.Operation) -> list[ir.Operation]:
    """An op and those in its regions."""
    return [op, *walk(op)]


class ChunkSteps:
    """The ops of a loop over chunks of `size` positions, which are loaded from `over` among others.

    `dependent` are those that need the state, `crossing` the tiles that these take of the others, and numbers of rows.
    """

    def __init__(self, loop: ir.Operation, over: ir.Value, size: int) -> None:
        self.loop, self.over, self.size = loop, over, size
        inner = body(loop)
        self.steps = operations(inner)
        self.dependent = self._dependent(set(list(inner.arguments)[1:]))
        self.crossing = self._crossing()

    def _dependent(self, known: set[ir.Value]) -> set[ir.Operation]:
        """The ops of the loop that need the state."""
        found: set[ir.Operation] = set()
        for op in self.steps:
            if op.name in ("tile.store", "scf.yield") or any(value in known for each in with_inner(op) for value in each.operands):
                found.add(op)
                known.update(op.results)
        return found

    def _crossing(self) -> list[Crossing]:
        """The tiles, made of products or of sums of channels' decays, that other ops need together with the state, and the numbers of rows
        that these need: warps that make such numbers in the scan let its products wait.
        """
        costly: set[ir.Value] = set()
        for op in self.steps:
            reads = [value for each in with_inner(op) for value in each.operands]
            first = op.name in (*DOTS, SOLVE) or (op.name == "tile.cumsum" and len(shape_of_tile(op.results[0])) == 2)
            if op not in self.dependent and (first or any(value in costly for value in reads)):
                costly.update(op.results)
        found: dict[Crossing, None] = {}
        for op in self.steps:
            if op in self.dependent:
                for each in with_inner(op):
                    for number, value in enumerate(each.operands):
                        if value in costly and is_tile(value):
                            found[value, op.name == SOLVE and number == 0] = None
        shapes = [shape_of_tile(value) for value, _ in found]
        fits = self.place() and all(len(shape) == 1 or shape[0] == self.size for shape in shapes)
        if not fits or not any(inverse for _, inverse in found):
            return []
        rows = {result for op in self.steps if _makes_rows(op) and op not in self.dependent for result in op.results}
        needed = self.needed({value for value, _ in found} | rows)
        read = [value for op in self.steps if op in needed for each in with_inner(op) for value in each.operands]
        found |= {(value, False): None for value in read if value in rows}
        return list(found)

    def rank(self) -> Callable[[ir.Operation], int]:
        """What is made first of a chunk whose heads have decays: numbers of rows, while tiles are on their way; tiles that no system needs,
        so that one product's sums are in registers at a time. All else has its order, so that tiles live no longer than in the kernel.
        """
        systems = self.closure(value.owner.operation for value, inverse in self.crossing if inverse)
        channels = any(op.name == "tile.cumsum" and len(shape_of_tile(op.results[0])) == 2 for op in self.steps)

        def of(op: ir.Operation) -> int:
            tiles = [value for each in self.closure([op]) for value in each.results if is_tile(value)]
            return 0 if channels or all(len(shape_of_tile(value)) == 1 for value in tiles) else 1 if op not in systems else 2

        return of

    def place(self) -> list[ir.Value]:
        """(b, h, row, count) of a chunk in tensors with all heads, as it is loaded; nothing where none is."""
        for op in self.steps:
            if op.name == "tile.load" and _base(op.operands[0]) == self.over:
                return list(op.operands)[1:5]
        return []

    def needed(self, loaded: Container[ir.Value] | None = None) -> set[ir.Operation]:
        """The ops of the loop that the scan keeps: those with the state, and what these need but for what is loaded."""
        wanted = [op for op in self.steps if op in self.dependent]
        wanted += [made for value in self.place() if (made := self._maker(value)) is not None]
        return self.closure(wanted, {value for value, _ in self.crossing} if loaded is None else loaded)

    def closure(self, first: Iterable[ir.Operation], stop: Container[ir.Value] = ()) -> set[ir.Operation]:
        """Ops of the loop, and what they need of it but for the values of `stop`."""
        found: set[ir.Operation] = set()
        wanted = list(first)
        while wanted:
            op = wanted.pop()
            if op in found:
                continue
            found.add(op)
            read = [value for each in with_inner(op) for value in each.operands if value not in stop]
            wanted += [made for value in read if (made := self._maker(value)) is not None]
        return found

    def _maker(self, value: ir.Value) -> ir.Operation | None:
        """The op of the loop that makes a value."""
        op = maker(value)
        return op if op is not None and op.block == body(self.loop) else None


def _base(memory: ir.Value) -> ir.Value:
    """The argument that a view is of."""
    while not isinstance(memory.owner, ir.Block):
        memory = memory.owner.operation.operands[0]
    return memory
