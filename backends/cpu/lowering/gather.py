"""Reads of captured tensors: a scalar load where all lanes read one element, a gather otherwise.

Where lanes are keys, neighbours often read neighbours; then, found out at run time, it is one vector load.
"""

from attn_mlir.backends.cpu.lowering import emit
from attn_mlir.backends.cpu.lowering.context import Lowering, MemRef
from attn_mlir.mlir import arith, ir, scf, vector


def read_memory(context: Lowering, memory: MemRef, indices: list[ir.Value]) -> ir.Value:
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
    if not context.by_keys or not isinstance(indices[-1].type, ir.VectorType):
        return emit.from_storage(gather_lanes(context, base, varying, element), memory.element)
    first = vector.ExtractOp(varying, [], [0]).result
    steps = arith.SubIOp(varying, emit.splat(first, context.lanes)).result
    follows = arith.CmpIOp(arith.CmpIPredicate.eq, steps, emit.to_i64(emit.lane_numbers(context.lanes))).result
    every = vector.ReductionOp(follows.type.element_type, vector.CombiningKind.AND, follows).result
    type_ = ir.VectorType.get([context.lanes], element)
    branch = scf.IfOp(every, [type_], has_else=True)
    with ir.InsertionPoint(branch.then_block):
        scf.YieldOp([emit.load(type_, emit.element_pointer(base, first, element))])
    with ir.InsertionPoint(branch.else_block):
        scf.YieldOp([gather_lanes(context, base, varying, element)])
    return emit.from_storage(branch.results[0], memory.element)


def gather_lanes(context: Lowering, base: ir.Value, offsets: ir.Value, element: ir.Type) -> ir.Value:
    """One element for each lane, as many elements after `base` as `offsets` tell."""
    addresses = emit.element_pointer(base, offsets, element)
    type_ = ir.VectorType.get([context.lanes], element)
    mask_type = ir.VectorType.get([context.lanes], ir.IntegerType.get_signless(1))
    everything = ir.DenseElementsAttr.get_splat(mask_type, ir.IntegerAttr.get(ir.IntegerType.get_signless(1), 1))
    mask = arith.ConstantOp(mask_type, everything).result
    alignment = ir.IntegerAttr.get(ir.IntegerType.get_signless(32), emit.bytes_of(element))
    return ir.Operation.create(
        "llvm.intr.masked.gather", results=[type_], operands=[addresses, mask], attributes={"alignment": alignment}
    ).result
