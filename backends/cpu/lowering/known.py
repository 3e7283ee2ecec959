"""Indices whose numbers are known where a map's loop over columns is written out: reads at them are vector loads and shuffles."""

from collections.abc import Sequence

import numpy as np

from attn_mlir.backends.cpu.lowering import emit
from attn_mlir.backends.cpu.lowering.context import Lowering, MemRef
from attn_mlir.mlir import arith, ir, scf, vector

Numbers = np.ndarray
"""One integer, or one for each lane."""
_SIGNED = ("eq", "ne", "slt", "sle", "sgt", "sge")
_COMPARE = (np.equal, np.not_equal, np.less, np.less_equal, np.greater, np.greater_equal)
_OPS = {
    "arith.addi": np.add, "arith.subi": np.subtract, "arith.muli": np.multiply, "arith.andi": np.bitwise_and, "arith.ori": np.bitwise_or,
    "arith.xori": np.bitwise_xor, "arith.minsi": np.minimum, "arith.maxsi": np.maximum, "arith.floordivsi": np.floor_divide,
}  # fmt: skip


class Indices:
    """What is known of the integers of a map while one vector of its columns is written out."""

    def __init__(self, known: dict[ir.Value, Numbers]) -> None:
        self._known = known

    def of(self, value: ir.Value) -> Numbers | None:
        """The numbers of a value, None where they are not known."""
        found = self._known.get(value)
        return constant(value) if found is None else found

    def note(self, op: ir.Operation) -> None:
        """Keeps what an op makes of known numbers."""
        if len(op.results) == 1 and self._known:
            numbers = computed(op, [self.of(value) for value in op.operands])
            if numbers is not None:
                self._known[op.results[0]] = numbers


def constant(value: ir.Value) -> Numbers | None:
    """The number of an integer constant."""
    if isinstance(value.owner, ir.Block) or value.owner.operation.name != "arith.constant":
        return None
    attribute = value.owner.operation.attributes["value"]
    return np.asarray(ir.IntegerAttr(attribute).value) if isinstance(attribute, ir.IntegerAttr) else None


def computed(op: ir.Operation, operands: Sequence[Numbers | None]) -> Numbers | None:
    """What an op makes of known numbers; None where they, or the op, are not known."""
    given = [operand for operand in operands if operand is not None]
    if not operands or len(given) != len(operands):
        return None
    if op.name in _OPS:
        a, b = given
        return None if op.name == "arith.floordivsi" and not np.all(b) else _OPS[op.name](a, b)
    if op.name in ("arith.remsi", "arith.divsi"):
        a, b = given
        if not np.all(b) or np.any(a < 0) or np.any(b < 0):
            return None
        return a % b if op.name == "arith.remsi" else a // b
    if op.name == "arith.cmpi":
        predicate = arith.CmpIPredicate(ir.IntegerAttr(op.attributes["predicate"]).value).name
        return _COMPARE[_SIGNED.index(predicate)](*given) if predicate in _SIGNED else None
    return np.where(given[0], given[1], given[2]) if op.name == "arith.select" else None


def read(context: Lowering, memory: MemRef, indices: Sequence[ir.Value], last: Numbers) -> ir.Value | None:
    """memory[indices], where the others of the indices are the same for all lanes, and the last ones are `last`.

    What lies between the least and the greatest is loaded, and put in order: only elements that are read, where columns follow each
    other in memory; a gather otherwise. None where that would load more than twice what is read.
    """
    low, high = int(last.min()), int(last.max())
    count = high - low + 1
    if count > 2 * context.lanes or any(isinstance(index.type, ir.VectorType) for index in indices[:-1]):
        return None
    start = emit.integer(0)
    for index, stride in zip(indices[:-1], memory.strides, strict=False):
        start = emit.add(start, emit.mul(emit.to_i64(index), stride))
    element, stride = emit.storage(memory.element), memory.strides[-1]
    type_ = ir.VectorType.get([context.lanes], element)
    dense = arith.CmpIOp(arith.CmpIPredicate.eq, stride, emit.integer(1)).result
    branch = scf.IfOp(dense, [type_], has_else=True)
    with ir.InsertionPoint(branch.then_block):
        first = emit.element_pointer(memory.address, emit.add(start, emit.integer(low)), element)
        scf.YieldOp([ordered(first, element, last - low)])
    with ir.InsertionPoint(branch.else_block):
        numbers = [emit.mul(emit.integer(int(n)), stride) for n in last]
        values = [emit.load(element, emit.element_pointer(memory.address, emit.add(start, n), element)) for n in numbers]
        scf.YieldOp([vector.FromElementsOp(type_, values).result])
    return emit.from_storage(branch.results[0], memory.element)


def ordered(first: ir.Value, element: ir.Type, places: Numbers) -> ir.Value:
    """The elements at these places from an address on."""
    count, lanes = int(places.max()) + 1, len(places)
    if count == 1:
        return emit.splat(emit.load(element, first), lanes)
    loaded = emit.load(ir.VectorType.get([count], element), first)
    if np.array_equal(places, np.arange(lanes)):
        return loaded
    mask = ir.DenseI32ArrayAttr.get([int(n) for n in places])
    type_ = ir.VectorType.get([lanes], element)
    return ir.Operation.create("llvm.shufflevector", results=[type_], operands=[loaded, loaded], attributes={"mask": mask}).result
