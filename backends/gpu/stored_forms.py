"""Equality of what kernels store: a number for each output, the same wherever the same ops make it from the same values of the host."""

from collections.abc import Sequence

from attn_mlir.backends.gpu.structure import body, operations
from attn_mlir.mlir import ir

_GRID = ("grid", "block_q", "block_kv", "blocks", "segment", "score")
"""What says which programs a kernel has, but for the number of the argument that they are over."""


class StoredForms:
    """Numbers forms as it meets them: an op's is its name, attributes and regions with the numbers of what it reads."""

    def __init__(self) -> None:
        self._numbers: dict[tuple[object, ...], int] = {}

    def of(self, kernel: ir.Operation, operands: Sequence[int]) -> tuple[int, ...]:
        """The form of each output, all of which a kernel stores once; `operands` are the host's values that its inputs are."""
        facts, arguments = ir.DictAttr(kernel.attributes["tile.kernel"]), list(body(kernel).arguments)
        values = {argument: self._number("operand", operand) for argument, operand in zip(arguments, operands, strict=False)}
        outputs = arguments[len(operands) :]
        values |= {output: self._number("output", str(output.type)) for output in outputs}
        grid = self._number("grid", *(f"{name} = {facts[name]}" for name in _GRID if name in facts))
        stored: dict[ir.Value, int] = {}
        self._block(body(kernel), values, stored)
        return tuple(self._number("stored", grid, stored[output]) for output in outputs)

    def _number(self, *form: object) -> int:
        return self._numbers.setdefault(form, len(self._numbers))

    def _block(self, block: ir.Block, values: dict[ir.Value, int], stored: dict[ir.Value, int]) -> int:
        """Numbers the ops of a block; what it ends with says what it makes, as its ops have no effects but stores."""
        number = 0
        for op in operations(block):
            if op.name == "tile.map" and not list(ir.ArrayAttr(op.attributes["reductions"])):
                number = self._map(op, values, stored)
                continue
            number = self._op(op, values, stored)
            values.update({result: self._number("result", number, place) for place, result in enumerate(op.results)})
            if op.name == "tile.store":
                stored[op.operands[1]] = number
        return number

    def _map(self, op: ir.Operation, values: dict[ir.Value, int], stored: dict[ir.Value, int]) -> int:
        """Each tile of a map by what is yielded for it alone: other maps may have been joined with the one that makes it."""
        inner, extents = body(op), [values[value] for value in op.operands]
        values.update({value: self._number("index", place, *extents) for place, value in enumerate(inner.arguments)})
        number = self._block(inner, values, stored)
        *_, end = operations(inner)
        for result, value in zip(op.results, end.operands, strict=True):
            values[result] = self._number("tile", str(result.type), values[value], *extents)
        return number

    def _op(self, op: ir.Operation, values: dict[ir.Value, int], stored: dict[ir.Value, int]) -> int:
        attributes = sorted(f"{name} = {op.attributes[name]}" for name in op.attributes)
        types = [str(result.type) for result in op.results]
        made = self._number(op.name, *attributes, *types, *(values[value] for value in op.operands))
        inside = list[int]()
        for block in [block for region in op.regions for block in region.blocks]:
            values.update({value: self._number("argument", made, place) for place, value in enumerate(block.arguments)})
            inside.append(self._block(block, values, stored))
        return self._number("op", made, *inside) if inside else made
