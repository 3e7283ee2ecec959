"""`tile.map` as loops over elements and reductions of fragments."""

from collections.abc import Sequence

from attn_mlir.backends.gpu.residuals import RESIDUAL_SCALE
from attn_mlir.backends.gpu.structure import widened
from attn_mlir.backends.nvidia.tilelang.context import Context
from attn_mlir.backends.nvidia.tilelang.elements import ParallelLoop, column_values, reads_fragment
from attn_mlir.backends.nvidia.tilelang.expressions import Expressions, number, strip
from attn_mlir.backends.nvidia.tilelang.memory import memory_type
from attn_mlir.backends.nvidia.tilelang.names import hint
from attn_mlir.backends.nvidia.tilelang.products import turns
from attn_mlir.backends.nvidia.tilelang.tiles import TileBuffer, bound, exact
from attn_mlir.dialects.tile.names import DOTS
from attn_mlir.mlir import ir
from attn_mlir.passes.tiling.scalars import identity

PRODUCTS = (*DOTS, "tile.accumulate")


def dot_uses(value: ir.Value) -> list[tuple[ir.Operation, str]]:
    """The products that take a tile, and as which factor: "a" or "b"."""
    found = []
    for use in value.uses:
        op = use.owner.operation
        if op.name in PRODUCTS:
            first = {"tile.dot_add": 1, "tile.dot_rescale": 2}.get(op.name, 0)
            if use.operand_number >= first:
                found.append((op, "ab"[use.operand_number - first]))
    return found


def in_registers(context: Context, value: ir.Value) -> bool:
    """Whether some product can take a tile out of registers: the first factor of a sum whose rows are apart."""
    if context.pieces or (context.scans and not context.rows_apart(context.shape(ir.RankedTensorType(value.type).shape)[0])):
        return False
    return any(op.name in ("tile.dot_add", "tile.dot_rescale") and factor == "a" and not turns(op) for op, factor in dot_uses(value))


def in_shared(context: Context, value: ir.Value) -> bool:
    """Whether some product, or a sum along columns, needs a tile in shared memory."""
    if any(use.owner.operation.name == "tile.cumsum" for use in value.uses):
        return True
    if dot_uses(value) and context.scans and not in_registers(context, value):
        return True
    return any(factor == "b" or op.name in ("tile.dot", "tile.accumulate") or turns(op) for op, factor in dot_uses(value))


def put_off(op: ir.Operation) -> bool:
    """Whether all that a map makes is stored, right after it and nowhere else: then the stores compute it."""
    if not len(list(op.results)) or len(list(ir.ArrayAttr(op.attributes["reductions"]))):
        return False
    users = [use.owner.operation for result in op.results for use in result.uses]
    if not users or any(user.name != "tile.store" or user.block != op.block for user in users):
        return False
    following = [view.operation for view in op.block.operations]
    position = following.index(op)
    for later in following[position + 1 :]:
        if later in users:
            users.remove(later)
        if not users:
            return True
        if later.regions and later.name != "tile.map":
            return False
    return False


class Map:
    """Prints one `tile.map`."""

    def __init__(self, context: Context, op: ir.Operation) -> None:
        self._context, self._op = context, op
        self._block = op.regions[0].blocks[0]
        yielded = list(self._block.operations[-1].operation.operands)
        results, self._kinds = list(op.results), op.opview.kinds()
        count = len(results) - len(self._kinds)
        self._tiles = list(zip(results[:count], yielded[:count], strict=True))
        self._rows = list(zip(results[count:], yielded[count:], self._kinds, strict=True))

    def print(self) -> None:
        """Prints the loop, the reductions, and copies to shared memory."""
        context, op, block = self._context, self._op, self._block
        if self._round():
            return
        staged = self._stage() if len(block.arguments) == 2 and reads_fragment(context, block) else {}
        loop = ParallelLoop(context, list(op.operands), block, reduces=bool(self._rows) and not self._tiles)
        targets = [self._target(result, loop.bounds) for result, _ in self._tiles]
        sums = [self._contribution(value, kind, targets, loop) for _, value, kind in self._rows]
        made = [tile for tile in sums if tile not in self._known()]
        if targets or made:
            context.meet()
            self._fill(loop, targets, sums, staged)
        self._reduce(sums)
        for (result, _), target in zip(self._tiles, targets, strict=True):
            context.where[result] = target
            if target.scope == "fragment" and in_shared(context, result):
                copy = context.tiles.new(f"{hint_of(result)}_shared", "shared", target.shape, target.dtype)
                context.meet()
                context.line(f"T.copy({target.name}, {copy.name})")
                context.copies[result] = copy
            context.scatter(result)

    def _round(self) -> bool:
        """In scans, a fragment that is rounded and needed in shared memory alone goes there at once."""
        context = self._context
        source = narrowed(self._op) if context.scans else None
        result = self._op.results[0]
        if source is None or in_registers(context, result) or not in_shared(context, result) or context.tile(source).scope != "fragment":
            return False
        old = context.tile(source)
        tile = context.tiles.new(hint_of(result), "shared", old.shape, memory_type(ir.RankedTensorType(result.type).element_type))
        context.meet()
        context.line(f"T.copy({old.name}, {tile.name})")
        context.where[result] = tile
        return True

    def _known(self) -> list[TileBuffer]:
        """Tiles that the region reads."""
        extracts = [view.operation for view in self._block.operations if view.operation.name == "tensor.extract"]
        return [self._context.tile(op.operands[0]) for op in extracts]

    def _fill(self, loop: ParallelLoop, targets: list[TileBuffer], sums: list[TileBuffer], staged: dict[ir.Value, TileBuffer]) -> None:
        """The loop over elements."""
        context, block, known = self._context, self._block, self._known()
        body = loop.open()
        for value, tile in staged.items():
            body.bind(value, tile.at("j"))
        # What is overwritten is read first.
        for view in block.operations:
            inner = view.operation
            if inner.name == "tensor.extract" and context.tile(inner.operands[0]) in targets:
                body.name(inner.results[0])
        texts = [
            (target, self._limited(result, self._scaled(result, body, value), loop))
            for (result, value), target in zip(self._tiles, targets, strict=True)
        ]
        for (_, value, kind), tile in zip(self._rows, sums, strict=True):
            if tile not in targets and tile not in known:
                texts.append((tile, self._present(loop, body.emit(value), kind, value.type)))
        indices = ("i", "j")[: len(block.arguments)]
        for tile, text in texts:
            loop.line(f"{tile.at(*indices)} = {strip(text)}")

    def _scaled(self, result: ir.Value, body: Expressions, value: ir.Value) -> str:
        """An element, 2^11 times as large where it is what rounding to f16 leaves."""
        if result not in self._context.residuals:
            return body.emit(value)
        return f'T.cast({body.emit(widened(value))} * {RESIDUAL_SCALE}, "float16")'

    def _stage(self) -> dict[ir.Value, TileBuffer]:
        """Values of columns that are read from memory, once for all rows, in shared memory."""
        context, values = self._context, column_values(self._block)
        if not values:
            return {}
        loop = ParallelLoop(context, list(self._op.operands), self._block)
        tiles = {
            value: context.tiles.new(hint(value) or "staged", "shared", loop.bounds[1:], context.scalars.dtype(value.type, value))
            for value in values
        }
        body = loop.open([1])
        texts = [(tile, body.emit(value)) for value, tile in tiles.items()]
        for tile, text in texts:
            loop.line(f"{tile.at('j')} = {strip(text)}")
        return tiles

    def _target(self, result: ir.Value, bounds: Sequence[int]) -> TileBuffer:
        context = self._context
        if result in context.homes:
            return context.homes[result]
        dtype = memory_type(ir.RankedTensorType(result.type).element_type)
        direct = in_shared(context, result) and not in_registers(context, result) and not reads_fragment(context, self._block)
        direct = (direct and (len(bounds) == 2 or context.scans)) or (context.scans and len(bounds) == 1)
        return context.tiles.new(hint_of(result), "shared" if direct else "fragment", bounds, dtype)

    def _contribution(self, value: ir.Value, kind: str, targets: list[TileBuffer], loop: ParallelLoop) -> TileBuffer:
        """The fragment that is reduced: one that is read or made where it holds just that, else one of its own."""
        maker = None if isinstance(value.owner, ir.Block) else value.owner.operation
        if maker is not None and maker.name == "tensor.extract" and loop.guard(1) is None:
            read = self._context.tile(maker.operands[0])
            if list(maker.operands)[1:] == list(self._block.arguments) and (read.scope, read.dtype) == ("fragment", "float32"):
                return read
        for (result, yielded), target in zip(self._tiles, targets, strict=True):
            if yielded == value and target.scope == "fragment" and target.dtype == "float32":
                if loop.guard(1) is None or kind == "sum" or not dot_uses(result):
                    return target
        return self._context.tiles.new("terms", "fragment", loop.bounds, "float32")

    def _limited(self, result: ir.Value, text: str, loop: ParallelLoop) -> str:
        """The text of an element, neutral where it does not exist: 0 for products, else what reductions of it ignore."""
        element = ir.RankedTensorType(result.type).element_type
        if len(self._block.arguments) == 1:
            return text
        uses = dot_uses(result)
        if uses:
            guards = loop.guards
            for op, factor in uses:
                if op.name == "tile.accumulate" and factor == "a":
                    guards += self._missing_rows(op)
            return self._keep(list(dict.fromkeys(guards)), text, 0.0, element)
        reduced = [kind for _, value, kind in self._rows if value == self._value(result)]
        return self._present(loop, text, reduced[0], element) if reduced else text

    def _present(self, loop: ParallelLoop, text: str, kind: str, type_: ir.Type) -> str:
        """The text of what is reduced, neutral for columns that do not exist."""
        guard = loop.guard(1)
        return text if guard is None else self._keep([guard], text, identity(kind, type_), type_)

    def _value(self, result: ir.Value) -> ir.Value:
        return next(value for made, value in self._tiles if made == result)

    def _missing_rows(self, op: ir.Operation) -> list[str]:
        """The condition that a row is one of those that a sum over rows takes."""
        factor = op.operands[1]
        if isinstance(factor.owner, ir.Block) or factor.owner.operation.name != "tile.load":
            return []
        count = factor.owner.operation.operands[4]
        return [] if exact(count) and bound(count) == bound(self._op.operands[0]) else [f"i < {self._context.text(count)}"]

    def _keep(self, guards: list[str], text: str, otherwise: float, type_: ir.Type) -> str:
        if not guards:
            return text
        return f"T.if_then_else({' and '.join(guards)}, {strip(text)}, {number(otherwise, type_)})"

    def _reduce(self, sums: list[TileBuffer]) -> None:
        context = self._context
        for (result, value, kind), source in zip(self._rows, sums, strict=True):
            row = context.homes.get(result) or context.tiles.new(hint_of(result), "fragment", source.shape[:1], "float32")
            context.where[result] = row
            if kind == "sum":
                context.line(f"T.reduce_sum({source.name}, {row.name}, dim=1)")
            else:
                # Over no keys the lowest or highest finite number, not infinity.
                context.line(f"T.fill({row.name}, {number(identity(kind, value.type), value.type)})")
                context.line(f"T.reduce_{kind}({source.name}, {row.name}, dim=1, clear=False)")
            if context.scans:  # its users lie in other threads
                context.where[result] = context.tiles.new(f"{row.name}_shared", "shared", row.shape, row.dtype)
                context.line(f"T.copy({row.name}, {context.where[result].name})")
            context.scatter(result)


def narrowed(op: ir.Operation) -> ir.Value | None:
    """The tile that a `tile.map` does nothing with but round it."""
    block = op.regions[0].blocks[0]
    operations = [view.operation for view in block.operations]
    if [inner.name for inner in operations] != ["tensor.extract", "arith.truncf", "tile.yield"]:
        return None
    read, rounded, end = operations
    if list(read.operands)[1:] != list(block.arguments) or rounded.operands[0] != read.results[0] or len(list(end.operands)) != 1:
        return None
    source = read.operands[0]
    return source if ir.RankedTensorType(source.type).shape == ir.RankedTensorType(op.results[0].type).shape else None


def hint_of(result: ir.Value) -> str:
    """A name for what a map makes, after the value that it yields."""
    op = result.owner.operation
    position = ir.OpResult(result).result_number
    yielded = op.regions[0].blocks[0].operations[-1].operation.operands[position]
    kinds = list(ir.ArrayAttr(op.attributes["reductions"]))
    number_of_tiles = len(list(op.results)) - len(kinds)
    if position >= number_of_tiles:
        return f"row_{ir.StringAttr(kinds[position - number_of_tiles]).value}"
    while not isinstance(yielded.owner, ir.Block) and yielded.owner.operation.name in ("arith.truncf", "arith.select"):
        named = hint(yielded)
        if named is not None:
            return named
        yielded = yielded.owner.operation.operands[0 if yielded.owner.operation.name == "arith.truncf" else 1]
    return hint(yielded) or _carried_hint(result) or "tile"


def _carried_hint(result: ir.Value) -> str | None:
    """A name for what a loop begins with, after what it carries on."""
    for use in result.uses:
        loop, position = use.owner.operation, use.operand_number - 3
        if loop.name != "scf.for" or position < 0:
            continue
        after = list(loop.regions[0].blocks[0].operations[-1].operation.operands)[position]
        if not isinstance(after.owner, ir.Block) and after.owner.operation.name == "tile.map" and after != result:
            return f"{hint_of(after).removesuffix('_new')}_so_far"
    return None
