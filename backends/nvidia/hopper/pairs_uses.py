"""What becomes of the weights that a map of pairs makes: rounded and multiplied, scattered, or kept."""

from dataclasses import dataclass, field

from attn_mlir.backends.gpu.passes.scaling import factor
from attn_mlir.backends.gpu.structure import body as body_of
from attn_mlir.backends.gpu.structure import maker, operations, yielded
from attn_mlir.backends.nvidia.hopper.core import Core
from attn_mlir.dialects.regions import element_of
from attn_mlir.mlir import ir
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
        if not all(map(_is_window, windows)):
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
    value = element_of(result)
    for other, tile in rounded.items():
        found = factor(element_of(other))
        if found is not None and found[0] == value:
            return tile, 1.0 / found[1]
    return None, 1.0


def _is_exchanged(tile: ir.Value) -> bool:
    """Whether a tile is a factor of sums over keys, for which it goes to shared memory."""
    return any(use.owner.operation.name == "tile.accumulate" and use.operand_number == 0 for use in tile.uses)


def _is_band(scatter: ir.Operation, tile: ir.Value) -> bool:
    """Whether the elements of a tile go to places that depend on the difference of their row and column alone."""
    positions = Positions(body_of(scatter))
    value, _, *indices = yielded(positions.block)
    read = maker(value, "tensor.extract")
    along = [positions.along_diagonals(index) for index in indices]
    same = [steps is not None and steps.same for steps in map(positions.steps, indices)]
    own = read is not None and read.operands[0] == tile and _is_own(read)
    return own and any(along) and all(a or b for a, b in zip(along, same, strict=True))


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
