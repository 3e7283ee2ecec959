"""What is decided about the tiles of a scan before it is printed: which are results of products, and which way lanes look at them."""

from attn_mlir.backends.gpu.structure import body, is_row, is_tile, maker, operations, yielded
from attn_mlir.dialects.numbers import flag
from attn_mlir.dialects.tile.names import DOTS
from attn_mlir.mlir import ir
from attn_mlir.passes.regions import find_all, walk

SOLVE = "tile.solve_unit"


class ChunkLayout:
    """Facts of a kernel.

    `fragments`: tiles of two dimensions in the layout of matrix products. `by_columns(tile)`: whether lanes have columns of a fragment.
    `wants(tile)`: in which forms ("rows", "columns") products take a tile.
    `solves`: the kernel's systems; waves have whole columns of their solutions.
    """

    def __init__(self, kernel: ir.Operation) -> None:
        self.kernel = kernel
        self.fragments: set[ir.Value] = set()
        self._class: dict[ir.Value, ir.Value] = {}
        self.solves = find_all(kernel, SOLVE)
        while self._pass():
            pass
        self._columns = {self._find(value) for value in self.fragments if self._looks_down(value)}
        self._columns -= {self._find(op.results[0]) for op in find_all(kernel, "tile.map") if self._sums_rows(op) and self._is_fragment(op)}
        self._whole = {self._find(op.results[0]) for op in self.solves}
        self._columns |= self._whole

    def by_columns(self, tile: ir.Value) -> bool:
        """Whether a lane has neighbouring rows of one column."""
        return self._find(tile) in self._columns

    def whole_columns(self, tile: ir.Value) -> bool:
        """Whether waves have whole columns of a fragment."""
        return self._find(tile) in self._whole

    # ---- which tiles are fragments

    def _pass(self) -> bool:
        before = len(self.fragments), len(self._class)
        for op in walk(self.kernel):
            if op.name in DOTS:
                self._join(op.results[0], *([op.operands[0]] if op.name != "tile.dot" else []))
            elif op.name == SOLVE:
                self._join(op.results[0], op.operands[1])
            elif op.name == "scf.for":
                for start, argument, value, result in zip(
                    list(op.operands)[3:], list(body(op).arguments)[1:], yielded(body(op)), op.results, strict=True
                ):
                    if is_tile(start) and not is_row(start.type):
                        self._join(argument, start, value, result)
            elif op.name == "tile.map" and len(list(op.operands)) == 2:
                own = [tile for tile in own_tiles(op) if tile in self.fragments]
                tiles = [result for result in op.results if not is_row(result.type)]
                if own or any(tile in self.fragments for tile in tiles):
                    self._join(*tiles, *own, *[tile for tile in own_tiles(op) if self._is_load_for(tile)])
        return before != (len(self.fragments), len(self._class))

    def _is_load_for(self, tile: ir.Value) -> bool:
        """Whether a loaded tile is read by maps over fragments only, at their own elements."""
        op = maker(tile)
        if op is None or op.name != "tile.load":
            return False
        for use in tile.uses:
            reader = use.owner.operation.parent
            if use.owner.operation.name != "tensor.extract" or reader is None or reader.name != "tile.map":
                return False
            if tile not in own_tiles(reader) or not any(other in self.fragments and other != tile for other in own_tiles(reader)):
                return False
        return True

    def _is_fragment(self, op: ir.Operation) -> bool:
        return any(tile in self.fragments for tile in [*own_tiles(op), *op.results])

    def _join(self, *tiles: ir.Value) -> None:
        for tile in tiles:
            self.fragments.add(tile)
            a, b = self._find(tiles[0]), self._find(tile)
            if a != b:
                self._class[b] = a

    def _find(self, tile: ir.Value) -> ir.Value:
        while tile in self._class:
            tile = self._class[tile]
        return tile

    # ---- which way lanes look

    def _looks_down(self, tile: ir.Value) -> bool:
        wanted = wants(tile)
        return "columns" in wanted and "rows" not in wanted

    def _sums_rows(self, op: ir.Operation) -> bool:
        return len(ir.ArrayAttr(op.attributes["reductions"])) > 0


def own_tiles(op: ir.Operation) -> list[ir.Value]:
    """The tiles that a map of two dimensions reads at its own element."""
    indices = list(body(op).arguments)
    found = [read.operands[0] for read in operations(body(op)) if read.name == "tensor.extract" and list(read.operands)[1:] == indices]
    return list(dict.fromkeys(found))


def wants(tile: ir.Value) -> set[str]:
    """In which forms products take a tile: "rows" (neighbouring terms lie along its rows) or "columns"."""
    found = set[str]()
    for use in tile.uses:
        op = use.owner.operation
        number = use.operand_number - (len(list(op.operands)) - 2)
        if op.name in DOTS and number >= 0:
            found.add("rows" if transposes(op)[number] != (number == 0) else "columns")
    return found


def transposes(op: ir.Operation) -> tuple[bool, bool]:
    """Whether a product transposes its first, and its second factor."""
    return flag(op, "transpose_a"), flag(op, "transpose_b")


def held_wants(tile: ir.Value) -> set[str]:
    """`wants` of a tile and of all tiles that maps make of it."""
    found, pending, seen = set[str](), [tile], set[ir.Value]()
    while pending:
        value = pending.pop()
        if value in seen:
            continue
        seen.add(value)
        found |= wants(value)
        for use in value.uses:
            outer = use.owner.operation.parent
            if (
                use.owner.operation.name == "tensor.extract"
                and outer is not None
                and outer.name == "tile.map"
                and value in own_tiles_of(outer)
            ):
                pending += [result for result in outer.results if not is_row(result.type)]
    return found


def own_tiles_of(op: ir.Operation) -> list[ir.Value]:
    """`own_tiles` of a map of any rank."""
    return own_tiles(op) if len(list(op.operands)) == 2 else []
