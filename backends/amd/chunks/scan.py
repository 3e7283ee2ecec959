"""Prints the ops of a chunk scan, and its loops: the next chunk is loaded while the current one is multiplied."""

from attn_mlir.backends.amd.chunks.copies import ChunkCopies
from attn_mlir.backends.amd.chunks.core import ChunkCore
from attn_mlir.backends.amd.chunks.early_ops import loaded_ahead, only_sums
from attn_mlir.backends.amd.chunks.layout import SOLVE
from attn_mlir.backends.amd.chunks.loads_stores import Traffic
from attn_mlir.backends.amd.chunks.maps import ChunkMaps, registers
from attn_mlir.backends.amd.chunks.products import ChunkProducts
from attn_mlir.backends.amd.chunks.solves import ChunkSolves
from attn_mlir.backends.amd.chunks.streams import Streams
from attn_mlir.backends.amd.chunks.sums import ChunkSums
from attn_mlir.backends.amd.chunks.tiles import ChunkFragment, ChunkVector, Held, Tile, Uniform
from attn_mlir.backends.gpu.origins import for_op
from attn_mlir.backends.gpu.rules import SCALARS, Rule, rule_of
from attn_mlir.backends.gpu.structure import body, constant, hint, is_row, is_tile, operations, yielded
from attn_mlir.dialects.tile.names import DOTS
from attn_mlir.errors import UnsupportedError
from attn_mlir.mlir import ir

_MOST_ITERATIONS = 64
"""Of a loop whose sums along rows are all made before it."""
_MOST_SUMS = 8192
"""Floats that such sums may take in shared memory."""


class ChunkOps:
    """Prints blocks of ops."""

    def __init__(self, core: ChunkCore) -> None:
        self.core = core
        self.copies = ChunkCopies(core)
        self.maps = ChunkMaps(core, self.copies)
        self.sums = ChunkSums(core, self.copies)
        self.products = ChunkProducts(core, self.copies)
        self.solves = ChunkSolves(core, self.copies, self.products)
        self.traffic = Traffic(core, self.copies)
        self.streams = Streams(core, self.copies)

    def block(self, block: ir.Block, known: set[ir.Operation]) -> None:
        """Prints the ops of a block, but those that are `known` already."""
        for op in operations(block):
            if op.name in ("scf.yield", "func.return"):
                break
            if op not in known:
                self.operation(op)

    @for_op
    def operation(self, op: ir.Operation) -> None:
        """Prints one op."""
        if self.streams.takes(op):
            self.streams.print(op)
        else:
            rule_of(_RULES, op, "amd: a chunk scan")(self, op)

    def _load(self, op: ir.Operation) -> None:
        tile = self.traffic.target(op)
        self.traffic.declare(tile)
        self.traffic.load(op, tile)
        self.core.tiles[op.results[0]] = tile

    def _extract(self, op: ir.Operation) -> None:
        self.copies_of(op)
        self.core.statement(op)

    def copies_of(self, op: ir.Operation) -> None:
        """Sees to it that a single element can be read."""
        value = op.operands[0]
        if not is_row(value.type):
            self.copies.readable(value)
        elif isinstance(self.copies.vector(value), ChunkVector) and constant(op.operands[1]) is None:
            self.copies.vector_copy(value)

    def _fill(self, op: ir.Operation) -> None:
        core, result = self.core, op.results[0]
        value = core.value(op.operands[0])
        if is_row(result.type):
            core.tiles[result] = Uniform(value, ir.RankedTensorType(result.type).shape[0])
        elif result in core.layout.fragments:
            core.tiles[result] = self.products.zeros(result, hint(result, "state"), value)
        else:
            raise UnsupportedError(f"amd: a tile of one number that no product is added to ({op.location})")

    # ---- loops

    def _loop(self, op: ir.Operation) -> None:
        """A loop whose carried tiles are changed in place."""
        core, writer, inner = self.core, self.core.writer, body(op)
        arguments = list(inner.arguments)
        carried = [self._carry(argument, start) for argument, start in zip(arguments[1:], list(op.operands)[3:], strict=True)]
        begin, end = core.names.fresh("begin"), core.names.fresh("end")
        bounds = [core.value(value) for value in list(op.operands)[:2]]
        writer.line(f"const int {begin} = {bounds[0]}, {end} = {bounds[1]};")
        step = core.value(op.operands[2])
        index = core.names.fresh("at")
        sums = self._sums_first(op, index)
        ahead = [] if sums else [other for other in loaded_ahead(inner) if not self.streams.takes(other)]
        nexts = [self._next(other) for other in ahead]
        fetch = core.names.fresh("fetch")
        if ahead:
            writer.line(f"const auto {fetch} = [&](int next) __attribute__((always_inline)) {{")
            writer.indent += "  "
            with core.scope(None):
                core.scalars.bind(arguments[0], "next")
                for other, tiles in zip(ahead, nexts, strict=True):
                    self._fetch(other, tiles)
            writer.indent = writer.indent[:-2]
            writer.line("};", f"if ({begin} < {end}) {fetch}({begin});")
        copies = dict(core.copies)
        with core.scope(f"for (int {index} = {begin}; {index} < {end}; {index} += {step})"):
            outer = core.memory.enter()
            core.scalars.bind(arguments[0], index)
            for tiles in nexts:
                for result, tile in tiles.items():
                    core.tiles[result] = self._current(tile)
            if ahead:
                writer.line(f"if ({index} + {step} < {end}) {fetch}({index} + {step});")
            self.block(inner, {*ahead, *sums})
            self._assign(carried, yielded(inner))
            core.memory.leave(outer)
        core.copies = copies
        core.tiles.update(zip(op.results, carried, strict=True))

    def _sums_first(self, op: ir.Operation, index: str) -> list[ir.Operation]:
        """Prints the maps of a short loop that only add up rows, and need nothing of it but its index, in a loop of their own before it.

        Their sums then wait in shared memory, and neither loop needs barriers.
        """
        core, inner = self.core, body(op)
        bounds = [constant(value) for value in list(op.operands)[:3]]
        found = [other for other in operations(inner) if only_sums(other, inner)]
        if bounds[0] != 0 or bounds[2] != 1 or bounds[1] is None or bounds[1] > _MOST_ITERATIONS or not found:
            return []
        if sum(self.maps.room(other) for other in found) * int(bounds[1]) > _MOST_SUMS:
            return []
        sizes = {other: self.maps.reserve(other, int(bounds[1])) for other in found}
        for other in found:
            self.maps.reading.prepare(other, self.maps.reading.layout(other))
        with core.scope(f"for (int {index} = 0; {index} < {int(bounds[1])}; ++{index})"):
            core.scalars.bind(inner.arguments[0], index)
            for other, size in sizes.items():
                self.maps.print(other, slot=f"{index} * {size}")
        for other in found:
            for name in self.maps.reserved[other]:
                core.memory.read(core.copies[name, "parts"])
        return found

    def _next(self, op: ir.Operation) -> dict[ir.Value, ChunkFragment | Held | ChunkVector]:
        """Declares the registers of what an op makes for the next iteration of the loop."""
        tiles: dict[ir.Value, ChunkFragment | Held | ChunkVector] = {}
        if op.name == "tile.load":
            tiles[op.results[0]] = self.traffic.target(op)
        else:
            tiles.update({r: self.maps.target(op, r, value) for r, value in zip(op.results, yielded(body(op)), strict=True)})
        for result, tile in tiles.items():
            name = self.core.names.fresh(f"{tile.name}_next")
            tiles[result] = type(tile)(**{**tile.__dict__, "name": name})
            self.maps.declare(tiles[result])
        return tiles

    def _fetch(self, op: ir.Operation, tiles: dict[ir.Value, ChunkFragment | Held | ChunkVector]) -> None:
        if op.name == "tile.load":
            tile = tiles[op.results[0]]
            if isinstance(tile, (ChunkFragment, Held)):
                self.traffic.load(op, tile)
        else:
            self.maps.print(op, {result: tile.name for result, tile in tiles.items()})

    def _current(self, tile: ChunkFragment | Held | ChunkVector) -> ChunkFragment | Held | ChunkVector:
        """The registers of this iteration, which begin as those that were loaded for it."""
        name = self.core.names.fresh(tile.name.replace("_next", ""))
        self.core.writer.line(f"const {registers(tile)} {name} = {tile.name};")
        return type(tile)(**{**tile.__dict__, "name": name})

    def _carry(self, argument: ir.Value, start: ir.Value) -> Tile:
        """Where a carried tile is while a loop runs; it begins as `start`."""
        core = self.core
        if not is_tile(start):
            raise UnsupportedError(f"amd: a loop over chunks carries {start}, which is no tile")
        tile = self.copies.vector(start) if is_row(start.type) else core.tiles[start]
        if isinstance(tile, Uniform):
            made = ChunkVector(core.names.fresh("carried"), tile.length, str(ir.RankedTensorType(start.type).element_type))
            core.writer.line(f"{registers(made)} {made.name};")
            with core.unrolled("n", made.parts):
                core.writer.line(f"{made.name}[n] = {tile.name};")
            tile = made
        elif not isinstance(tile, (ChunkVector, ChunkFragment)):
            raise UnsupportedError(f"amd: a loop over chunks carries {start}, which is no state")
        elif isinstance(tile, ChunkVector) or len(list(start.uses)) > 1 or isinstance(start.owner, ir.Block):
            made = type(tile)(**{**tile.__dict__, "name": core.names.fresh("state")})
            core.writer.line(f"{registers(made)} {made.name} = {tile.name};")
            tile = made
        core.tiles[argument] = tile
        return tile

    def _assign(self, carried: list[Tile], values: list[ir.Value]) -> None:
        """Puts the values that a block yields where they are carried."""
        core = self.core
        news = [self.copies.vector(value) if is_row(value.type) else core.tiles[value] for value in values]
        for old, new in zip(carried, news, strict=True):
            if old == new:
                continue
            if any(new.name == other.name for other in carried):
                raise UnsupportedError("amd: a loop exchanges tiles that it carries")
            if isinstance(new, Uniform) and isinstance(old, ChunkVector):
                with core.unrolled("n", old.parts):
                    core.writer.line(f"{old.name}[n] = {new.name};")
            else:
                core.writer.line(f"{old.name} = {new.name};")

    def _branch(self, op: ir.Operation) -> None:
        """A branch that all threads take together."""
        core = self.core
        if list(op.results):
            raise UnsupportedError(f"amd: a branch in a chunk scan makes no tiles ({op.location})")
        condition = core.value(op.operands[0])
        for number, region in enumerate(op.regions):
            if not list(region.blocks) or len(operations(region.blocks[0])) < 2:
                continue
            copies, before = dict(core.copies), core.memory.branch()
            with core.scope(f"if ({condition})" if number == 0 else f"if (!({condition}))"):
                self.block(region.blocks[0], set())
            core.copies = copies
            core.memory.join(before)


_RULES: dict[str, Rule] = {
    **dict.fromkeys(SCALARS, lambda printer, op: printer.core.statement(op)),
    **dict.fromkeys(DOTS, lambda printer, op: printer.products.print(op)),
    SOLVE: lambda printer, op: printer.solves.print(op),
    "memref.subview": lambda printer, op: printer.core.view(op.results[0]),
    "scf.for": ChunkOps._loop,
    "scf.if": ChunkOps._branch,
    "tensor.extract": ChunkOps._extract,
    "tile.cumsum": lambda printer, op: printer.sums.print(op),
    "tile.fill": ChunkOps._fill,
    "tile.load": ChunkOps._load,
    "tile.map": lambda printer, op: printer.maps.print(op),
    "tile.store": lambda printer, op: printer.traffic.store(op),
}
