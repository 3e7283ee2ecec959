"""What a thread block does, one op after another; loops over blocks of keys or queries load the next block while they multiply."""

from attn_mlir.backends.amd.mfma.core import ALL_ROWS, MfmaCore
from attn_mlir.backends.amd.mfma.maps import MfmaMaps
from attn_mlir.backends.amd.mfma.products import MfmaProducts
from attn_mlir.backends.amd.mfma.staging import HeldPrinter, Staging, Stream, changing
from attn_mlir.backends.amd.mfma.stores import MfmaStores
from attn_mlir.backends.amd.mfma.sums import MfmaSums
from attn_mlir.backends.amd.mfma.tiles import MfmaFragment, MfmaRow, Tile, round_up
from attn_mlir.backends.gpu.branches import print_branch
from attn_mlir.backends.gpu.origins import for_op
from attn_mlir.backends.gpu.rules import SCALARS, Rule, rule_of
from attn_mlir.backends.gpu.structure import body, chains, operations, partial_sums, yielded
from attn_mlir.diagnostics import source_line
from attn_mlir.dialects.tile.names import DOTS
from attn_mlir.errors import UnsupportedError
from attn_mlir.mlir import ir
from attn_mlir.passes.regions import walk


class MfmaPrinter:
    """Prints blocks of a tile function."""

    def __init__(self, core: MfmaCore, in_turn: int, ordered: bool) -> None:
        """`in_turn`: which rows and columns share memory, see `Staging.place`; `ordered`: see `Sums`."""
        self.core = core
        self.staging, self.held, self.maps = Staging(core, in_turn), HeldPrinter(core), MfmaMaps(core)
        self.products, self.stores, self.sums = MfmaProducts(core), MfmaStores(core), MfmaSums(core, ordered)
        self.filled: set[ir.Value] = set()
        self.base = 0
        """The first byte of shared memory that enclosing blocks leave free."""

    # ---- blocks

    def block(self, block: ir.Block, streams: list[Stream] | None = None, after: str = "") -> None:
        """Prints the ops of a block up to its terminator; tiles of `streams` are in shared memory already.

        Where columns take the place of rows, they do before the first op that needs them; the statement `after` follows.
        """
        found = chains(block)
        members = {op: chain for chain in found for op in chain}
        base = self.base
        if streams is None:
            streams = self._stage_here(block)
        loads = [load for stream in streams for load in stream.loads]
        changes = [change for change in map(changing, loads) if change is not None]
        late = self.staging.splits(streams)
        for op in operations(block):
            if op.name in ("scf.yield", "func.return"):
                break
            if late and _reads(op, by_rows=False):
                self.core.writer.line("attn::barrier();")  # all waves have read the rows whose memory columns take
                self.staging.keep_columns(streams)
                self.core.writer.line("attn::barrier();", *[after] * bool(after))  # columns of other waves are there
                late = False
            elif self.staging.splits(streams) and not late and _reads(op, by_rows=True):
                raise UnsupportedError(
                    f"amd: the kernel needs more shared memory than there is ({source_line(op.location)}): choose smaller blocks"
                )
            if op in members:
                if op == members[op][0]:
                    self._chain(members[op])
                    self._settle(members[op])
            elif op not in loads and op not in changes:
                self.operation(op)
        self.base = base

    def _settle(self, loops: list[ir.Operation]) -> None:
        """Takes the factors out of sums that began in this block, as their loops have ended."""
        for start in list(loops[0].operands)[3:]:
            tile = self.core.tiles[start]
            if start in self.filled and isinstance(tile, MfmaFragment):
                self.core.settle(tile)

    def _stage_here(self, block: ir.Block) -> list[Stream]:
        """Loads what the products of a block read from shared memory, when the block is entered."""
        core, streams = self.core, list[Stream]()
        loads = [op for op in operations(block) if op.name == "tile.load" and _goes_through_memory(op)]
        for load in loads:
            self.staging.stream(load, streams)
        if not streams:
            return streams
        core.writer.line("attn::barrier();")  # what was in this memory before has been read
        self.sums.busy = False
        self.base = self.staging.place(streams, self.base)
        self.staging.declare(streams)
        for stream in streams:
            self.staging.fetch([stream], core.value(stream.loads[0].operands[3]))
        self.staging.keep(streams, block)
        self.base = self._stage_columns(block)
        core.writer.line("attn::barrier();")  # each wave reads what all have written
        return streams

    def _stage_columns(self, block: ir.Block) -> int:
        """Puts what maps read for each column into shared memory, too."""
        end = round_up(self.maps.stage(block, self.base), 16)
        self.staging.bytes = max(self.staging.bytes, end)
        return end

    @for_op
    def operation(self, op: ir.Operation) -> None:
        """Prints one op."""
        rule_of(_RULES, op, "amd: a kernel with products")(self, op)

    def _fill(self, op: ir.Operation) -> None:
        core, type_ = self.core, ir.RankedTensorType(op.results[0].type)
        start = core.value(op.operands[0])
        self.filled.add(op.results[0])
        core.tiles[op.results[0]] = core.row("total", start) if type_.rank == 1 else core.accumulator("sum", type_.shape[1], start)

    def _load(self, op: ir.Operation) -> None:
        if any(use.owner.operation.name == "tile.accumulate" and use.operand_number == 1 for use in op.results[0].uses):
            self.sums.load(op)
        elif list(op.results[0].uses) or self.core.rows_exist == ALL_ROWS:  # keys whose scores no weight depends on are not read
            self.core.tiles[op.results[0]] = self.held.load(op)

    # ---- loops

    def _chain(self, loops: list[ir.Operation]) -> None:
        """Loops that follow each other; what they load goes through the same memory."""
        core, streams = self.core, list[Stream]()
        loads = [[op for op in operations(body(loop)) if op.name == "tile.load" and _goes_through_memory(op)] for loop in loops]
        ahead = any(loads) and all(
            load.operands[3] == next(iter(body(loop).arguments)) and _from_outside(load, loop)
            for loop, own in zip(loops, loads, strict=True)
            for load in own
        )
        if not ahead:
            for loop in loops:
                self._loop(loop, [], None)
            return
        for own in loads:
            for load in own:
                self.staging.stream(load, streams)
        base = self.base
        self.base = self.staging.place(streams, base)
        with core.scope(None):
            self.staging.declare(streams)
            bounds = [self._bounds(loop) for loop in loops]
            fetch = core.names.fresh("fetch")
            core.writer.line(f"const auto {fetch} = [&](int next) __attribute__((always_inline)) {{")
            core.writer.indent += "  "
            with core.scope(None):
                self.staging.here(streams)
                self.staging.fetch(streams, "next")
            core.writer.indent = core.writer.indent[:-2]
            core.writer.line("};")
            end = core.arguments.size(streams[0].source, 2)
            core.writer.line(f"{fetch}({_first(bounds, end)});")
            for number, loop in enumerate(loops):
                self._loop(loop, streams, (fetch, bounds[number], _first(bounds[number + 1 :], end)))
        self.base = base

    def _bounds(self, loop: ir.Operation) -> tuple[str, str]:
        core = self.core
        begin, end = (core.names.fresh(name) for name in ("begin", "end"))
        texts = [core.value(value) for value in list(loop.operands)[:2]]
        core.writer.line(f"const int {begin} = {texts[0]}, {end} = {texts[1]};")
        return begin, end

    def _loop(self, op: ir.Operation, streams: list[Stream], ahead: tuple[str, tuple[str, str], str] | None) -> None:
        """A loop whose carried tiles are changed in place."""
        core = self.core
        self.maps.partial |= partial_sums([op])
        arguments = list(body(op).arguments)
        carried = [self._carry(argument, value) for argument, value in zip(arguments[1:], list(op.operands)[3:], strict=True)]
        begin, end = ahead[1] if ahead is not None else tuple(core.value(value) for value in list(op.operands)[:2])
        step = core.value(op.operands[2])
        index = core.names.fresh("at")
        with core.scope(f"for (int {index} = {begin}; {index} < {end}; {index} += {step})"):
            core.scalars.bind(arguments[0], index)
            if ahead is not None:
                own = [stream for stream in streams if any(load.block == body(op) for load in stream.loads)]
                if core.recompute:
                    core.here()
                    self.staging.here(own)
                core.writer.line("attn::barrier();")  # products of the iteration before have read their tiles
                self.sums.busy = False
                self.staging.keep(own, body(op))
                base, self.base = self.base, self._stage_columns(body(op))
                follow = f"{ahead[0]}({index} + {step} < {end} ? {index} + {step} : {ahead[2]});"
                if self.staging.splits(own):
                    core.writer.line("attn::barrier();")  # rows are there; columns follow once these have been read
                    self.block(body(op), own, follow)
                else:
                    core.writer.line("attn::barrier();", follow)  # tiles are there; the next loads fly during the products
                    self.block(body(op), own)
                self.base = base
            else:
                self.block(body(op))
            self._assign(carried, yielded(body(op)))
        for result, tile in zip(op.results, carried, strict=True):
            core.tiles[result] = self._whole(tile)

    def _carry(self, argument: ir.Value, start: ir.Value) -> Tile:
        """Where a carried tile is while a loop runs; it begins as `start`."""
        core, tile = self.core, self.core.tiles[start]
        if isinstance(tile, MfmaRow):
            partial = argument in self.maps.partial
            tile = core.row(tile.name, f"half == 0 ? {tile.name} : 0.0f" if partial else tile.name, partial)
        core.tiles[argument] = tile
        return tile

    def _assign(self, carried: list[Tile], values: list[ir.Value]) -> None:
        """Puts the values that a block yields where they are carried."""
        core, writer = self.core, self.core.writer
        news = [core.tiles[value] for value in values]
        moved = {tile.name for tile in carried if isinstance(tile, (MfmaRow, MfmaFragment))}
        for old, new in zip(carried, news, strict=True):
            if old == new:
                continue
            if isinstance(old, MfmaRow) and isinstance(new, MfmaRow):
                if new.name in moved:
                    raise UnsupportedError("amd: a loop exchanges values that it carries")
                writer.line(f"{old.name} = {new.name};")
            elif isinstance(old, MfmaFragment) and isinstance(new, MfmaFragment):
                writer.line("#pragma unroll", f"for (int n = 0; n < {old.parts}; ++n) {old.name}[n] = {new.name}[n];")
            else:
                raise UnsupportedError("amd: a loop carries a tile that has no place of its own in registers")

    def _whole(self, tile: Tile) -> Tile:
        """Adds up the parts of a sum."""
        if not isinstance(tile, MfmaRow) or not tile.partial:
            return tile
        return self.core.row(tile.name, f"{tile.name} + attn::other_half({tile.name})")

    def _branch(self, op: ir.Operation) -> None:
        print_branch(self.core, op, self.maps.partial, self.block, self._put)

    def _put(self, target: Tile | None, tile: Tile) -> bool:
        """Gives a row another value; false for other tiles."""
        if not isinstance(tile, MfmaRow) or not isinstance(target, MfmaRow):
            return False
        self.core.writer.line(f"{target.name} = {tile.name};")
        return True


def _first(bounds: list[tuple[str, str]], otherwise: str) -> str:
    """Where the first of these loops that runs at all begins; loads from `otherwise` give nothing."""
    text = otherwise
    for begin, end in reversed(bounds):
        text = f"{begin} < {end} ? {begin} : {text}"
    return text


def _goes_through_memory(load: ir.Operation) -> bool:
    """Whether a loaded tile is the right operand of a product, itself or changed."""
    change = changing(load)
    value = load.results[0] if change is None else change.results[0]
    return any(use.owner.operation.name in DOTS and use.operand_number == len(list(use.owner.operation.operands)) - 1 for use in value.uses)


def _reads(op: ir.Operation, by_rows: bool) -> bool:
    """Whether an op is, or holds, a product with the rows (or the columns) of its right operand."""
    return any(inner.name in DOTS and ir.BoolAttr(inner.attributes["transpose_b"]).value == by_rows for inner in [op, *walk(op)])


def _from_outside(load: ir.Operation, loop: ir.Operation) -> bool:
    """Whether batch and head of a load are known before the loop."""
    return all(isinstance(v.owner, ir.Block) or v.owner.operation.block != body(loop) for v in list(load.operands)[1:3])


_RULES: dict[str, Rule] = {
    **dict.fromkeys(SCALARS, lambda printer, op: printer.core.statement(op)),
    **dict.fromkeys(DOTS, lambda printer, op: printer.products.print(op)),
    **dict.fromkeys(("tile.band", "tile.load_window"), lambda printer, op: None),  # maps read what is in shared memory, or make it
    "scf.for": lambda printer, op: printer._chain([op]),
    "scf.if": MfmaPrinter._branch,
    "tile.accumulate": lambda printer, op: printer.sums.accumulate(op, printer.base),
    "tile.fill": MfmaPrinter._fill,
    "tile.load": MfmaPrinter._load,
    "tile.map": lambda printer, op: printer.maps.print(op),
    "tile.scatter_add": lambda printer, op: printer.sums.scatter(op),
    "tile.store": lambda printer, op: printer.stores.store(op),
}
