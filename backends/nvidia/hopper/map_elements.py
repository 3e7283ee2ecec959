"""Prints a `tile.map` over the elements of a tile in registers."""

from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace

from attn_mlir.backends.gpu.passes.share_reciprocals import SHARED, helper_of, shared_divisions, unclamped
from attn_mlir.backends.gpu.scalars import dependence, float_literal, frontier
from attn_mlir.backends.gpu.structure import element_name, hint, is_quotient, widened
from attn_mlir.backends.nvidia.hopper.column_bounds import (
    ColumnBound,
    comparisons,
    falls,
    is_minus_inf,
    only_compared,
    upper_bound,
    vanishes,
)
from attn_mlir.backends.nvidia.hopper.divisors import divisors
from attn_mlir.backends.nvidia.hopper.dropout import (
    kept_in,
    keys_along_columns,
    only_for_dropout,
    packed_alone,
    print_all_row_bits,
    print_row_bits,
    print_rows,
)
from attn_mlir.backends.nvidia.hopper.float_columns import FloatColumns
from attn_mlir.backends.nvidia.hopper.map_state import MapState
from attn_mlir.backends.nvidia.hopper.row_reductions import IDENTITY, combined, reduce_rows
from attn_mlir.backends.nvidia.hopper.tiles import RegRow, RegTile
from attn_mlir.backends.nvidia.hopper.window_reads import WindowReads
from attn_mlir.mlir import ir

_I, _J = frozenset({0}), frozenset({1})


class MapElements:
    """One map over the elements of a tile, printed by `print`."""

    def __init__(
        self, maps: MapState, op: ir.Operation, wanted: Collection[ir.Value] | None, fixed: Mapping[ir.Value, float | ir.Value]
    ) -> None:
        self.maps, self.core, self.op, self.fixed = maps, maps.core, op, fixed
        self.block = op.regions[0].blocks[0]
        self.depends = dependence(self.block)
        made = list(zip(self.block.operations[-1].operation.operands, op.results, strict=True))
        kinds = op.opview.kinds()
        whole = len(made) - len(kinds)
        kept = [number for number, (_, result) in enumerate(made) if wanted is None or result in wanted]
        self.values = [made[number][0] for number in kept]
        self.results = [made[number][1] for number in kept]
        self.kinds = [kinds[number - whole] for number in kept if number >= whole]
        self.stored = len(self.results) - len(self.kinds)
        self.columns = self._columns()
        self.extent = self._limit()
        self.comparisons = comparisons(self.block, self.depends, self.core.scalars.ranges)
        self.ended = self._ended()
        kept = kept_in(self.block)
        self.kept = kept if kept is not None and keys_along_columns(kept) else None
        self.places = FloatColumns(self.core, self.block, self.depends)
        self.windows = WindowReads(self.core, self.block)

    def _columns(self) -> int:
        """How many columns the registers have."""
        for view in self.block.operations:
            if view.operation.name == "tensor.extract":
                tile = self.core.tiles.get(view.operation.operands[0])
                if isinstance(tile, RegTile):
                    return tile.columns
        for result in self.results[: self.stored]:
            return -(-self.core.columns(result.type) // 8) * 8
        return self.core.width

    def print(self) -> None:
        core = self.core
        with core.scope(None):
            for value, known in self.fixed.items():
                if isinstance(known, float):
                    core.scalars.bind(value, float_literal(known))
            limit = None if self.extent is None else core.scalars.emit(self.extent)
            for value in [*self._from_outside(), *self._needed(frozenset())]:
                core.scalars.emit(value)
            # Rows are those of other lanes here, so that nothing may stand for values of this thread's rows yet.
            kept_bits = self._kept_bits()
            with divisors(core, self.block):
                sums = self._print(limit, kept_bits)
        core.tiles.update(zip(self.results[self.stored :], sums, strict=True))
        self._drop_when_packed(kept_bits)
        for value, result in zip(self.values[: self.stored], self.results, strict=False):
            if self.ended is not None and value == self.ended[0] and self.extent is not None:
                self.maps.ended[result] = self.extent

    def _print(self, limit: str | None, kept_bits: str) -> list[RegRow]:
        """Prints all that depends on rows or columns; the rows of what is reduced."""
        core = self.core
        self._end(limit)
        targets = self._targets(limit)
        sums = []
        for kind, result in zip(self.kinds, self.results[self.stored :], strict=True):
            sums.append(core.row({"sum": "row_sum", "max": "row_max", "min": "row_min"}[kind], IDENTITY[kind], result in self.maps.partial))
        self._row_values(limit)
        self.places.declare()
        shared = [] if self.extent is not None else shared_divisions(self.block, self.depends)
        self.windows.declare(not shared)
        tops = self._largest(targets, sums)
        if len(tops) < len(sums) or any(target is not None for target in targets):
            rest = [None if row in tops else row for row in sums]
            if shared:
                if self.tested is not None:
                    print_all_row_bits(core, self.tested, kept_bits, self.columns)
                self._groups(shared, targets, rest)
            else:
                self._all_columns(limit, targets, rest, kept_bits)
        for row, fragment in tops.items():
            core.writer.line(f"attn::largest_in_rows({fragment.name}, {row.name});")
        reduce_rows(self.core, self.kinds, [None if row in tops else row for row in sums])
        return sums

    def _kept_bits(self) -> str:
        """The words of `print_rows`; what only products read is dropped when it is packed, and is the weight itself until then."""
        self.late: dict[ir.Value, ir.Value] = {}
        self.tested = self.kept
        if self.kept is None:
            return ""
        for value, result in zip(self.values[: self.stored], self.results, strict=False):
            weight = packed_alone(self.kept, value, result)
            if weight is not None and self.values.count(value) == 1 and result not in self.maps.targets:
                self.late[result] = weight
        if self.late and len(self.late) == len(list(self.kept.results[0].uses)):
            self.tested = None
        ready = self.maps.ready.get(self.kept)
        return print_rows(self.core, self.kept, self.columns) if ready is None else ready

    def _drop_when_packed(self, kept_bits: str) -> None:
        for result in self.late:
            tile = self.core.tiles[result]
            if isinstance(tile, RegTile):
                self.core.tiles[result] = replace(tile, kept=kept_bits)

    def _from_outside(self) -> list[ir.Value]:
        """Floats that ops of the kernel's body make for all of the map's elements."""
        read = [value for view in self.block.operations for value in view.operation.operands]
        made = [value for value in read if isinstance(value.type, ir.F32Type) and not isinstance(value.owner, ir.Block)]
        outside = [value for value in made if value.owner.operation.block != self.block]
        return [value for value in dict.fromkeys(outside) if value.owner.operation.name != "arith.constant"]

    def _needed(self, arguments: frozenset[int]) -> list[ir.Value]:
        """`frontier`, without what only comparisons with bounds need."""
        found = [value for value in frontier(self.block, self.depends, arguments) if not only_compared(value, self.comparisons)]
        return [value for value in found if not arguments or self.kept is None or not only_for_dropout(value)]

    def _ended(self) -> tuple[ir.Value, ColumnBound | None] | None:
        """A result whose largest elements are wanted, too: it will be -inf in columns that do not exist, which nothing else reads.

        With it a comparison that bounds the columns where it is not -inf, if there is one: it can bound them to those that exist, too.
        """
        largest = [value for value, kind in zip(self.values[self.stored :], self.kinds, strict=True) if kind == "max"]
        for value in self.values[: self.stored] if self.extent is not None else []:
            if value not in largest or self._same(value) is not None or not isinstance(value.type, ir.F32Type):
                continue
            op = None if isinstance(value.owner, ir.Block) else value.owner.operation
            if op is None or op.name != "arith.select" or not is_minus_inf(op.operands[2]):
                return value, None
            return value, upper_bound(op.operands[0], self.comparisons)
        return None

    def _guarded(self, value: ir.Value, kind: str) -> bool:
        """Whether a result that is stored, or reduced in this way, needs to be told which columns exist."""
        if self.extent is None:
            return False
        if self.ended is not None and value == self.ended[0]:
            return kind != "max"
        sources = [view.operation.operands[0] for view in self.block.operations if view.operation.name == "tensor.extract"]
        ended = [source for source in sources if source in self.maps.ended and self.maps.ended[source] == self.extent]
        neutral = {"max": falls, "sum": vanishes, "stored": vanishes}.get(kind)
        return neutral is None or not any(neutral(value, source) for source in ended)

    def _end(self, limit: str | None) -> None:
        """Puts -inf into the columns that do not exist of tiles whose largest elements are wanted: nothing else reads them there."""
        for value, kind in zip(self.values[self.stored :], self.kinds, strict=True):
            same = self._same(value)
            if kind != "max" or self.extent is None or same is None or same.element != "f32" or same.columns != self.columns:
                continue
            source = value.owner.operation.operands[0]
            maker = source.owner.operation
            if maker.name == "tile.map" and source in self.maps.ended:
                continue
            self.maps.ended[source] = self.extent
            with self.core.unrolled("c", same.registers):
                element = f"{same.name}[c]"
                self.core.writer.line(f"{element} = c / 4 * 8 + c % 2 < {limit} - column ? {element} : -INFINITY;")

    def _limit(self) -> ir.Value | None:
        """The number of columns that exist, where it can be less than those in registers."""
        extent = list(self.op.operands)[1]
        if not isinstance(extent.owner, ir.Block) and extent.owner.operation.name == "arith.constant":
            number = ir.IntegerAttr(extent.owner.operation.attributes["value"]).value
            return None if number >= self.columns or not self.kinds else extent
        return extent

    def _targets(self, limit: str | None) -> list[RegTile | None]:
        """Registers for the results; None for those that are another tile."""
        core, targets = self.core, []
        for value, result in zip(self.values[: self.stored], self.results, strict=False):
            same = self._same(value)
            element = element_name(result.type)
            if same is not None and (limit is None or element == "f32"):
                core.tiles[result] = same
                targets.append(None)
                continue
            target = self.maps.targets.get(result)
            if target is None:
                target = core.fragment(hint(widened(value), "s" if element == "f32" else "weights"), self.columns, element)
            core.tiles[result] = target
            targets.append(target)
        return targets

    def _same(self, value: ir.Value) -> RegTile | None:
        if isinstance(value.owner, ir.Block) or value.owner.operation.name != "tensor.extract":
            return None
        tile = self.core.tiles.get(value.owner.operation.operands[0])
        return tile if isinstance(tile, RegTile) else None

    def _row_values(self, limit: str | None) -> None:
        """What depends on the row alone: two values for each."""
        core = self.core
        needed = [value for value in self._needed(_I) if self._row_of(value) is None]
        for value in dict.fromkeys(value for comparison in self.comparisons for value, _ in comparison.terms):
            if not self.depends.get(value):
                core.scalars.emit(value)
        self.bounds = {comparison: core.names.fresh("bound") for comparison in self.comparisons}
        reciprocals = self._reciprocals()
        arrays = {value: core.names.fresh(hint(value, "of_row")) for value in needed if value not in self.maps.rows}
        inverse = {value: core.names.fresh("inverse") for value in reciprocals}
        for value, name in arrays.items():
            core.writer.line(f"{core.scalars.type_of(value)} {name}[2];")
        for name in inverse.values():
            core.writer.line(f"float {name}[2];")
        for name in self.bounds.values():
            core.writer.line(f"int {name}[2];")
        if arrays or inverse or self.bounds:
            with core.unrolled("h", 2):
                core.scalars.bind(self.block.arguments[0], "(row + 8 * h)")
                for value, name in arrays.items():
                    core.writer.line(f"{name}[h] = {core.scalars.emit(value)};")
                for value, name in inverse.items():
                    core.writer.line(f"{name}[h] = 1.0f / {core.scalars.emit(value)};")
                for comparison, name in self.bounds.items():
                    core.writer.line(f"{name}[h] = {self._bound(comparison, limit)} - column;")
        for value in needed:
            core.scalars.bind(value, f"{arrays.get(value) or self.maps.rows[value]}[h]")
        self._inverse = inverse

    def _bound(self, comparison: ColumnBound, limit: str | None) -> str:
        """The bound of a row, as an expression; of columns that exist, where the comparison stands for that, too."""
        text = ""
        for value, factor in comparison.terms:
            times = f"{abs(factor)} * " if abs(factor) > 1 else ""
            text += f" {'-' if factor < 0 else '+'} {times}{self.core.scalars.emit(value)}"
        if comparison.constant or not text:
            text += f" {'-' if comparison.constant < 0 else '+'} {abs(comparison.constant)}"
        text = text.removeprefix(" + ").strip()
        if self.ended is not None and comparison == self.ended[1]:
            return f"min({text}, {limit}{' - 1' if comparison.operator == '<=' else ''})"
        return text

    def _row_of(self, value: ir.Value) -> RegRow | None:
        if isinstance(value.owner, ir.Block) or value.owner.operation.name != "tensor.extract":
            return None
        tile = self.core.tiles.get(value.owner.operation.operands[0])
        return tile if isinstance(tile, RegRow) else None

    def _reciprocals(self) -> list[ir.Value]:
        """Divisors in f32 that are the same along the row: the division becomes a product."""
        found = []
        for view in self.block.operations:
            op = view.operation
            if is_quotient(op) and isinstance(op.result.type, ir.F32Type) and 1 in self.depends[op.result]:
                divisor = op.operands[1]
                constant = not isinstance(divisor.owner, ir.Block) and divisor.owner.operation.name == "arith.constant"
                if self.depends.get(divisor, frozenset()) == _I and not constant:
                    found.append(divisor)
        return list(dict.fromkeys(found))

    def _largest(self, targets: list[RegTile | None], sums: list[RegRow]) -> dict[RegRow, RegTile]:
        """Maxima of whole blocks whose elements are in registers anyway: these are searched afterwards, with integer instructions."""
        found: dict[RegRow, RegTile] = {}
        for value, kind, row in zip(self.values[self.stored :], self.kinds, sums, strict=True):
            same = self._same(value)
            for other, target in zip(self.values[: self.stored], targets, strict=True):
                same = target if other == value and target is not None and target.element == "f32" else same
            if kind == "max" and not self._guarded(value, kind) and same is not None and same.columns == self.columns:
                found[row] = same
        return found

    def _all_columns(self, limit: str | None, targets: list[RegTile | None], sums: list[RegRow | None], kept_bits: str) -> None:
        core, of_rows = self.core, ""
        if self.tested is not None:
            of_rows = core.names.fresh("kept_of_row")
            core.writer.line(f"unsigned {of_rows}[2];")
        with core.unrolled("c", self.columns // 8):
            if self.tested is not None:
                print_row_bits(core, self.tested, kept_bits, of_rows)
            self.windows.load()
            with core.unrolled("e", 2):
                self._column(limit, targets, sums)

    def _column(self, limit: str | None, targets: list[RegTile | None], sums: list[RegRow | None]) -> None:
        core, writer = self.core, self.core.writer
        # What is read at a position past the last one is not used, but it must exist.
        reads = [view.operation for view in self.block.operations if view.operation.name == "memref.load"]
        clamped = limit is not None and any(1 in self.depends[op.result] for op in reads)
        position = f"min(column + 8 * c + e, max({limit} - 1, 0))" if clamped else "(column + 8 * c + e)"
        core.scalars.bind(self.block.arguments[1], position)
        if not clamped:
            self.places.bind()
        kinds = ["stored"] * self.stored + self.kinds
        alone = self.ended is not None and self.ended[1] is None
        values = [self.late.get(result, value) for value, result in zip(self.values, self.results, strict=True)]
        if alone or any(self._guarded(value, kind) for value, kind in zip(values, kinds, strict=True)):
            writer.line(f"const bool inside = column + 8 * c + e < {limit};")
        for value in self._needed(_J):
            core.scalars.emit(value)
        with core.unrolled("h", 2):
            core.scalars.bind(self.block.arguments[0], "(row + 8 * h)")
            self._results(targets, sums)

    def _results(self, targets: list[RegTile | None], sums: list[RegRow | None]) -> None:
        """The results of one element, once its row and column are known."""
        core, writer = self.core, self.core.writer
        ended = self.ended[0] if self.ended is not None and self.ended[1] is None else None
        self._divisions()
        for comparison, name in self.bounds.items():
            core.scalars.bind(comparison.op.results[0], f"(8 * c + e {comparison.operator} {name}[h])")
        for value, result, target in zip(self.values, self.results, targets, strict=False):
            if target is not None:
                value = self.late.get(result, value)
                text = self.core.number(value)
                text = f"inside ? {text} : -INFINITY" if ended is not None and value == ended else text
                kept = f"inside ? {text} : 0.0f" if self._guarded(value, "stored") and target.element != "f32" else text
                writer.line(f"{target.name}[4 * c + 2 * h + e] = {kept};")
        for value, kind, row in zip(self.values[self.stored :], self.kinds, sums, strict=True):
            if row is None:
                continue
            text = core.scalars.emit(value)
            text = f"inside ? {text} : {IDENTITY[kind]}" if self._guarded(value, kind) else text
            writer.line(f"{row.name}[h] = {combined(self.core, kind, f'{row.name}[h]', text)};")

    # ---- elements that share reciprocals

    def _groups(self, shared: list[ir.Operation], targets: list[RegTile | None], sums: list[RegRow | None]) -> None:
        """Elements in groups: first their divisors, then quotients by one reciprocal, then the rest."""
        core, names = self.core, self.core.names
        count = ir.IntegerAttr(shared[0].attributes[SHARED]).value
        arrays = {op: (names.fresh("divisors"), names.fresh("quotients")) for op in shared}
        with core.unrolled("g", self.columns // (4 * count)), core.unrolled("h", 2):
            core.scalars.bind(self.block.arguments[0], "(row + 8 * h)")
            for divisors, quotients in arrays.values():
                core.writer.line(f"float {divisors}[{count}], {quotients}[{count}];")
            with self._member(count):
                for op, (divisors, _) in arrays.items():
                    core.writer.line(f"{divisors}[k] = {core.scalars.emit(unclamped(op)[0])};")
            for op, (divisors, quotients) in arrays.items():
                numbers = [core.scalars.emit(value) for value in (op.operands[0], unclamped(op)[1])]
                core.writer.line(f"{core.scalars.helper(helper_of(op))}({', '.join(numbers)}, {divisors}, {quotients});")
            with self._member(count):
                for op, (_, quotients) in arrays.items():
                    core.scalars.bind(op.result, f"{quotients}[k]")
                self._results(targets, sums)

    @contextmanager
    def _member(self, count: int) -> Iterator[None]:
        """A scope for each element of a group."""
        core = self.core
        with core.unrolled("k", count):
            core.writer.line(f"const int c = {count // 2} * g + k / 2, e = k % 2;")
            core.scalars.bind(self.block.arguments[1], "(column + 8 * c + e)")
            self.places.bind()
            self.windows.load()
            yield

    def _divisions(self) -> None:
        for view in self.block.operations if self._inverse else []:
            op = view.operation
            if is_quotient(op) and op.operands[1] in self._inverse and 1 in self.depends[op.result]:
                self.core.scalars.bind(op.result, f"({self.core.scalars.emit(op.operands[0])} * {self._inverse[op.operands[1]]}[h])")
