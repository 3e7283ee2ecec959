"""Prints the maps of pairs: weights from products, the values of query rows read from shared memory."""

from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import pairwise

from attn_mlir.backends.gpu.scalars import dependence, frontier
from attn_mlir.backends.gpu.structure import body as body_of
from attn_mlir.backends.gpu.structure import element_name, hint, maker, widened, yielded
from attn_mlir.backends.nvidia.hopper.core import PACKS, Core
from attn_mlir.backends.nvidia.hopper.divisors import divisors
from attn_mlir.backends.nvidia.hopper.dropout import (
    kept_in,
    keys_along_rows,
    only_for_dropout,
    print_column_bits,
    print_columns,
)
from attn_mlir.backends.nvidia.hopper.pairs_dropout import print_lane_bits, print_lane_words
from attn_mlir.backends.nvidia.hopper.pairs_kernel import key_count
from attn_mlir.backends.nvidia.hopper.pairs_layout import BackwardLayout, SharedBuffer, is_transposed
from attn_mlir.backends.nvidia.hopper.pairs_tiles import TileStores
from attn_mlir.backends.nvidia.hopper.pairs_uses import QuerySumsOfWarp, WeightUses, add_element, is_of_queries
from attn_mlir.backends.nvidia.hopper.pairs_values import early_value, slice_of
from attn_mlir.backends.nvidia.hopper.pairs_windows import PairWindows
from attn_mlir.backends.nvidia.hopper.tiles import RegRow, RegTile
from attn_mlir.mlir import ir

_I = frozenset({0})
_IDENTITY = {"sum": "0.0f", "max": "-3.40282347e+38f"}


@dataclass(frozen=True)
class WeightRegisters:
    """A tile of 16-bit weights in registers, `uint32_t name[columns / 4]`: operand A of products as it is."""

    name: str
    columns: int
    element: str


@dataclass(frozen=True)
class QueryValues:
    """Values of a step's query rows: the `slots` of those in shared memory, and those that are in `registers` already.

    `count`: how many queries there are, if the step has fewer than a whole block.
    """

    slots: dict[ir.Value, int]
    registers: dict[ir.Value, str]
    count: str | None


@dataclass(frozen=True)
class ProductsInFlight:
    """The products that a map reads: `first` prints the wait for the first of `products`, if there are any, `rest` that for all others.

    Early values are made of the first one in between; `pin` prints what half of them stay before. `made`: another warpgroup has made them.
    """

    products: list[ir.Value] = field(default_factory=list)
    first: Callable[[], None] = lambda: None
    rest: Callable[[], None] = lambda: None
    pin: Callable[[], None] | None = None
    made: bool = False


class PairMap:
    """One map over [keys, queries]."""

    def __init__(
        self,
        core: Core,
        op: ir.Operation,
        layout: BackwardLayout,
        rows: QueryValues,
        of_weights: tuple[WeightUses, dict[ir.Operation, SharedBuffer]],
        packed: dict[ir.Value, WeightRegisters],
        *,
        only: int | None = None,
        into: str = "",
    ) -> None:
        """`layout`: where bits of dropout are. `of_weights`: their uses, and the scatters that are made by tiles, and where.

        What becomes of tiles of 16 bits goes to `packed`. `only`: the number of the one result that is made, in registers of
        the name `into`.
        """
        self.core, self.op, self.layout, self.packed = core, op, layout, packed
        self.slots, self.read, self.limit = rows.slots, rows.registers, rows.count
        self.queries, (self.uses, self.tiles) = layout.kernel.queries, of_weights
        self.windows = PairWindows(core, layout, body_of(op), op.block, "stage")
        self.block, self.results, self.values = body_of(op), list(op.results), yielded(body_of(op))
        self.kinds, self.into = op.opview.kinds(), into
        if only is not None:
            self.results, self.values = [self.results[only]], [self.values[only]]
        self.stored = len(self.results) - len(self.kinds)
        self.depends = dependence(self.block)
        kept = kept_in(self.block)
        self.kept = kept if kept is not None and keys_along_rows(kept) else None
        # A step may have several maps: weights in f32, which are scattered, then the same in 16 bits.
        number = [view.operation for view in op.block.operations if view.operation.name == "tile.map"].index(op)
        self.of_queries: dict[ir.Operation, QuerySumsOfWarp] = {}
        self.at_column, self.left = (f"{name}_{number}" if number else name for name in ("at_column", "left"))

    def print(self, awaited: ProductsInFlight) -> None:
        """Prints the map, and the waits for its products."""
        with divisors(self.core, self.block):
            self._print(awaited)

    def _print(self, awaited: ProductsInFlight) -> None:
        core, queries, limit, products = self.core, self.queries, self.limit, awaited.products
        targets, sums = self._targets()
        fragment = core.tiles.get(products[0]) if products else None
        early = early_value(self.block, products[0], queries <= 64) if len(products) > 1 and isinstance(fragment, RegTile) else None
        for value in frontier(self.block, self.depends, frozenset()):
            core.scalars.emit(value)
        self._row_values()
        kept_bits = self._kept_bits()
        # Otherwise the compiler keeps all columns of a thread in registers through all steps.
        core.writer.line(f"const int {self.at_column} = attn::opaque(column);")
        self.windows.declare()
        stores = TileStores(core, {op: (buffer, self.windows.start(buffer)) for op, buffer in self.tiles.items()})
        if products:
            awaited.first()
        if early is not None and isinstance(fragment, RegTile) and not awaited.made:
            self._early(early, fragment, awaited.pin)
        awaited.rest()
        if limit is not None:
            core.writer.line(f"const int {self.left} = {limit} - {self.at_column};")
        needed = slice_of(self.values, self.block, early)
        self.windows.begin(needed)
        stores.declare()
        places = self._places_of_products(targets, products, early) if self._is_tight(products) else {}
        scattered = [op for result in self.results for op in self.uses.scattered.get(result, []) if op not in stores.tiles]
        self.of_queries = {op: QuerySumsOfWarp(core, op, queries) for op in scattered if is_of_queries(op)}
        with core.unrolled("c", queries // 8):
            loads = self._column_loads(needed)
            self.windows.load(needed)
            stores.begin()
            parts = {name: core.names.fresh(f"{name}_4") for name, packed in targets if packed and name not in places}
            self._two_bits(kept_bits)
            if parts:
                core.writer.line(f"float {', '.join(f'{part}[4]' for part in parts.values())};")
            with core.unrolled("e", 2):
                self._column(loads, needed)
                with core.unrolled("h", 2):
                    self._bind_row()
                    if early is not None and isinstance(fragment, RegTile):
                        core.scalars.bind(early, core.names.fresh("early"))
                        core.writer.line(f"const float {core.scalars.emit(early)} = {fragment.name}[4 * c + 2 * h + e];")
                    self._elements(targets, parts, places, sums, stores)
            for (name, _), result in zip(targets, self.results, strict=False):
                if name in parts:
                    pack = PACKS[element_name(self.uses.rounded.get(result, result).type)]
                    with core.unrolled("h", 2):
                        core.writer.line(f"{name}[2 * c + h] = attn::{pack}({parts[name]}[2 * h], {parts[name]}[2 * h + 1]);")
            stores.end()
        for of_queries in self.of_queries.values():
            of_queries.add(limit)
        self._pack_places(targets, places)
        self._reduce(sums)

    def _early(self, early: ir.Value, fragment: RegTile, pin: Callable[[], None] | None) -> None:
        """Puts early values where the elements of their product are, a half before what `pin` prints."""
        core, needed = self.core, slice_of([early], self.block)
        self.windows.begin(needed)
        halves = (0, self.queries // 16, self.queries // 8) if pin is not None else (0, self.queries // 8)
        for begin, end in pairwise(halves):
            with core.unrolled("c", end, start=str(begin)):
                loads = self._column_loads(needed)
                self.windows.load(needed)
                with core.unrolled("e", 2):
                    self._column(loads, needed - {early})
                    with core.unrolled("h", 2):
                        self._bind_row()
                        core.writer.line(f"{fragment.name}[4 * c + 2 * h + e] = {core.scalars.emit(early)};")
            if pin is not None and begin == 0:
                pin()

    def _is_tight(self, products: list[ir.Value]) -> bool:
        """Whether registers suffice only so: steps of 80 queries, and scores that wait as they are (relu: ptxas serialises else)."""
        if self.queries <= 64 or is_transposed(self.queries) or not products:
            return is_transposed(self.queries)
        early, alone = early_value(self.block, products[0]), not (self.layout.windows or self.layout.bands or self.uses.scattered)
        names = [op.name for value in slice_of([early], self.block) if (op := maker(value)) is not None] if early is not None else ["math."]
        return alone and not any(name.startswith("math.") for name in names)

    def _places_of_products(self, targets: list[tuple[str, bool]], products: list[ir.Value], early: ir.Value | None) -> dict[str, str]:
        """By the name of what is packed, the fragment of a product whose registers hold it until all is computed.

        Registers suffice so: else packed words are there beside both products, and the products after them find no room. What is the early
        value stays where it is.
        """
        free = [tile.name for value in products if isinstance(tile := self.core.tiles.get(value), RegTile)]
        packed = [(name, value) for (name, is_packed), value in zip(targets, self.values, strict=False) if is_packed]
        if len(packed) > len(free) or any(not is_packed for _, is_packed in targets):
            return {}
        found = {name: free.pop(0) for name, value in packed if early is not None and widened(value) == early}
        return found | {name: free.pop(0) for name, _ in packed if name not in found}

    def _pack_places(self, targets: list[tuple[str, bool]], places: dict[str, str]) -> None:
        """Packs what `places` hold, the last first: the first one is multiplied last."""
        for (name, _), result in reversed(list(zip(targets, self.results, strict=False))):
            if name in places:
                pack = PACKS[element_name(self.uses.rounded.get(result, result).type)]
                with self.core.unrolled("c", self.queries // 4):
                    self.core.writer.line(f"{name}[c] = attn::{pack}({places[name]}[2 * c], {places[name]}[2 * c + 1]);")

    def _kept_bits(self) -> str:
        """Before the loops over elements: bits of dropout, and their name where they have one."""
        if self.kept is None:
            return ""
        if self.layout.words is None:
            return print_columns(self.core, self.kept, self.queries)
        print_lane_words(self.core, self.layout, self.kept)
        return ""

    def _two_bits(self, name: str) -> None:
        """In the loop over `c`: those of two queries."""
        if self.kept is None:
            return
        if self.layout.words is not None:
            print_lane_bits(self.core, self.layout, self.kept)
        else:
            print_column_bits(self.core, self.kept, name)

    def _targets(self) -> tuple[list[tuple[str, bool]], list[RegRow]]:
        """Names of the results, and whether they are packed; the sums."""
        core, queries, targets = self.core, self.queries, []
        for value, result in zip(self.values[: self.stored], self.results, strict=False):
            rounded = self.uses.rounded.get(result, result)
            element = element_name(rounded.type)
            if element in PACKS:
                name = self.into or core.names.fresh(hint(widened(value), "weights"))
                core.writer.line(*([] if self.into else [f"uint32_t {name}[{queries // 4}];"]))
                self.packed[rounded] = WeightRegisters(name, queries, element)
                targets.append((name, True))
            elif not self.uses.in_registers(result):
                targets.append(("", False))
            else:
                fragment = core.fragment(hint(value, "weights"), queries)
                core.tiles[result] = fragment
                targets.append((fragment.name, False))
        sums = []
        for kind, result in zip(self.kinds, self.results[self.stored :], strict=True):
            row = core.row({"sum": "key_sum", "max": "key_max"}[kind], _IDENTITY[kind])
            core.tiles[result] = row
            sums.append(row)
        return targets, sums

    def _row_values(self) -> None:
        """What depends on the key alone: two values for each."""
        core = self.core
        arrays: dict[ir.Value, str] = {}
        for value in frontier(self.block, self.depends, _I):
            op = maker(value)
            if (op is None or op.name != "tensor.extract") and not (self.kept is not None and only_for_dropout(value)):
                arrays[value] = core.names.fresh(hint(value, "of_key"))
        for value, name in arrays.items():
            core.writer.line(f"{core.scalars.type_of(value)} {name}[2];")
        if arrays:
            with core.unrolled("h", 2):
                self._bind_row()
                for value, name in arrays.items():
                    core.writer.line(f"{name}[h] = {core.scalars.emit(value)};")
        for value, name in arrays.items():
            core.scalars.bind(value, f"{name}[h]")

    def _bind_row(self) -> None:
        self.core.scalars.bind(self.block.arguments[0], "(row + 8 * h)")

    def _column_loads(self, needed: set[ir.Value]) -> dict[ir.Value, str]:
        """Reads the staged values of two queries each."""
        core, names = self.core, {}
        stride = 4 * core.width
        for value, slot in self.slots.items():
            if value in needed:
                names[value] = core.names.fresh(hint(value, "of_query"))
                text = f"{self.read[value]}[c]" if value in self.read else f"attn::load_shared2(columns + {slot * stride} + 32 * c)"
                core.writer.line(f"const float2 {names[value]} = {text};")
        return names

    def _column(self, loads: dict[ir.Value, str], needed: set[ir.Value]) -> None:
        core, limit = self.core, self.limit
        position = f"{self.at_column} + 8 * c + e"
        core.scalars.bind(self.block.arguments[1], f"({position})")
        if limit is not None and needed & set(self.values):
            core.writer.line(f"const bool inside = 8 * c + e < {self.left};")
        if limit is not None and self._reads_memory(needed):
            core.writer.line(f"const int query = min({position}, {limit} - 1);")
            core.scalars.bind(self.block.arguments[1], "query")
        else:
            for value in self._positions():
                core.scalars.bind(value, "(column_float + (float)(8 * c + e))")
        for value, name in loads.items():
            text = f"(e ? {name}.y : {name}.x)"
            core.scalars.bind(value, f"__float_as_int{text}" if core.scalars.type_of(value) == "int" else text)

    def _reads_memory(self, needed: set[ir.Value]) -> bool:
        """Whether an element at the query's position is read from global memory: it must exist."""
        staged = slice_of(self.slots, self.block)
        reads = [v for v in needed if (op := maker(v)) is not None and op.name == "memref.load" and 1 in self.depends.get(v, ())]
        return any(value not in staged for value in reads)

    def _positions(self) -> list[ir.Value]:
        """Where the index of the query is taken as a float."""
        found = []
        for view in self.block.operations:
            cast = maker(view.operation.operands[0]) if view.operation.name == "arith.sitofp" else None
            if cast is not None and cast.name == "arith.index_cast" and cast.operands[0] == self.block.arguments[1]:
                found.append(view.operation.results[0])
        return [value for value in found if isinstance(value.type, ir.F32Type)]

    def _elements(
        self,
        targets: list[tuple[str, bool]],
        parts: dict[str, str],
        places: dict[str, str],
        sums: list[RegRow],
        stores: TileStores,
    ) -> None:
        core, limit = self.core, self.limit
        later: list[str] = []
        for (name, _), value, result in zip(targets, self.values, self.results, strict=False):
            text = core.number(value)
            for scatter in self.uses.scattered.get(result, []):
                self._scatter(scatter, text, stores)
            if not name:
                continue
            place = f"{parts[name]}[2 * h + e]" if name in parts else f"{places.get(name, name)}[4 * c + 2 * h + e]"
            line = f"{place} = {text if limit is None else f'inside ? {text} : 0.0f'};"
            if name in places:
                later.append(line)  # other values may be computed from the products there
            else:
                core.writer.line(line)
        for row, kind, value in zip(sums, self.kinds, self.values[self.stored :], strict=True):
            text = core.scalars.emit(value)
            text = text if limit is None else f"(inside ? {text} : {_IDENTITY[kind]})"
            core.writer.line(f"{row.name}[h] = {self._combined(kind, f'{row.name}[h]', text)};")
        core.writer.line(*later)

    def _scatter(self, op: ir.Operation, text: str, stores: TileStores) -> None:
        """Adds an element to its place in memory, if it exists, or gives it to the tile that is added."""
        core, block, exists = self.core, body_of(op), [] if self.limit is None else ["inside"]
        tiled = op in stores.tiles
        with core.scope("" if tiled else f"if ({' && '.join([f'row + 8 * h < {key_count(core, self.layout.kernel)}', *exists])})"):
            core.scalars.bind(block.arguments[0], "(row + 8 * h)")
            core.scalars.bind(block.arguments[1], f"({self.at_column} + 8 * c + e)")
            for view in block.operations:
                if view.operation.name == "tensor.extract" and view.operation.operands[0] in self.uses.scattered:
                    core.scalars.bind(view.operation.results[0], text)
            if op in self.of_queries:
                self.of_queries[op].element()
                return
            if not tiled:
                add_element(core, op)
                return
            value, present = (core.scalars.emit(each) for each in yielded(block)[:2])
            stores.element(op, exists if present == "true" else [*exists, present], value)

    def _combined(self, kind: str, a: str, b: str) -> str:
        return f"{a} + {b}" if kind == "sum" else f"{self.core.max_nan(kind)}({a}, {b})"

    def _reduce(self, sums: list[RegRow]) -> None:
        if not sums:
            return
        with self.core.unrolled("h", 2):
            for row, kind in zip(sums, self.kinds, strict=True):
                for distance in (1, 2):
                    other = f"__shfl_xor_sync(0xffffffffu, {row.name}[h], {distance})"
                    self.core.writer.line(f"{row.name}[h] = {self._combined(kind, f'{row.name}[h]', other)};")
