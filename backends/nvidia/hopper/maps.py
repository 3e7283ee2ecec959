"""Prints `tile.map` over tiles in registers: those over rows here, others by `map_elements`."""

from collections.abc import Collection, Mapping

from attn_mlir.backends.gpu.scalars import dependence, float_literal, frontier
from attn_mlir.backends.gpu.structure import body, hint
from attn_mlir.backends.nvidia.hopper.map_elements import MapElements
from attn_mlir.backends.nvidia.hopper.map_state import MapState
from attn_mlir.backends.nvidia.hopper.tiles import RegRow
from attn_mlir.mlir import ir


def made_of(value: ir.Value, block: ir.Block) -> list[ir.Operation]:
    """The ops of a block that make a value."""
    if isinstance(value.owner, ir.Block) or value.owner.operation.block != block:
        return []
    op = value.owner.operation
    return [*(each for operand in op.operands for each in made_of(operand, block)), op]


def _is_made_in(value: ir.Value, inside: ir.Block) -> bool:
    """Whether a value that a map reads comes from `inside` the loop around it."""
    if isinstance(value.owner, ir.Block):
        return value.owner == inside
    return value.owner.operation.block == inside


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

    def read_rows(self, op: ir.Operation, loop: ir.Operation) -> None:
        """Prints what a map in a loop reads for its rows, and nothing in the loop changes: in the loop products would wait for memory."""
        core, block = self.core, op.regions[0].blocks[0]
        inside = body(loop)
        for value in frontier(block, dependence(block), frozenset({0})):
            made = made_of(value, block)
            fixed = not any(_is_made_in(operand, inside) for each in made for operand in each.operands)
            if not fixed or not any(each.name == "memref.load" for each in made):
                continue
            name = self.rows[value] = core.names.fresh(hint(value, "of_row"))
            core.writer.line(f"{core.scalars.type_of(value)} {name}[2];")
            with core.unrolled("h", 2):
                core.scalars.bind(block.arguments[0], "(row + 8 * h)")
                core.writer.line(f"{name}[h] = {core.scalars.emit(value)};")

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
