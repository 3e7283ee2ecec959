"""Prints `tile.map` over tiles in registers."""

import math

from attn_mlir.backends.amd.mfma.bands import MfmaBands
from attn_mlir.backends.amd.mfma.core import MfmaCore
from attn_mlir.backends.amd.mfma.regions import PAIRED, combined, float_positions, is_read, used
from attn_mlir.backends.amd.mfma.tiles import MATRIX, STEP, MfmaFragment, MfmaRow, PackedTile, round_up
from attn_mlir.backends.amd.mfma.windows import MfmaWindows
from attn_mlir.backends.gpu.scalars import dependence, frontier
from attn_mlir.backends.gpu.structure import body, constant, element_name, hint, is_quotient, maker, operations, widened, yielded
from attn_mlir.diagnostics import source_line
from attn_mlir.errors import UnsupportedError
from attn_mlir.mlir import ir

_I, _J = frozenset({0}), frozenset({1})
_IDENTITY = {"sum": "0.0f", "max": "-3.40282347e+38f", "min": "3.40282347e+38f"}
_SUMS = ("tile.dot_add", "tile.dot_rescale", "tile.accumulate")
_HINTS = {"sum": "row_sum", "max": "row_max", "min": "row_min"}
_RAISE = math.log2(1.0 + 0.75 * 2.0**-11)
_LOWER = 1.0 / (1.0 + 0.75 * 2.0**-11)
"""Weights are cut to f16, not rounded: raised by 3/4 of half a unit before, they are right on average, and so is the lowered sum."""


class MfmaMaps:
    """Prints maps: what depends on nothing or on the row alone once a lane, the rest for each element.

    `partial` holds the row values of which each half of a wave keeps its own part.
    """

    def __init__(self, core: MfmaCore) -> None:
        self.core = core
        self.partial: set[ir.Value] = set()
        self.staged: dict[ir.Operation, dict[ir.Value, int]] = {}
        """Values of columns that maps find in shared memory, and at which byte."""
        self.bands = MfmaBands(core)
        self.room = 0
        """Bytes of shared memory that these may not go beyond; 0: there is room enough."""

    def stage(self, block: ir.Block, start: int) -> int:
        """Puts what the maps of a block read from memory for each column into shared memory from byte `start`; returns where it ends.

        Each thread takes one column. What there is no room for is read for each element. The caller sees to the barriers.
        """
        core, writer = self.core, self.core.writer
        maps = [op for op in operations(block) if op.name == "tile.map" and len(list(op.operands)) == 2]
        for op in maps:
            inner = body(op)
            wanted = [value for value in frontier(inner, dependence(inner), _J) if str(value.type) == "f32" and is_read(value)]
            columns = round_up(core.columns_of(op), STEP)
            wanted = wanted[: max(0, self.room - start) // (4 * columns)] if self.room else wanted
            if not wanted:
                continue
            with core.scope(f"if (attn::thread() < {columns})"):
                core.scalars.bind(inner.arguments[1], f"min(attn::thread(), max({core.value(op.operands[1])} - 1, 0))")
                for value in wanted:
                    text = core.scalars.emit(value)
                    writer.line(f"((float *)(memory + {start}))[attn::thread()] = {text};")
                    self.staged.setdefault(op, {})[value] = start
                    start += 4 * columns
        return self.bands.stage(block, start, self.room)

    def print(self, op: ir.Operation) -> None:
        """Prints a map whose results become tiles in registers."""
        if len(list(op.operands)) == 1:
            self._rows(op)
        else:
            _Elements(self, op).print()

    def _rows(self, op: ir.Operation) -> None:
        core, block = self.core, body(op)
        results = []
        with core.scope(None):
            core.scalars.bind(block.arguments[0], "row")
            texts = [core.scalars.emit(value) for value in yielded(block)]
            for value, text, result in zip(yielded(block), texts, op.results, strict=True):
                row = MfmaRow(core.names.fresh(hint(value, "r")), result in self.partial)
                core.writer.line(f"const float {row.name} = {text};")
                results.append(row)
        core.tiles.update(zip(op.results, results, strict=True))


class _Elements:
    """One map over the elements of a tile."""

    def __init__(self, maps: MfmaMaps, op: ir.Operation) -> None:
        self.maps, self.core, self.op = maps, maps.core, op
        self.block = body(op)
        self.depends = dependence(self.block)
        self.values = yielded(self.block)
        self.results = list(op.results)
        self.kinds = op.opview.kinds()
        self.stored = len(self.results) - len(self.kinds)
        self.columns = round_up(self.core.columns_of(op), STEP)
        self.staged = maps.staged.get(op, {})
        self.positions = float_positions(self.block)
        """The values that are the column's number as a float."""
        self.windows = MfmaWindows(self.core, self.block, maps.bands)
        self.inner = used(self.values, {**self.staged, **dict.fromkeys([*self.positions, *self.windows.known], 0)}, self.block)
        """The ops that are printed here, in their order."""
        self.inverse: dict[ir.Value, str] = {}
        self.raised: set[ir.Value] = set()
        self.weights: set[MfmaFragment] = set()
        """Weights that are rounded after all of them are made."""
        self.first, self.first_float = "column", ""
        self.paired = False
        self.left: list[str] = []
        """How many columns of the lane exist: for each reduction, and for 16-bit results, which are zero behind the last column."""

    def print(self) -> None:
        core, block = self.core, self.block
        limit = self._limit()
        sums: list[MfmaRow] = []
        with core.scope(None):
            exists = None if limit is None else core.value(limit)
            self.paired = exists is None and not self.windows.banded and self._pairs()
            core.scalars.bind(block.arguments[0], "row")
            for value in [*frontier(block, self.depends, frozenset()), *frontier(block, self.depends, _I)]:
                core.scalars.emit(value)
            self._place()
            self._raise()
            for value in self._reciprocals():
                self.inverse[value] = core.names.fresh("inverse")
                core.writer.line(f"const float {self.inverse[value]} = 1.0f / {core.scalars.emit(value)};")
            targets = [self._target(value, result, exists) for value, result in zip(self.values, self.results[: self.stored], strict=False)]
            for kind, result in zip(self.kinds, self.results[self.stored :], strict=True):
                sums.append(self._sum(kind, result in self.maps.partial))
            if exists is not None:
                packed = any(isinstance(target, PackedTile) for target in targets)
                self.left = [core.names.fresh("left") for _ in range(len(self.kinds) + packed)]
                core.writer.line(*(f"const int {name} = attn::opaque({exists} - column);" for name in self.left))
            scaled = self._scaled(targets)
            made = [scaled.get(target, target) if isinstance(target, PackedTile) else target for target in targets]
            if sums or any(target is not None for target in made):
                self._elements(exists, made, sums)
            for weights, accumulators in self._groups(scaled):
                self._pack({target: scaled[target] for target in weights}, accumulators)
            self._reduce(sums)
        core.tiles.update(zip(self.results[self.stored :], sums, strict=True))

    def _place(self) -> None:
        """The lane's first column. What is made of it is made here, where it is needed, and not kept in a register for each element."""
        core = self.core
        self.windows.place()
        if self.windows.banded or any(self.block.arguments[1] in list(op.operands) for op in self.inner):
            self.first = core.names.fresh("column")
            core.writer.line(f"const int {self.first} = attn::opaque(column);")
        if self.positions:
            self.first_float = core.names.fresh("column_float")
            core.writer.line(f"const float {self.first_float} = (float)attn::opaque(column);")

    def _sum(self, kind: str, partial: bool) -> MfmaRow:
        """A row value that a reduction begins with; sums of pairs are added up at the end."""
        if self.paired and kind == "sum":
            name = self.core.names.fresh(_HINTS[kind])
            self.core.writer.line(f"attn::Float2 {name} = {{0.0f, 0.0f}};")
            return MfmaRow(name, partial)
        return self.core.row(_HINTS[kind], _IDENTITY[kind], partial)

    def _pairs(self) -> bool:
        """Whether two elements can be printed at once: sums and products of floats, no positions, no conditions."""
        inner = [op for op in self.inner if 1 in self.depends.get(op.results[0], frozenset())]
        arithmetic = [op for op in inner if op.name not in ("tensor.extract", "arith.truncf")]
        if not arithmetic or any(op.name not in PAIRED for op in inner):
            return False
        floats = all(str(op.results[0].type) == "f32" for op in inner if op.name != "arith.truncf")
        tiles = [self.core.tiles.get(op.operands[0]) for op in inner if op.name == "tensor.extract"]
        rounded = all(op.results[0] in self.values for op in inner if op.name == "arith.truncf")
        constants = all(1 in self.depends.get(value, frozenset()) for value in self.values)
        return floats and rounded and constants and all(isinstance(tile, MfmaFragment) for tile in tiles)

    def _limit(self) -> ir.Value | None:
        """The number of columns that exist, where it can be less than those in registers."""
        extent = list(self.op.operands)[1]
        number = constant(extent)
        if number is None:
            return extent
        return extent if number < self.columns and self.kinds else None

    def _target(self, value: ir.Value, result: ir.Value, exists: str | None) -> MfmaFragment | PackedTile | None:
        """Registers for a result; None for one that is another tile."""
        core, element = self.core, element_name(result.type)
        op = maker(value)
        same = core.tiles.get(op.operands[0]) if op is not None and op.name == "tensor.extract" else None
        if isinstance(same, (MfmaFragment, PackedTile)) and (exists is None or element not in MATRIX):
            core.tiles[result] = same
            return None
        if element not in MATRIX:
            target: MfmaFragment | PackedTile = core.fragment(hint(widened(value), "s"), self.columns)
        else:
            target = core.packed(hint(widened(value), "weights"), self.columns, element)
        core.tiles[result] = target
        return target

    def _scaled(self, targets: list[MfmaFragment | PackedTile | None]) -> dict[PackedTile, MfmaFragment]:
        """Weights in f16 whose size nothing tells: they stay in f32 until a factor for them is known. The products take small ones as 0."""
        core, found = self.core, dict[PackedTile, MfmaFragment]()
        for result, target in zip(self.results, targets, strict=False):
            if isinstance(target, PackedTile) and target.element == "f16" and self._sums_of(result):
                found[target] = core.fragment(f"{target.name}_f32", self.columns)
                self.weights.add(found[target])
        return found

    def _sums_of(self, weight: ir.Value) -> list[MfmaFragment]:
        """The accumulators with factors that products of a weight are added to; none where it is used otherwise, too."""
        found: list[MfmaFragment] = []
        for use in weight.uses:
            op = use.owner.operation
            if op.name == "tile.accumulate":
                continue
            if op.name not in _SUMS:
                return []
            start = op.operands[0]
            while start not in self.core.tiles and (before := maker(start)) is not None and before.name in _SUMS:
                start = before.operands[0]
            tile = self.core.tiles.get(start)
            if not isinstance(tile, MfmaFragment) or tile.name not in self.core.scales:
                return []
            found.append(tile)
        return list(dict.fromkeys(found))

    def _groups(self, scaled: dict[PackedTile, MfmaFragment]) -> list[tuple[list[PackedTile], list[MfmaFragment]]]:
        """Weights and the sums that they are added to, apart where they have nothing in common: each group has one factor."""
        groups: list[tuple[list[PackedTile], list[MfmaFragment]]] = []
        for target in scaled:
            result = next(result for result in self.results if self.core.tiles.get(result) == target)
            weights, sums = [target], self._sums_of(result)
            for group in [group for group in groups if any(tile in group[1] for tile in sums)]:
                groups.remove(group)
                weights, sums = [*group[0], *weights], list(dict.fromkeys([*group[1], *sums]))
            groups.append((weights, sums))
        return groups

    def _pack(self, weights: dict[PackedTile, MfmaFragment], sums: list[MfmaFragment]) -> None:
        """Multiplies weights by their factor, which is made smaller where one of them is too large, and rounds them."""
        core, scale = self.core, self.core.scales[sums[0].name]
        if any(core.factors.get(name) == scale for name in core.waiting):
            raise UnsupportedError(f"amd: weights of two maps are added to one sum ({source_line(self.op.location)}): use the CPU")
        for other in sums[1:]:
            core.writer.line(f"attn::share_scale({scale}, {sums[0].name}, {core.scales[other.name]}, {other.name});")
        names = ", ".join(tile.name for tile in sums)
        for fragment in weights.values():
            core.writer.line(f"attn::fit_scale({scale}, {core.rows_exist}, {fragment.name}, {names});")
        for other in sums[1:]:
            core.writer.line(f"{core.scales[other.name]} = {scale};")
        for target, fragment in weights.items():
            core.writer.line(f"attn::pack_scaled({target.name}, {fragment.name}, {scale});")
            core.factors[target.name] = scale
            core.waiting.add(target.name)

    def _raise(self) -> None:
        """Raises exponentials that are cut to f16 by 3/8 of a unit in the last place: then they are cut evenly, up and down.

        It costs nothing for an element: the exponent's share is added to what belongs to the row. Sums of them are lowered as much.
        """
        core = self.core
        for value, result in zip(self.values, self.results[: self.stored], strict=False):
            if self._sums_of(result):
                continue
            exponential = maker(widened(value))
            if element_name(result.type) != "f16" or exponential is None or exponential.name != "math.exp2":
                continue
            argument = maker(exponential.operands[0])
            shift = argument.operands[2] if argument is not None and argument.name == "math.fma" else None
            if argument is None or shift is None or not self.depends.get(shift, frozenset()) <= _I:
                continue
            weight = exponential.results[0]
            sums = [kind for kind, summed in zip(self.kinds, self.values[self.stored :], strict=True) if summed == weight]
            used_here = all(use.owner.operation.name in ("tile.yield", "arith.truncf") for use in weight.uses)
            if not used_here or sums != ["sum"] or len(list(argument.results[0].uses)) > 1 or len(list(shift.uses)) > 1:
                continue
            raised = core.names.fresh("raised")
            core.writer.line(f"const float {raised} = {core.scalars.emit(shift)} + {_RAISE!r}f; // weights are cut to f16")
            core.scalars.bind(shift, raised)
            self.raised.add(weight)

    def _reciprocals(self) -> list[ir.Value]:
        """Divisors in f32 that are the same along the row: the division becomes a product."""
        found = []
        for op in self.inner:
            if is_quotient(op) and isinstance(op.result.type, ir.F32Type) and 1 in self.depends[op.result]:
                divisor = op.operands[1]
                if self.depends.get(divisor, frozenset()) <= _I and constant(divisor) is None:
                    found.append(divisor)
        return list(dict.fromkeys(found))

    def _elements(self, exists: str | None, targets: list[MfmaFragment | PackedTile | None], sums: list[MfmaRow]) -> None:
        """The loops over the columns of a lane; elements of 16 bits are made in pairs."""
        core, parts = self.core, self.columns // STEP
        if self.paired:
            with core.unrolled("n", parts):
                self.windows.load()
                with core.unrolled("c", 16, 2):
                    self._pair(targets, sums)
            return
        packed = [target for target in targets if isinstance(target, PackedTile)]
        with core.unrolled("n", parts):
            self.windows.load()
            if not packed:
                with core.unrolled("r", 16):
                    self._element(exists, targets, sums, {})
                return
            with core.unrolled("c", 16, 2):
                pairs = {target: core.names.fresh("pair") for target in packed}
                core.writer.line(*(f"float {name}[2];" for name in pairs.values()))
                with core.unrolled("r", "c + 2", start="c"):
                    self._element(exists, targets, sums, {target: f"{name}[r - c]" for target, name in pairs.items()})
                core.writer.line(*(self._packing(target, f"{name}[0]", f"{name}[1]") for target, name in pairs.items()))

    def _pair(self, targets: list[MfmaFragment | PackedTile | None], sums: list[MfmaRow]) -> None:
        """Columns c and c + 1 of a lane."""
        core, writer = self.core, self.core.writer
        for value, start in self.staged.items():
            core.scalars.bind(value, f"attn::pair_at(memory + {start}, column + 32 * n + c)")
        for value in self.positions:
            core.scalars.bind(value, f"attn::positions({self.first_float}, 32 * n + c)")
        self.windows.bind("attn::pair_of({}, c)")
        for op in self.inner:
            if op.name == "tensor.extract" and 1 in self.depends[op.results[0]]:
                tile = core.tiles[op.operands[0]]
                core.scalars.bind(op.results[0], f"attn::pair_of({tile.name}[n], c)")  # type: ignore[union-attr]
        start = len(writer.lines)
        self._divisions()
        texts = [core.scalars.emit(widened(value)) for value in self.values]
        writer.lines[start:] = [line.replace("const float ", "const attn::Float2 ", 1) for line in writer.lines[start:]]
        for text, target in zip(texts, targets, strict=False):
            if isinstance(target, MfmaFragment):
                writer.line(f"attn::set_pair({target.name}[n], c, {text});")
            elif target is not None:
                writer.line(self._packing(target, f"({text}).x", f"({text}).y"))
        for text, kind, row in zip(texts[self.stored :], self.kinds, sums, strict=True):
            if kind == "sum":
                writer.line(f"{row.name} += {text};")
            else:
                writer.line(f"{row.name} = f{kind}f(f{kind}f({row.name}, ({text}).x), ({text}).y);")

    def _packing(self, target: PackedTile, first: str, second: str) -> str:
        """The statement that rounds columns c and c + 1 of a lane: to nearest, where weights were not raised for the cheaper function."""
        how, words = MATRIX[target.element], f"{target.name}[2 * n + c / 8]"
        if how.bytes == 1:
            return f"attn::set_{how.suffix}({words}, c / 2 % 4, {how.part}f * {first}, {how.part}f * {second});"
        values = [value for value, result in zip(self.values, self.results, strict=False) if self.core.tiles.get(result) == target]
        weights = all(
            use.owner.operation.name in _SUMS for result in self.results if self.core.tiles.get(result) == target for use in result.uses
        )
        cheap = all(widened(value) in self.raised for value in values) or (weights and target.element == "bf16")
        return f"{words}[c / 2 % 4] = attn::{'pack' if cheap else 'round'}_{target.element}({first}, {second});"

    def _element(
        self, exists: str | None, targets: list[MfmaFragment | PackedTile | None], sums: list[MfmaRow], pairs: dict[PackedTile, str]
    ) -> None:
        core, writer = self.core, self.core.writer
        # What is read at a position past the last one is not used, but it must exist.
        reads = [op for op in self.inner if op.name == "memref.load"]
        clamped = exists is not None and any(1 in self.depends[op.result] for op in reads)
        position = f"min({self.first} + 32 * n + r, max({exists} - 1, 0))" if clamped else f"({self.first} + 32 * n + r)"
        core.scalars.bind(self.block.arguments[1], position)
        for value in self.positions:
            core.scalars.bind(value, f"({self.first_float} + (float)(32 * n + r))")
        if len(self.left) > len(self.kinds):
            writer.line(f"const bool inside = 32 * n + r < {self.left[-1]};")
        for value, start in self.staged.items():
            core.scalars.bind(value, f"((const float *)(memory + {start}))[column + 32 * n + r]")
        self.windows.bind("{}[r]", f"({self.first} + 32 * n + r)")
        self._divisions()
        for value, target in zip(self.values, targets, strict=False):
            if isinstance(target, MfmaFragment):
                text = self._number(value) if target in self.weights else core.scalars.emit(value)
                cut = exists is not None and target in self.weights
                writer.line(f"{target.name}[n][r] = {f'inside ? {text} : 0.0f' if cut else text};")
            elif target is not None:
                text = self._number(value)
                writer.line(f"{pairs[target]} = {text if exists is None else f'inside ? {text} : 0.0f'};")
        for number, (value, kind, row) in enumerate(zip(self.values[self.stored :], self.kinds, sums, strict=True)):
            text = core.scalars.emit(value)
            # Compared again for each sum: to keep what comparisons gave takes more registers than there are.
            text = text if exists is None else f"32 * n + r < {self.left[number]} ? {text} : {_IDENTITY[kind]}"
            writer.line(f"{row.name} = {combined(kind, row.name, text)};")

    def _number(self, value: ir.Value) -> str:
        """An element as f32, whatever it is rounded to later."""
        wide = widened(value)
        text = self.core.scalars.emit(wide)
        return {"f16": f"__half2float({text})", "bf16": f"__bfloat162float({text})"}.get(str(wide.type), text)

    def _divisions(self) -> None:
        for op in self.inner if self.inverse else []:
            if is_quotient(op) and op.operands[1] in self.inverse and 1 in self.depends[op.result]:
                self.core.scalars.bind(op.result, f"({self.core.scalars.emit(op.operands[0])} * {self.inverse[op.operands[1]]})")

    def _reduce(self, sums: list[MfmaRow]) -> None:
        """Each row is in two lanes."""
        lowered = [value in self.raised for value in self.values[self.stored :]]
        for number, (kind, row) in enumerate(zip(self.kinds, sums, strict=True)):
            if (self.paired or lowered[number]) and kind == "sum":
                total = f"{row.name}.x + {row.name}.y" if self.paired else row.name
                total = f"({total}) * {_LOWER!r}f" if lowered[number] else total
                row = sums[number] = self.core.row(_HINTS[kind], total, row.partial)
            if not row.partial:
                self.core.writer.line(f"{row.name} = {combined(kind, row.name, f'attn::other_half({row.name})')};")
