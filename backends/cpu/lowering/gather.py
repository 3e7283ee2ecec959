"""Reads of captured tensors: a scalar load where all lanes read one element, a gather otherwise."""

from attn_mlir.backends.cpu.lowering import emit
from attn_mlir.backends.cpu.lowering.context import Context, Memory
from attn_mlir.mlir import arith, ir


def read_memory(context: Context, memory: Memory, indices: list[ir.Value]) -> ir.Value:
    """memory[indices]: a scalar, or one element per lane when an index is a vector."""
    element = emit.storage(memory.element)
    uniform, varying = emit.integer(0), None
    for index, stride in zip(indices, memory.strides, strict=True):
        if isinstance(index.type, ir.VectorType):
            part = arith.MulIOp(emit.to_i64(index), emit.splat(stride, context.lanes)).result
            varying = part if varying is None else arith.AddIOp(varying, part).result
        else:
            uniform = emit.add(uniform, emit.mul(emit.to_i64(index), stride))
    base = emit.element_pointer(memory.address, uniform, element)
    if varying is None:
        return emit.from_storage(emit.load(element, base), memory.element)
    addresses = emit.element_pointer(base, varying, element)
    type_ = ir.VectorType.get([context.lanes], element)
    mask_type = ir.VectorType.get([context.lanes], ir.IntegerType.get_signless(1))
    everything = ir.DenseElementsAttr.get_splat(mask_type, ir.IntegerAttr.get(ir.IntegerType.get_signless(1), 1))
    mask = arith.ConstantOp(mask_type, everything).result
    alignment = ir.IntegerAttr.get(ir.IntegerType.get_signless(32), emit.bytes_of(element))
    gathered = ir.Operation.create(
        "llvm.intr.masked.gather", results=[type_], operands=[addresses, mask], attributes={"alignment": alignment}
    ).result
    return emit.from_storage(gathered, memory.element)
