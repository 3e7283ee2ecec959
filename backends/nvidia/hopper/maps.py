"""Prints `tile.map` over tiles in registers: those over rows here, others by `map_elements`."""

from collections.abc import Collection, Mapping

from attn_mlir.backends.gpu.scalars import dependence, float_literal, frontier
from attn_mlir.backends.gpu.structure import hint
from attn_mlir.backends.nvidia.hopper.map_elements import MapElements
from attn_mlir.backends.nvidia.hopper.map_state import MapState
from attn_mlir.backends.nvidia.hopper.tiles import RegRow
from attn_mlir.mlir import ir


class Maps(MapState):
    """Prints maps: what depends on nothing once, what depends on the row twice, on the column once for each, and the rest everywhere."""

    def print(
        self, op: ir.Operation, wanted: Collection[ir.Value] | None = None, fixed: Mapping[ir.Value, float | ir.Value] | None = None
    ) -> None:
        """Prints a map whose results become tiles in registers: those of `wanted`, if given.

        Scalars of `fixed` are known numbers, or elements of row tiles.
        """
        if wanted is not None and not any(result in wanted for result in op.results):
            return
        if len(list(op.operands)) == 1:
            self._rows(op, wanted, fixed or {})
        else:
            MapElements(self, op, wanted, fixed or {}).print()

    def _rows(self, op: ir.Operation, wanted: Collection[ir.Value] | None, fixed: Mapping[ir.Value, float | ir.Value]) -> None:
        core, block = self.core, op.regions[0].blocks[0]
        made = zip(block.operations[-1].operation.operands, op.results, strict=True)
        made = [(value, result) for value, result in made if wanted is None or result in wanted]
        with core.scope(None):
            for value in frontier(block, dependence(block), frozenset()):
                core.scalars.emit(value)
            results = {result: core.row(hint(value, "r"), partial=result in self.partial) for value, result in made}
            with core.unrolled("h", 2):
                core.scalars.bind(block.arguments[0], "(row + 8 * h)")
                for value, known in fixed.items():
                    tile = core.tiles.get(known) if isinstance(known, ir.Value) else None
                    if isinstance(tile, RegRow):
                        core.scalars.bind(value, f"{tile.name}[h]")
                    elif isinstance(known, float):
                        core.scalars.bind(value, float_literal(known))
                for value, result in made:
                    core.writer.line(f"{results[result].name}[h] = {core.scalars.emit(value)};")
        core.tiles.update(results)
