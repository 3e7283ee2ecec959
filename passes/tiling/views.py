"""Parts of memrefs: some of the columns, or one of several slots."""

from attn_mlir.mlir import ir, memref
from attn_mlir.passes.tiling.scalars import constant_index


def columns(memory: ir.Value, first: ir.Value | int, count: int) -> ir.Value:
    """`count` columns of [B, H, S, D] from `first` on; the memref itself where that is all of them."""
    type_ = ir.MemRefType(memory.type)
    if type_.shape[3] == count:
        return memory
    shape = [*type_.shape[:3], count]
    dynamic = ir.ShapedType.get_dynamic_size()
    sizes = [memref.DimOp(memory, constant_index(axis)).result for axis in range(3) if shape[axis] == dynamic]
    if isinstance(first, int):
        return _view(memory, shape, ([0, 0, 0, first], []), (shape, sizes))
    return _view(memory, shape, ([0, 0, 0, dynamic], [first]), (shape, sizes))


def slot(memory: ir.Value, number: ir.Value) -> ir.Value:
    """Slot `number` of [slots, ...] as [...], whose sizes are dynamic."""
    type_ = ir.MemRefType(memory.type)
    dynamic = ir.ShapedType.get_dynamic_size()
    sizes = [memref.DimOp(memory, constant_index(axis)).result for axis in range(1, type_.rank)]
    rest = [dynamic] * (type_.rank - 1)
    return _view(memory, rest, ([dynamic] + [0] * (type_.rank - 1), [number]), ([1, *rest], sizes))


def _view(
    memory: ir.Value, shape: list[int], offsets: tuple[list[int], list[ir.Value]], sizes: tuple[list[int], list[ir.Value]]
) -> ir.Value:
    type_ = ir.MemRefType(memory.type)
    stride = ir.ShapedType.get_dynamic_stride_or_offset()
    begin = stride if any(offsets[0]) else ir.StridedLayoutAttr(type_.layout).offset
    layout = ir.StridedLayoutAttr.get(begin, [stride] * len(shape))
    result = ir.MemRefType.get(shape, type_.element_type, layout=layout)
    return memref.SubViewOp(result, memory, offsets[1], sizes[1], [], offsets[0], sizes[0], [1] * type_.rank).result
