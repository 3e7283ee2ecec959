"""The rule for `attn.range`: smallest and largest element of a box, by a scan."""

from attn_mlir.backends.cpu.lowering import emit
from attn_mlir.backends.cpu.lowering.context import Lowering, MemRef
from attn_mlir.errors import UnsupportedError
from attn_mlir.mlir import arith, ir, scf


def lower_range(context: Lowering, op: ir.Operation) -> None:
    """Scans the box; it is not empty."""
    memory = context.get(op.operands[0])
    if not isinstance(memory, MemRef):
        raise UnsupportedError("attn.range reads an argument")
    box = [context.scalar(value) for value in list(op.operands)[1:]]
    rank = len(box) // 2
    lowest = emit.to_index(emit.integer(2**63 - 1))
    highest = emit.to_index(emit.integer(-(2**63)))
    found = _scan(memory, box[:rank], box[rank:], emit.integer(0), [lowest, highest])
    context.values.update(zip(op.results, found, strict=True))


def _scan(memory: MemRef, begins: list[ir.Value], ends: list[ir.Value], offset: ir.Value, carried: list[ir.Value]) -> list[ir.Value]:
    if not begins:
        element = emit.storage(memory.element)
        value = emit.load(element, emit.element_pointer(memory.address, offset, element))
        cast = arith.ExtUIOp(emit.i64(), value).result if element != memory.element else _signed(value)
        number = emit.to_index(cast)
        return [arith.MinSIOp(carried[0], number).result, arith.MaxSIOp(carried[1], number).result]
    stride = memory.strides[len(memory.strides) - len(begins)]
    loop = scf.ForOp(begins[0], ends[0], emit.index(1), carried)
    with ir.InsertionPoint(loop.body):
        inner = emit.add(offset, emit.mul(emit.to_i64(loop.induction_variable), stride))
        scf.YieldOp(_scan(memory, begins[1:], ends[1:], inner, list(loop.inner_iter_args)))
    return list(loop.results)


def _signed(value: ir.Value) -> ir.Value:
    return value if value.type == emit.i64() else arith.ExtSIOp(emit.i64(), value).result
