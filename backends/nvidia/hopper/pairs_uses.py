"""What becomes of the weights that a map of pairs makes: rounded and multiplied, scattered, or kept."""

from collections.abc import Iterator
from dataclasses import dataclass, field

from attn_mlir.backends.gpu.passes.scaling import factor
from attn_mlir.backends.gpu.scalars import dependence
from attn_mlir.backends.gpu.structure import body as body_of
from attn_mlir.backends.gpu.structure import maker, operations, yielded
from attn_mlir.backends.nvidia.hopper.core import Core
from attn_mlir.dialects.regions import element_of
from attn_mlir.mlir import ir
from attn_mlir.passes.simplification.folding import number, truth
from attn_mlir.passes.tiling.positions import Positions, window_of


@dataclass(frozen=True)
class WeightUses:
    """By results of a map in f32: the tile of 16 bits that another map makes of it, and the scatters that read it at their own element.

    `banded`: by those tiles, where sums over keys have them in shared memory, scatters along their diagonals and the factor that makes of
    them what is added. Such a result is among `scattered`, too, with what else it is scattered by.
    """

    rounded: dict[ir.Value, ir.Value] = field(default_factory=dict)
    scattered: dict[ir.Value, list[ir.Operation]] = field(default_factory=dict)
    banded: dict[ir.Value, list[tuple[ir.Operation, float]]] = field(default_factory=dict)

    def in_registers(self, result: ir.Value) -> bool:
        """Whether a result needs registers of its own."""
        return result not in self.rounded and result not in self.scattered


def uses_of(block: ir.Block) -> tuple[WeightUses, ir.Operation | None]:
    """The uses of what the first map of a step makes, and the map that only rounds it, if there is one."""
    maps = [view.operation for view in block.operations if view.operation.name == "tile.map" and len(list(view.operation.operands)) == 2]
    if not maps:
        return WeightUses(), None
    rounds = maps[1] if len(maps) == 2 and _only_rounds(maps[1], maps[0]) else None
    rounded = {} if rounds is None else {_source(element_of(result)): result for result in rounds.results}
    scattered: dict[ir.Value, list[ir.Operation]] = {}
    banded: dict[ir.Value, list[tuple[ir.Operation, float]]] = {}
    for result in maps[0].results:
        users = [use.owner.operation for use in result.uses]
        others = [op for op in users if rounds is None or op.block != body_of(rounds)]
        scatters = [
            op.parent.operation for op in others if _is_own(op) and op.parent is not None and op.parent.operation.name == "tile.scatter_add"
        ]
        tile, by = _multiple(maps[0], result, rounded)
        bands = [op for op in scatters if tile is not None and _is_exchanged(tile) and _is_band(op, result)]
        windows = [op for op in scatters if op not in bands]
        if not all(_is_window(op) or is_of_queries(op) for op in windows):
            # Many elements that meet, as those of a table do, would be added to one address one after the other.
            return WeightUses(), None
        if others and len(scatters) == len(others):
            scattered[result] = windows
            if tile is not None and bands:
                banded.setdefault(tile, []).extend((op, by) for op in bands)
        elif others:
            rounded.pop(result, None)
    if rounds is not None and len(rounded) < len(list(rounds.results)):
        return WeightUses(), None
    return WeightUses(rounded, scattered, banded), rounds


def add_element(core: Core, op: ir.Operation) -> None:
    """Prints the addition of one element of a scatter, whose row and column are known."""
    value, present, *indices = yielded(body_of(op))
    condition = core.scalars.emit(present)
    with core.scope(f"if ({condition})"):
        place = core.arguments.element(op.operands[0], [core.value(index) for index in indices])
        core.writer.line(f"attn::add_global(&{place}, {core.scalars.emit(value)});")


def is_of_queries(op: ir.Operation) -> bool:
    """Whether the place of an element of a scatter over pairs depends on its column, the query, alone."""
    depends = dependence(body_of(op))
    return not any(0 in depends.get(index, ()) for index in yielded(body_of(op))[2:])


class QuerySumsOfWarp:
    """Sums of a scatter to places of queries, over the keys that a warp has: elements one by one would wait for each other."""

    def __init__(self, core: Core, op: ir.Operation, queries: int) -> None:
        """Declares what each thread adds up: a number for each of its queries."""
        self.core, self.op, self.queries, self.name = core, op, queries, core.names.fresh("of_keys")
        self.numbers = (queries // 4 + 7) // 8 * 8
        name = self.name
        core.writer.line(f"float {name}[{self.numbers}];", "#pragma unroll", f"for (int n = 0; n < {self.numbers}; ++n) {name}[n] = 0.0f;")

    def element(self) -> None:
        """Adds the element in column 8 c + e, whose row and column are known."""
        value, present, *_ = yielded(body_of(self.op))
        with self.core.scope(f"if ({self.core.scalars.emit(present)})"):
            self.core.writer.line(f"{self.name}[2 * c + e] += {self.core.scalars.emit(value)};")

    def add(self, limit: str | None) -> None:
        """Adds the sums at their places, each by one lane. Queries from `limit` on are not there."""
        core, writer, name = self.core, self.core.writer, self.name
        writer.line(f"attn::sum_of_lanes({name}, lane);")
        with core.unrolled("g", self.numbers // 8):
            writer.line("const int place = 8 * g + lane / 16 % 2 * 4 + lane / 8 % 2 * 2 + lane / 4 % 2;")
            writer.line("const int query = lane % 4 * 2 + 8 * (place / 2) + place % 2;")
            bound = limit if limit is not None else str(self.queries) if self.numbers > self.queries // 4 else None
            # Queries of which no key is present may have no place: their sum is 0.
            with core.scope(f"if ({name}[g] != 0.0f{'' if bound is None else f' && query < {bound}'})"):
                core.scalars.bind(body_of(self.op).arguments[1], "query")
                indices = yielded(body_of(self.op))[2:]
                to = core.arguments.element(self.op.operands[0], [core.value(index) for index in indices])
                writer.line(f"attn::add_global(&{to}, {name}[g]);")


def _source(value: ir.Value) -> ir.Value:
    """The tile whose element is rounded."""
    return value.owner.operation.operands[0].owner.operation.operands[0]


def _is_own(op: ir.Operation) -> bool:
    return op.name == "tensor.extract" and list(op.operands)[1:] == list(op.block.arguments)


def _is_window(scatter: ir.Operation) -> bool:
    """Whether every element of a tile goes to a place of its own, by constant steps."""
    _, _, *indices = yielded(body_of(scatter))
    return window_of(Positions(body_of(scatter)), indices) is not None


def _multiple(map_: ir.Operation, result: ir.Value, rounded: dict[ir.Value, ir.Value]) -> tuple[ir.Value | None, float]:
    """A tile of 16 bits, and the factor that makes a result of it: that of the result, or of a multiple of it by a constant."""
    if result in rounded:
        return rounded[result], 1.0
    values = list(_kept(element_of(result)))
    for other, tile in rounded.items():
        for conditions, multiple in _kept(element_of(other)):
            found = factor(multiple)
            if found is not None and (conditions, found[0]) in values:
                return tile, 1.0 / found[1]
    return None, 1.0


def _kept(value: ir.Value) -> Iterator[tuple[list[ir.Value], ir.Value]]:
    """A value, without the conditions where it is replaced by 0: without none, the first, the first two, ..."""
    conditions: list[ir.Value] = []
    yield [], value
    while (chosen := maker(value, "arith.select")) is not None and number(chosen.operands[2]) == 0.0:
        conditions, value = [*conditions, chosen.operands[0]], chosen.operands[1]
        yield conditions, value


def _is_exchanged(tile: ir.Value) -> bool:
    """Whether a tile is a factor of sums over keys, for which it goes to shared memory."""
    return any(use.owner.operation.name == "tile.accumulate" and use.operand_number == 0 for use in tile.uses)


def _is_band(scatter: ir.Operation, tile: ir.Value) -> bool:
    """Whether the elements of a tile go to places that depend on the difference of their row and column alone."""
    positions = Positions(body_of(scatter))
    value, present, *indices = yielded(positions.block)
    read = maker(value, "tensor.extract")
    if not (is_always(present) or positions.along_diagonals(present)):
        return False
    along = [positions.along_diagonals(index) for index in indices]
    same = [steps is not None and steps.same for steps in map(positions.steps, indices)]
    own = read is not None and read.operands[0] == tile and _is_own(read)
    return own and any(along) and all(a or b for a, b in zip(along, same, strict=True))


def is_always(present: ir.Value) -> bool:
    """Whether all elements of a scatter are added."""
    return truth(present) is True


def _only_rounds(op: ir.Operation, first: ir.Operation) -> bool:
    """Whether a map does nothing but round results of the first one, each once."""
    found = []
    for value in yielded(body_of(op)):
        truncated = maker(value)
        read = maker(truncated.operands[0]) if truncated is not None and truncated.name == "arith.truncf" else None
        if read is None or not _is_own(read) or read.operands[0] not in list(first.results):
            return False
        found.append(read.operands[0])
    return len(set(found)) == len(found) and all(
        inner.name in ("tensor.extract", "arith.truncf", "tile.yield") for inner in operations(body_of(op))
    )
