"""The rule for `tile.scatter_add`.

Where all lanes meet in one element, their sum is added. Where the lanes' elements follow each other in memory, up or down, they
are added as a vector. Which it is may show only at run time. Otherwise one lane comes after the other, since several may meet.
"""

from collections.abc import Callable, Sequence

from attn_mlir.backends.cpu.lowering import emit
from attn_mlir.backends.cpu.lowering.context import Lowering, MemRef
from attn_mlir.backends.cpu.lowering.maps import lower_scalar, uses_column
from attn_mlir.errors import UnsupportedError
from attn_mlir.mlir import arith, ir, llvm, scf, vector


def lower_scatter_add(context: Lowering, op: ir.Operation) -> None:
    """`tile.scatter_add`."""
    target, rows, *columns = op.operands
    memory = context.get(target)
    if not isinstance(memory, MemRef):
        raise UnsupportedError("tile.scatter_add adds to an argument")
    body = op.regions[0].blocks[0]
    operations = [view.operation for view in body.operations]
    i, *j = body.arguments
    context.values[i] = emit.lane_numbers(context.lanes)
    valid = arith.CmpIOp(arith.CmpIPredicate.slt, emit.lane_numbers(context.lanes), emit.splat(context.scalar(rows), context.lanes)).result
    scatter = ScatterPlace(context, memory, context.scalar(rows), valid)
    in_loop = uses_column(operations[:-1], j[0]) if j else []
    for inner in operations[:-1]:
        if inner not in in_loop:
            lower_scalar(context, inner)
    yielded = list(operations[-1].operands)
    if not j:
        scatter.add_where([context.scalar(value) for value in yielded])
        return
    loop = scf.ForOp(emit.index(0), context.scalar(columns[0]), emit.index(1), [])
    with ir.InsertionPoint(loop.body):
        context.values[j[0]] = loop.induction_variable
        for inner in in_loop:
            lower_scalar(context, inner)
        scatter.add_where([context.scalar(value) for value in yielded])
        scf.YieldOp([])


class ScatterPlace:
    """Additions to one argument, from lanes of which the first `rows` are valid."""

    def __init__(self, context: Lowering, memory: MemRef, rows: ir.Value, valid: ir.Value) -> None:
        self._context, self._memory, self._rows, self._valid = context, memory, rows, valid

    def add_where(self, yielded: list[ir.Value]) -> None:
        """Adds a value at indices where it is present: what `tile.scatter_yield` has."""
        value, present, *indices = yielded
        always = _is_true(present)
        mask = self._valid if always else arith.AndIOp(emit.splat(present, self._context.lanes), self._valid).result
        self._add(value, (mask, always), indices)

    def add(self, value: ir.Value, indices: list[ir.Value]) -> None:
        """Adds a value at indices, in the valid lanes."""
        self._add(value, (self._valid, True), indices)

    def _add(self, value: ir.Value, where: tuple[ir.Value, bool], indices: list[ir.Value]) -> None:
        (mask, always), lanes = where, self._context.lanes
        uniform, varying = emit.integer(0), None
        for index, stride in zip(indices, self._memory.strides, strict=True):
            if isinstance(index.type, ir.VectorType):
                part = arith.MulIOp(emit.to_i64(index), emit.splat(stride, lanes)).result
                varying = part if varying is None else arith.AddIOp(varying, part).result
            else:
                uniform = emit.add(uniform, emit.mul(emit.to_i64(index), stride))
        wide = emit.splat(value, lanes)
        if varying is None:
            self._add_all(wide, mask, always, uniform)
        else:
            self._add_each(wide, mask, arith.AddIOp(varying, emit.splat(uniform, lanes)).result)

    def _add_all(self, value: ir.Value, mask: ir.Value, always: bool, offset: ir.Value) -> None:
        """All lanes add to one element: their sum, in a tree of fixed shape."""
        total = _tree(arith.SelectOp(mask, value, emit.number(value.type, 0.0)).result)
        place = emit.element_pointer(self._memory.address, offset, self._memory.element)
        if not always:
            some = vector.ReductionOp(mask.type.element_type, vector.CombiningKind.OR, mask).result
            place = llvm.SelectOp(some, place, self._context.nowhere).res
        _add_at(total, place)

    def _add_each(self, value: ir.Value, mask: ir.Value, offsets: ir.Value) -> None:
        """Each lane adds to an element of its own, or several to one."""
        lanes, element = self._context.lanes, self._memory.element
        first = vector.ExtractOp(offsets, [], [0]).result
        steps = arith.SubIOp(offsets, emit.splat(first, lanes)).result
        up = emit.to_i64(emit.lane_numbers(lanes))
        level = emit.splat(emit.integer(0), lanes)
        down = arith.SubIOp(level, up).result

        def add_up() -> None:
            add_vector(value, mask, emit.element_pointer(self._memory.address, first, element))

        def add_down() -> None:
            lowest = arith.SubIOp(first, emit.integer(lanes - 1)).result
            add_vector(_reversed(value), _reversed(mask), emit.element_pointer(self._memory.address, lowest, element))

        def has(wanted: ir.Value) -> ir.Value:
            return _all(arith.CmpIOp(arith.CmpIPredicate.eq, steps, wanted).result, mask)

        cases = [
            (has(level), lambda: self._add_all(value, mask, False, first)),
            (has(up), add_up),
            (has(down), add_down),
        ]
        _first_case(cases, lambda: self._add_in_turn(value, mask, offsets))

    def _add_in_turn(self, value: ir.Value, mask: ir.Value, offsets: ir.Value) -> None:
        """Lane by lane; lanes that add nothing write beside the target."""
        i64 = emit.i64()
        lanes, element = self._context.lanes, self._memory.element
        base, nowhere = (llvm.PtrToIntOp(i64, address).res for address in (self._memory.address, self._context.nowhere))
        size = emit.splat(emit.integer(emit.bytes_of(element)), lanes)
        address = arith.AddIOp(arith.MulIOp(offsets, size).result, emit.splat(base, lanes)).result
        address = arith.SelectOp(mask, address, emit.splat(nowhere, lanes)).result
        values, places = self._context.buffers[-1], self._context.places
        emit.store(value, values)
        emit.store(address, places)
        loop = scf.ForOp(emit.index(0), self._rows, emit.index(1), [])
        with ir.InsertionPoint(loop.body):
            lane = loop.induction_variable
            place = llvm.IntToPtrOp(emit.pointer(), emit.load(i64, emit.element_pointer(places, lane, i64))).res
            _add_at(emit.load(element, emit.element_pointer(values, lane, element)), place)
            scf.YieldOp([])


def _first_case(cases: Sequence[tuple[ir.Value, Callable[[], None]]], otherwise: Callable[[], None]) -> None:
    """if ... else if ... else."""
    if not cases:
        otherwise()
        return
    (condition, body), *rest = cases
    branch = scf.IfOp(condition, [], has_else=True)
    with ir.InsertionPoint(branch.then_block):
        body()
        scf.YieldOp([])
    with ir.InsertionPoint(branch.else_block):
        _first_case(rest, otherwise)
        scf.YieldOp([])


def _all(condition: ir.Value, mask: ir.Value) -> ir.Value:
    """Whether a condition holds in every lane of the mask."""
    true = emit.number(mask.type, 1)
    holds = arith.OrIOp(condition, arith.XOrIOp(mask, true).result).result
    return vector.ReductionOp(mask.type.element_type, vector.CombiningKind.AND, holds).result


def _reversed(value: ir.Value) -> ir.Value:
    # Not vector.shuffle, which is simplified to one with a poison operand, and ub.poison has no translation.
    order = ir.DenseI32ArrayAttr.get(list(range(ir.VectorType(value.type).shape[0]))[::-1])
    return llvm.ShuffleVectorOp(value.type, value, value, order).res


def add_vector(value: ir.Value, mask: ir.Value, place: ir.Value) -> None:
    """Adds the lanes of the mask to elements that follow each other from `place` on."""
    alignment = ir.IntegerAttr.get(ir.IntegerType.get_signless(32), emit.bytes_of(ir.VectorType(value.type).element_type))
    attributes = {"alignment": alignment}
    zeros = emit.number(value.type, 0.0)
    old = ir.Operation.create("llvm.intr.masked.load", results=[value.type], operands=[place, mask, zeros], attributes=attributes).result
    total = arith.AddFOp(old, value).result
    ir.Operation.create("llvm.intr.masked.store", operands=[total, place, mask], attributes=attributes)


def _add_at(value: ir.Value, place: ir.Value) -> None:
    emit.store(arith.AddFOp(emit.load(value.type, place), value).result, place)


def _tree(value: ir.Value) -> ir.Value:
    """The sum of a vector's elements, halves first; an odd element is added at the end."""
    type_ = ir.VectorType(value.type)
    size, single = type_.shape[0], None
    while size > 1:
        half = size // 2
        if size % 2:
            last = vector.ExtractOp(value, [], [size - 1]).result
            single = last if single is None else arith.AddFOp(single, last).result
        part = ir.VectorType.get([half], type_.element_type)
        low, high = (vector.ExtractStridedSliceOp(part, value, [begin], [half], [1]).result for begin in (0, half))
        value, size = arith.AddFOp(low, high).result, half
    total = vector.ExtractOp(value, [], [0]).result
    return total if single is None else arith.AddFOp(total, single).result


def _is_true(value: ir.Value) -> bool:
    if isinstance(value.owner, ir.Block) or value.owner.operation.name != "arith.constant" or isinstance(value.type, ir.VectorType):
        return False
    return bool(ir.IntegerAttr(value.owner.operation.attributes["value"]).value)
