"""What the consumer warpgroups of a kernel do: one op after another, products waited for when their tiles are read."""

from collections.abc import Collection, Mapping

from attn_mlir.backends.gpu.branches import print_branch
from attn_mlir.backends.gpu.origins import for_op
from attn_mlir.backends.gpu.rules import SCALARS, Rule, rule_of
from attn_mlir.backends.gpu.structure import body, operations, partial_sums, yielded
from attn_mlir.backends.nvidia.hopper.core import Core
from attn_mlir.backends.nvidia.hopper.maps import Maps
from attn_mlir.backends.nvidia.hopper.memory import SharedMemory, TileRing
from attn_mlir.backends.nvidia.hopper.products import WgmmaProducts
from attn_mlir.backends.nvidia.hopper.shared_maps import Changes
from attn_mlir.backends.nvidia.hopper.stores import Stores
from attn_mlir.backends.nvidia.hopper.tiles import RegRow, RegTile, SharedTile, Tile
from attn_mlir.diagnostics import source_line
from attn_mlir.dialects.tile.names import DOTS
from attn_mlir.errors import UnsupportedError
from attn_mlir.mlir import ir


class Consumer:
    """Prints blocks of a tile function for the consumers."""

    def __init__(self, core: Core, memory: SharedMemory, stores: Stores, changes: Changes, stages: int) -> None:
        self.core, self.memory, self.stores, self.changes, self.stages = core, memory, stores, changes, stages
        self.maps, self.products = Maps(core), WgmmaProducts(core)
        self.flying: list[RegTile] = []

    # ---- blocks

    def block(self, block: ir.Block) -> None:
        """Prints the ops of a block up to its terminator; frees the stages that were loaded in it."""
        rings: list[TileRing] = []
        for op in operations(block):
            if op.name in ("scf.yield", "func.return"):
                break
            self.operation(op, rings)
        self.land()
        for ring in rings:
            self.memory.free(ring)
            self.core.writer.line(f"++{ring.iteration};")

    @for_op
    def operation(self, op: ir.Operation, rings: list[TileRing]) -> None:
        """Prints one op; notes the ring that a load takes a stage of."""
        rule_of(_RULES, op, "hopper: a kernel over rows")(self, op, rings)

    def _load(self, op: ir.Operation, rings: list[TileRing]) -> None:
        if op.results[0] in self.core.tiles:
            return
        ring = self.memory.ring(op, self.stages)
        if ring in rings:
            raise UnsupportedError(f"hopper: a block loads two tiles of one tensor ({source_line(op.location)})")
        rings.append(ring)
        self.core.tiles[op.results[0]] = self.memory.wait(ring)

    def _fill(self, op: ir.Operation, _: list[TileRing]) -> None:
        core, type_ = self.core, ir.RankedTensorType(op.results[0].type)
        start = core.value(op.operands[0])
        core.tiles[op.results[0]] = core.row("total", start) if type_.rank == 1 else core.fragment("o", type_.shape[1], "f32", start)

    def _window(self, op: ir.Operation, _: list[TileRing]) -> None:
        if op.results[0] not in self.core.tiles:
            raise UnsupportedError("hopper: windows of captured tensors are read in overlapped loops alone")

    def _store(self, op: ir.Operation, _: list[TileRing]) -> None:
        self.land()
        self.stores.store(op)

    # ---- tiles

    @for_op
    def map(
        self, op: ir.Operation, wanted: Collection[ir.Value] | None = None, fixed: Mapping[ir.Value, float | ir.Value] | None = None
    ) -> None:
        """Prints a map: over registers, or, for tiles that products read, over shared memory. For `wanted` and `fixed` see `Maps`."""
        sources = [inner.operands[0] for inner in operations(body(op)) if inner.name == "tensor.extract"]
        if any(isinstance(self.core.tiles.get(source), SharedTile) for source in sources):
            self.land()
            self.changes.print(op)
            return
        if self.flying:
            self.land()
        self.maps.print(op, wanted, fixed)

    def land(self) -> None:
        """Waits for the products in flight."""
        if self.flying:
            self.products.wait(0, *dict.fromkeys(self.flying))
            self.flying = []

    @for_op
    def dot(self, op: ir.Operation) -> None:
        """Starts a product; it is waited for when something reads it."""
        core, products = self.core, self.products
        transpose = ir.BoolAttr(op.attributes["transpose_b"]).value
        *start, a, b = list(op.operands)
        right = self.shared(b)
        left = core.tiles[a]
        if start:
            target = self.fragment(start[0])
            if target in self.flying and len(start) > 1:
                self.land()
            if len(start) > 1:
                factor = core.tiles[start[1]]
                if isinstance(factor, RegRow):
                    products.rescale(target, factor, vote=True)
        else:
            target = core.fragment("s", core.columns(op.results[0].type))
        operand, depth = (products.pack(left), left.columns) if isinstance(left, RegTile) else (products.left(self.shared(a)), right.depth)
        if isinstance(left, RegTile) and depth % 16:
            raise UnsupportedError(f"hopper: blocks of keys are multiples of 16, not {depth} ({source_line(op.location)})")
        products.begin()
        products.start(target, operand, right, depth, transpose, not start, right.element)
        products.commit()
        self.flying.append(target)
        core.tiles[op.results[0]] = target

    def shared(self, value: ir.Value) -> SharedTile:
        """The tile in shared memory that a value is. Raises UnsupportedError for others."""
        tile = self.core.tiles.get(value)
        if not isinstance(tile, SharedTile):
            raise UnsupportedError(f"hopper: a product reads {value} from shared memory, but it is not there")
        return tile

    def fragment(self, value: ir.Value) -> RegTile:
        """The tile in registers that a value is. Raises UnsupportedError for others."""
        tile = self.core.tiles.get(value)
        if not isinstance(tile, RegTile):
            raise UnsupportedError(f"hopper: {value} is not in registers")
        return tile

    # ---- control

    def loop(self, op: ir.Operation, partial: set[ir.Value]) -> None:
        """A loop whose carried tiles are changed in place."""
        core = self.core
        self.maps.partial |= partial
        arguments = list(body(op).arguments)
        carried = [self.carry(argument, value) for argument, value in zip(arguments[1:], list(op.operands)[3:], strict=True)]
        begin, end, step = (core.value(value) for value in list(op.operands)[:3])
        for inner in operations(body(op)):
            if inner.name == "tile.map" and len(inner.operands) == 2:
                self.maps.read_rows(inner, op)
        index = core.names.fresh("kv")
        with core.scope(f"for (int {index} = {begin}; {index} < {end}; {index} += {step})"):
            core.scalars.bind(arguments[0], index)
            self.block(body(op))
            self.assign(carried, yielded(body(op)))
        for result, tile in zip(op.results, carried, strict=True):
            core.tiles[result] = self.whole(tile)

    def carry(self, argument: ir.Value, start: ir.Value) -> Tile:
        """Where a carried tile is while a loop runs; it begins as `start`."""
        core, tile = self.core, self.core.tiles[start]
        if isinstance(tile, RegRow):
            partial = argument in self.maps.partial
            row = core.row(tile.name, partial=partial)
            for h in range(2):
                value = f"lane % 4 == 0 ? {tile.name}[{h}] : 0.0f" if partial else f"{tile.name}[{h}]"
                core.writer.line(f"{row.name}[{h}] = {value};")
            tile = row
        core.tiles[argument] = tile
        return tile

    def assign(self, carried: list[Tile], values: list[ir.Value]) -> None:
        """Puts the values that a block yields where they are carried."""
        core, writer = self.core, self.core.writer
        news = [core.tiles[value] for value in values]
        moved = {tile.name for tile in carried if isinstance(tile, (RegRow, RegTile))}
        for old, new in zip(carried, news, strict=True):
            if isinstance(old, RegRow) and isinstance(new, RegRow) and old.name != new.name:
                if new.name in moved:
                    raise UnsupportedError("hopper: a loop exchanges values that it carries")
                writer.line(*(f"{old.name}[{h}] = {new.name}[{h}];" for h in range(2)))
            elif isinstance(old, RegTile) and isinstance(new, RegTile) and old.name != new.name:
                with writer.unrolled("c", old.registers):
                    writer.line(f"{old.name}[c] = {new.name}[c];")

    def whole(self, tile: Tile) -> Tile:
        """Adds up the parts of a sum."""
        if not isinstance(tile, RegRow) or not tile.partial:
            return tile
        row = self.core.row(tile.name)
        self.core.writer.line(*(f"{row.name}[{h}] = attn::quad_sum({tile.name}[{h}]);" for h in range(2)))
        return row

    def branch(self, op: ir.Operation) -> None:
        """A branch that all threads take together; its tiles are changed in place."""
        self.land()
        print_branch(self.core, op, self.maps.partial, self.block, self._put)

    def _put(self, target: Tile | None, tile: Tile) -> bool:
        """Gives a row another value; false for other tiles."""
        if not isinstance(tile, RegRow) or not isinstance(target, RegRow):
            return False
        self.core.writer.line(*(f"{target.name}[{h}] = {tile.name}[{h}];" for h in range(2)))
        return True


_RULES: dict[str, Rule] = {
    **dict.fromkeys(SCALARS, lambda printer, op, _: printer.core.statement(op)),
    **dict.fromkeys(DOTS, lambda printer, op, _: printer.dot(op)),
    "scf.for": lambda printer, op, _: printer.loop(op, partial_sums([op])),
    "scf.if": lambda printer, op, _: printer.branch(op),
    "tile.fill": Consumer._fill,
    "tile.band": Consumer._window,
    "tile.load": Consumer._load,
    "tile.load_window": Consumer._window,
    "tile.map": lambda printer, op, _: printer.map(op),
    "tile.store": Consumer._store,
}
