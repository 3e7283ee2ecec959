"""Copies scalar code on demand: only what a wanted value needs, stopping at values that are already at hand."""

from collections.abc import Callable, Mapping

from attn_mlir.dialects.elements import ELEMENTS, bits_of
from attn_mlir.errors import UnsupportedError
from attn_mlir.mlir import arith, ir, memref
from attn_mlir.passes.order import deepest_first

Find = Callable[[ir.Value], ir.Value | None]


def clone_scalar(op: ir.Operation, operands: list[ir.Value]) -> ir.Operation:
    """Clones one op with new operands; reads of captured tensors become reads of the memrefs that replace them."""
    if operands and isinstance(operands[0].type, ir.MemRefType):
        if op.name == "tensor.extract":
            return memref.LoadOp(operands[0], operands[1:], loc=op.location).operation
        if op.name == "tensor.dim":
            return memref.DimOp(operands[0], operands[1], loc=op.location).operation
    clone = op.clone()
    for position, operand in enumerate(operands):
        clone.operands[position] = operand
    return clone


class ScalarEmitter:
    """Emits values of a region at the current insertion point, each of them once."""

    def __init__(self, known: Mapping[ir.Value, ir.Value], find: Find | None = None) -> None:
        """`known` maps region values to emitted ones; `find` may make others available (say, by reading a tile)."""
        self._known = dict(known)
        self._find = find
        self._found: dict[ir.Value, ir.Value] = {}

    def emit(self, value: ir.Value) -> ir.Value:
        """The counterpart of `value` here."""
        for v in deepest_first(value, self._known, self._operands):
            found = self._found.pop(v, None)
            self._known[v] = self._clone(v) if found is None else found
        return self._known[value]

    def _operands(self, value: ir.Value) -> list[ir.Value]:
        """What is emitted before `value`."""
        found = self._find(value) if self._find is not None else None
        if found is not None:
            self._found[value] = found
            return []
        if isinstance(value, ir.OpResult) and value.owner.operation.name == "attn.slope":
            return []
        return list(value.owner.operation.operands) if isinstance(value, ir.OpResult) else []

    def set(self, value: ir.Value, emitted: ir.Value) -> None:
        """Makes `emitted` stand for `value`."""
        self._known[value] = emitted

    def _clone(self, value: ir.Value) -> ir.Value:
        if not isinstance(value, ir.OpResult):
            number = ir.BlockArgument(value).arg_number
            raise UnsupportedError(f"argument {number} of a piece is read where it has no value, such as an accumulator in a row's output")
        op = value.owner.operation
        if op.name == "attn.detach":  # derivatives are taken before there are tiles
            return self._known[op.operands[0]]
        if op.name == "attn.slope":
            return arith.constant(value.type, 0.0)
        clone = clone_scalar(op, [self._known[operand] for operand in op.operands])
        for old, new in zip(op.results, clone.results, strict=True):
            self._known[old] = new
        return self._known[value]

    def inline(self, block: ir.Block, arguments: list[ir.Value]) -> list[ir.Value]:
        """Emits what the block's terminator returns, with its arguments bound to `arguments`."""
        self._known.update(zip(block.arguments, arguments, strict=True))
        return [self.emit(value) for value in block.operations[-1].operation.operands]


def constant_index(value: int) -> ir.Value:
    """`arith.constant` of type index."""
    return arith.ConstantOp(ir.IndexType.get(), value).result


def keep(present: ir.Value | None, value: ir.Value, otherwise: float) -> ir.Value:
    """`value` where `present`, else a constant."""
    if present is None:
        return value
    return arith.SelectOp(present, value, constant_float(value.type, otherwise)).result


def known_index(value: ir.Value) -> int | None:
    """The number that an `arith.constant` of type index holds; None for other values."""
    if isinstance(value.owner, ir.Block) or value.owner.operation.name != "arith.constant":
        return None
    return ir.IntegerAttr(value.owner.operation.attributes["value"]).value


def constant_float(type_: ir.Type, value: float) -> ir.Value:
    """`arith.constant` of a float type."""
    return arith.ConstantOp(type_, ir.FloatAttr.get(type_, value)).result


def cast_float(value: ir.Value, type_: ir.Type) -> ir.Value:
    """Converts between float types by extension or rounding to nearest even."""
    if value.type == type_:
        return value
    other = next((str(kind) for kind in (value.type, type_) if not bits_of(kind)), None)
    if other is not None:
        raise UnsupportedError(f"computes with {', '.join(ELEMENTS)}, got {other}")
    if bits_of(value.type) < bits_of(type_):
        return arith.ExtFOp(type_, value).result
    if bits_of(value.type) > bits_of(type_):
        return arith.TruncFOp(type_, value).result
    return cast_float(arith.ExtFOp(ir.F32Type.get(), value).result, type_)


def lowest(type_: ir.Type) -> float:
    """The lowest finite number of f32 or f64: the identity of max."""
    return -3.4028234663852886e38 if isinstance(type_, ir.F32Type) else -1.7976931348623157e308


def identity(kind: str, type_: ir.Type) -> float:
    """What a reduction over nothing gives."""
    return {"sum": 0.0, "max": lowest(type_), "min": -lowest(type_)}[kind]
