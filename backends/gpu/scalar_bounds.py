"""Between which numbers an integer of a kernel lies, so that 32 bits are used where they suffice.

Limits that the driver checks: at most 2^24 - 2^12 positions (queries or keys), 32767 batches and heads. Positions, also those that a
block has past the end, then are exact in f32, and so are their differences.
"""

from collections.abc import Callable

from attn_mlir.mlir import ir
from attn_mlir.passes.order import deepest_first

Bounds = tuple[int, int]
POSITIONS = (1 << 24) - (1 << 12)
"""The longest sequence."""
HEADS = (1 << 15) - 1
"""The most heads, and the most batches, that a tensor may have."""
INDICES = (1 << 31) - 1
"""The most elements along a dimension of a captured tensor."""
MAX_COLUMNS = 256
"""The largest head dimension, of queries and keys or of values."""
_INT = (-(1 << 31), (1 << 31) - 1)
_WIDE = (-(1 << 63), (1 << 63) - 1)


def fits_int(bounds: Bounds) -> bool:
    """Whether 32 bits suffice."""
    return _INT[0] <= bounds[0] and bounds[1] <= _INT[1]


def type_bounds(type_: ir.Type) -> Bounds:
    """What a type can hold; `index` counts as 64 bits, i1 is 0 or 1."""
    if not isinstance(type_, ir.IntegerType):
        return _WIDE
    return (0, 1) if type_.width == 1 else (-(1 << (type_.width - 1)), (1 << (type_.width - 1)) - 1)


class IntegerRanges:
    """Bounds of integer values, computed on demand."""

    def __init__(self) -> None:
        self._known: dict[ir.Value, Bounds] = {}

    def of(self, value: ir.Value) -> Bounds:
        """(lowest, highest), both possible; exact arithmetic that leaves 64 bits (or the type) wraps, so that anything is possible."""
        if value in self._known:
            return self._known[value]
        for v in deepest_first(value, self._known, _operands):
            limits = type_bounds(v.type)
            low, high = self._compute(v)
            self._known[v] = (low, high) if limits[0] <= low and high <= limits[1] else limits
        return self._known[value]

    def _compute(self, value: ir.Value) -> Bounds:
        if isinstance(value.owner, ir.Block):
            return self._argument(value)
        op = value.owner.operation
        rule = _RULES.get(op.name)
        if op.name == "arith.minsi" and any(_is_map_index(operand) for operand in op.operands):
            return (0, min(self.of(operand)[1] for operand in op.operands))  # a row that exists: there is at least one
        if rule is not None:
            return rule(*(self.of(operand) for operand in op.operands))
        match op.name:
            case "arith.constant":
                number = ir.IntegerAttr(op.attributes["value"]).value
                return (abs(number),) * 2 if type_bounds(value.type) == (0, 1) else (number, number)  # type: ignore[return-value]
            case "arith.muli":
                return self._product(op)
            case "arith.select":
                return _hull(self.of(op.operands[1]), self.of(op.operands[2]))
            case "arith.index_cast" | "arith.extsi":
                low, high = self.of(op.operands[0])
                return (-high, -low) if type_bounds(op.operands[0].type) == (0, 1) and op.name == "arith.extsi" else (low, high)
            case "arith.index_castui" | "arith.extui":
                low, high = self.of(op.operands[0])
                return (low, high) if low >= 0 else _WIDE
            case "tile.program_id":
                return (0, POSITIONS) if ir.IntegerAttr(op.attributes["axis"]).value == 0 else (0, HEADS)
            case "memref.dim":
                return self._dim(op)
            case "memref.load" if _is_boundary(op):
                return (0, POSITIONS)
            case "memref.load" if _is_item(op):
                return (0, HEADS if self.of(op.operands[2]) == (0, 0) and not _is_last(op) else POSITIONS)
        return type_bounds(value.type)

    def _argument(self, value: ir.Value) -> Bounds:
        argument = ir.BlockArgument(value)
        owner = argument.owner.owner.operation
        if owner.name in ("tile.map", "tile.band", "tile.scatter_add"):
            return (0, min(1 << 12, self.of(owner.operands[argument.arg_number - len(argument.owner.arguments)])[1]))
        if owner.name == "scf.for" and argument.arg_number == 0:
            return (0, max(0, min(POSITIONS, self.of(owner.operands[1])[1])))  # loops run over positions and heads
        kernel = owner.attributes["tile.kernel"] if owner.name == "func.func" and "tile.kernel" in owner.attributes else None
        last = argument.arg_number == len(argument.owner.arguments) - 1 and not isinstance(value.type, ir.MemRefType)
        if kernel is not None and last and "grid" in kernel and ir.StringAttr(kernel["grid"]).value == "pairs":
            return (0, POSITIONS)  # the keys of a chunk
        return type_bounds(value.type)

    def _product(self, op: ir.Operation) -> Bounds:
        for operand in op.operands:
            maker = None if isinstance(operand.owner, ir.Block) else operand.owner.operation
            if maker is not None and maker.name == "tile.program_id" and ir.IntegerAttr(maker.attributes["axis"]).value == 0:
                return (0, POSITIONS)  # where the block begins
        return _mul(*(self.of(operand) for operand in op.operands))

    def _dim(self, op: ir.Operation) -> Bounds:
        """Limits hold for q, k, v and their like, whose last dimension is static; captured tensors may have any size."""
        shape = ir.MemRefType(op.operands[0].type)
        axis = self.of(op.operands[1])[0]
        if shape.rank == 4 and not shape.is_dynamic_dim(3):
            return (0, POSITIONS if axis == 2 else HEADS)
        return (0, INDICES)


def _operands(value: ir.Value) -> list[ir.Value]:
    """The integers that `value` is computed of."""
    if isinstance(value.owner, ir.Block):
        return []
    return [v for v in value.owner.operation.operands if isinstance(v.type, (ir.IntegerType, ir.IndexType))]


def reads_work(op: ir.Operation) -> bool:
    """Whether an op reads where a sequence of packed tensors lies, or an item of a list of work: nothing writes these."""
    return op.name == "memref.load" and isinstance(op.operands[0].owner, ir.Block) and (_is_boundary(op) or _is_item(op))


def _is_boundary(op: ir.Operation) -> bool:
    """Whether a `memref.load` reads where one of several sequences begins or ends, or how long it is."""
    memory, facts = op.operands[0], _facts_around(op)
    if "sequences" in facts:
        return ir.IntegerAttr(facts["sequences"]).value == ir.BlockArgument(memory).arg_number
    number = ir.BlockArgument(memory).arg_number if "lengths" in facts else -1
    return number >= 0 and number in (*ir.DenseI64ArrayAttr(facts["lengths"]), *ir.DenseI64ArrayAttr(facts["begins"]))


def _is_item(op: ir.Operation) -> bool:
    """Whether a `memref.load` reads the list of work of a kernel on packed tensors: the last argument but for counters."""
    memory = op.operands[0]
    if "lengths" not in _facts_around(op):
        return False
    types = [argument.type for argument in ir.BlockArgument(memory).owner.arguments]
    tables = [n for n, type_ in enumerate(types) if isinstance(type_, ir.MemRefType) and type_.rank == 2]
    return ir.BlockArgument(memory).arg_number == tables[-1]


def _is_last(op: ir.Operation) -> bool:
    """Whether it reads the last row of a list of work, which tells how many items there are: its number is made of their count."""
    row = op.operands[1].owner
    return not isinstance(row, ir.Block) and row.operation.name == "arith.subi"


def _facts_around(op: ir.Operation) -> ir.DictAttr | dict[str, ir.Attribute]:
    """`tile.kernel` of the kernel whose argument a `memref.load` reads."""
    memory = op.operands[0]
    if not isinstance(memory.owner, ir.Block):
        return {}
    attributes = memory.owner.owner.operation.attributes
    return ir.DictAttr(attributes["tile.kernel"]) if "tile.kernel" in attributes else {}


def _is_map_index(value: ir.Value) -> bool:
    return isinstance(value.owner, ir.Block) and value.owner.owner.operation.name in ("tile.map", "tile.band", "tile.scatter_add")


def _hull(*bounds: Bounds) -> Bounds:
    return min(low for low, _ in bounds), max(high for _, high in bounds)


def _corners(function: Callable[[int, int], int], a: Bounds, b: Bounds) -> Bounds:
    values = [function(x, y) for x in a for y in b]
    return min(values), max(values)


def _mul(a: Bounds, b: Bounds) -> Bounds:
    return _corners(lambda x, y: x * y, a, b)


def _quotient(a: Bounds, b: Bounds) -> Bounds:
    """Of any rounding; a divisor of 0 counts as 1."""
    largest = max(abs(a[0]), abs(a[1]))
    if b[0] >= 0:
        least = max(1, b[0])
        return min(0, a[0] // least), max(0, -(-a[1] // least))
    return -largest, largest


def _remainder(a: Bounds, b: Bounds) -> Bounds:
    largest = min(max(abs(a[0]), abs(a[1])), max(abs(b[0]), abs(b[1])))
    return (0 if a[0] >= 0 else -largest), largest


def _bits(a: Bounds, b: Bounds) -> Bounds:
    """Of and, or, exclusive or."""
    low, high = _hull(a, b)
    bits = max(high.bit_length(), (-low - 1).bit_length() if low < 0 else 0)
    return (0 if low >= 0 else -(1 << bits)), (1 << bits) - 1


def _shift_left(a: Bounds, b: Bounds) -> Bounds:
    return _mul(a, (1 << b[0], 1 << b[1])) if 0 <= b[0] and b[1] < 64 else _WIDE


def _shift_right(a: Bounds, b: Bounds) -> Bounds:
    return _corners(lambda x, y: x >> y, a, b) if 0 <= b[0] and b[1] < 64 else _WIDE


_RULES: dict[str, Callable[..., Bounds]] = {
    "arith.addi": lambda a, b: (a[0] + b[0], a[1] + b[1]),
    "arith.subi": lambda a, b: (a[0] - b[1], a[1] - b[0]),
    "arith.minsi": lambda a, b: (min(a[0], b[0]), min(a[1], b[1])),
    "arith.maxsi": lambda a, b: (max(a[0], b[0]), max(a[1], b[1])),
    "arith.minui": lambda a, b: (min(a[0], b[0]), min(a[1], b[1])) if a[0] >= 0 and b[0] >= 0 else _WIDE,
    "arith.maxui": lambda a, b: (max(a[0], b[0]), max(a[1], b[1])) if a[0] >= 0 and b[0] >= 0 else _WIDE,
    "arith.divsi": _quotient,
    "arith.floordivsi": _quotient,
    "arith.ceildivsi": _quotient,
    "arith.divui": lambda a, b: _quotient(a, b) if a[0] >= 0 and b[0] >= 0 else _WIDE,
    "arith.remsi": _remainder,
    "arith.remui": lambda a, b: _remainder(a, b) if a[0] >= 0 and b[0] >= 0 else _WIDE,
    "arith.andi": _bits,
    "arith.ori": _bits,
    "arith.xori": _bits,
    "arith.shli": _shift_left,
    "arith.shrsi": _shift_right,
    "math.absi": lambda a: (0 if a[0] <= 0 <= a[1] else min(abs(a[0]), abs(a[1])), max(abs(a[0]), abs(a[1]))),
}
