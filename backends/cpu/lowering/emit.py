"""Shorthands for the ops that the lowering emits. All need an active location and insertion point."""

from collections.abc import Sequence

from attn_mlir.dialects.elements import is_eight_bit
from attn_mlir.mlir import arith, ir, llvm, vector

_DYNAMIC = -2147483648


def made(name: str, result: ir.Type, *operands: ir.Value, attributes: dict[str, ir.Attribute] | None = None) -> ir.Value:
    """The result of a new op, in a third of the time that its class in the bindings takes: most ops of a kernel are made here."""
    return ir.Operation.create(name, results=[result], operands=operands, attributes=attributes).result


def pointer() -> ir.Type:
    """`!llvm.ptr`."""
    return llvm.PointerType.get()


def i64() -> ir.Type:
    """The type i64."""
    return ir.IntegerType.get_signless(64)


def index(value: int) -> ir.Value:
    """A constant of type index."""
    return _constant(ir.IndexType.get(), value)


def integer(value: int, bits: int = 64) -> ir.Value:
    """A constant integer."""
    return _constant(ir.IntegerType.get_signless(bits), value)


def _constant(type_: ir.Type, value: int) -> ir.Value:
    return made("arith.constant", type_, attributes={"value": ir.IntegerAttr.get(type_, value)})


def number(type_: ir.Type, value: float) -> ir.Value:
    """A constant of a type of numbers, or a splat for a vector type; an int for integers and index."""
    element = element_of(type_)
    whole = isinstance(element, (ir.IntegerType, ir.IndexType))
    attribute = ir.IntegerAttr.get(element, int(value)) if whole else ir.FloatAttr.get(element, value)
    if isinstance(type_, ir.VectorType):
        attribute = ir.DenseElementsAttr.get_splat(type_, attribute)
    return made("arith.constant", type_, attributes={"value": attribute})


def to_i64(value: ir.Value) -> ir.Value:
    """Casts index, or a vector of index, to i64."""
    type_ = value.type
    if isinstance(type_, ir.IndexType):
        return made("arith.index_cast", i64(), value)
    if isinstance(type_, ir.VectorType) and isinstance(type_.element_type, ir.IndexType):
        return made("arith.index_cast", ir.VectorType.get(type_.shape, i64()), value)
    return value


def to_index(value: ir.Value) -> ir.Value:
    """Casts i64 to index."""
    return made("arith.index_cast", ir.IndexType.get(), value)


def add(a: ir.Value, b: ir.Value) -> ir.Value:
    """Integer addition."""
    return made("arith.addi", a.type, a, b)


def mul(a: ir.Value, b: ir.Value) -> ir.Value:
    """Integer multiplication."""
    return made("arith.muli", a.type, a, b)


def element_pointer(base: ir.Value, offset: ir.Value, element: ir.Type) -> ir.Value:
    """Address of element `offset` (index, i64 or a vector of them) from `base`."""
    offset = to_i64(offset)
    result, type_ = pointer(), offset.type
    if isinstance(type_, ir.VectorType):
        result = ir.VectorType.get(type_.shape, result)
    attributes = {"rawConstantIndices": ir.DenseI32ArrayAttr.get([_DYNAMIC]), "elem_type": ir.TypeAttr.get(_word(element))}
    return made("llvm.getelementptr", result, base, offset, attributes=attributes)


def load(type_: ir.Type, address: ir.Value, alignment: int | None = None) -> ir.Value:
    """`llvm.load`; without an alignment, vectors are taken to be aligned as their elements only. Floats of 8 bits lie as bytes."""
    word = _word(type_)
    loaded = made("llvm.load", word, address, attributes=_aligned(alignment or bytes_of(element_of(type_))))
    return loaded if word == type_ else made("arith.bitcast", type_, loaded)


def store(value: ir.Value, address: ir.Value, alignment: int | None = None) -> None:
    """`llvm.store`, with the same rule for alignment as `load`."""
    attributes, word = _aligned(alignment or bytes_of(element_of(value.type))), _word(value.type)
    value = value if word == value.type else made("arith.bitcast", word, value)
    ir.Operation.create("llvm.store", operands=[value, address], attributes=attributes)


def _word(type_: ir.Type) -> ir.Type:
    """A type that LLVM has: bytes for floats of 8 bits."""
    if not is_eight_bit(element_of(type_)):
        return type_
    byte = ir.IntegerType.get_signless(8)
    return ir.VectorType.get(ir.VectorType(type_).shape, byte) if isinstance(type_, ir.VectorType) else byte


def _aligned(alignment: int) -> dict[str, ir.Attribute]:
    return {"alignment": ir.IntegerAttr.get(i64(), alignment)}


def splat(value: ir.Value, lanes: int) -> ir.Value:
    """A vector of `lanes` copies of a scalar; vectors stay."""
    if isinstance(value.type, ir.VectorType):
        return value
    return made("vector.broadcast", ir.VectorType.get([lanes], value.type), value)


def lane_numbers(lanes: int) -> ir.Value:
    """The vector [0, 1, ..., lanes - 1] of type index."""
    return vector.StepOp(ir.VectorType.get([lanes], ir.IndexType.get())).result


def storage(element: ir.Type) -> ir.Type:
    """How an element lies in memory: a bool takes a byte."""
    if isinstance(element, ir.IntegerType) and element.width == 1:
        return ir.IntegerType.get_signless(8)
    return element


def from_storage(value: ir.Value, element: ir.Type) -> ir.Value:
    """Undoes `storage` on a loaded scalar or vector."""
    if storage(element) == element:
        return value
    if isinstance(value.type, ir.VectorType):
        return arith.TruncIOp(ir.VectorType.get(value.type.shape, element), value).result
    return arith.TruncIOp(element, value).result


def cast_float(value: ir.Value, element: ir.Type) -> ir.Value:
    """Converts a float, or a vector of floats, to another float type."""
    source = element_of(value.type)
    if source == element:
        return value
    target = ir.VectorType.get(value.type.shape, element) if isinstance(value.type, ir.VectorType) else element
    if bytes_of(source) < bytes_of(element):
        return arith.ExtFOp(target, value).result
    return arith.TruncFOp(target, value).result


def repeat(template: ir.Operation, operands: Sequence[ir.Value], results: Sequence[ir.Type]) -> list[ir.Value]:
    """The same op on other operands and result types."""
    attributes = {name: template.attributes[name] for name in template.attributes}
    op = ir.Operation.create(template.name, results=list(results), operands=list(operands), attributes=attributes, loc=template.location)
    return list(op.results)


def element_of(type_: ir.Type) -> ir.Type:
    """The type of a number, or of those in a vector."""
    return ir.VectorType(type_).element_type if isinstance(type_, ir.VectorType) else type_


def bytes_of(element: ir.Type) -> int:
    """Size of a number or address in memory."""
    if isinstance(element, ir.IntegerType):
        return max(1, element.width // 8)
    return element.width // 8 if isinstance(element, ir.FloatType) else 8


def room(elements: int, type_: ir.Type) -> ir.Value:
    """Memory on the stack, aligned to 64 bytes, from the beginning of the function: a loop would take more each time it goes round."""
    op = ir.InsertionPoint.current.block.owner
    while op.name != "func.func":
        op = op.parent
    with ir.InsertionPoint.at_block_begin(op.regions[0].blocks[0]):
        return llvm.AllocaOp(pointer(), integer(elements), ir.TypeAttr.get(type_), alignment=64).res
