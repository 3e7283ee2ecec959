"""Values in the maps of pairs: which ones the producer keeps for query rows, and which can be computed before all products are there."""

from collections.abc import Callable, Iterable

from attn_mlir.backends.gpu.scalars import dependence, frontier
from attn_mlir.backends.gpu.structure import body as body_of
from attn_mlir.backends.gpu.structure import maker
from attn_mlir.mlir import ir

_J = frozenset({1})
_COSTLY = ("memref.load", "arith.divf", "math.")


def slice_of(values: Iterable[ir.Value], block: ir.Block, stop: ir.Value | None = None) -> set[ir.Value]:
    """Everything in the block that the values need, and they; nothing behind `stop`."""
    found: set[ir.Value] = set()
    todo = list(values)
    while todo:
        value = todo.pop()
        if value in found:
            continue
        found.add(value)
        op = maker(value)
        if op is not None and op.block == block and (stop is None or value != stop):
            todo += list(op.operands)
    return found


def column_values(op: ir.Operation, type_of: Callable[[ir.Value], str]) -> list[ir.Value]:
    """The values of a map that depend on the query alone and cost something: they are computed once and kept in shared memory."""
    block = body_of(op)
    found = []
    if len(list(block.arguments)) == 2:
        for value in frontier(block, dependence(block), _J):
            costly = any(_is_costly(v) for v in slice_of([value], block))
            if costly and type_of(value) in ("float", "int"):
                found.append(value)
    return found


def _is_costly(value: ir.Value) -> bool:
    op = maker(value)
    return op is not None and op.name.startswith(_COSTLY)


def early_value(block: ir.Block, product: ir.Value, divisions: bool = True) -> ir.Value | None:
    """The last value through which alone the elements of `product` matter: it can be computed before the other products are there.

    Without `divisions`, a quotient is none: it takes more registers while the other products are in flight.
    """
    operations = [view.operation for view in block.operations]
    of_product = _reached(operations, lambda op: op.name == "tensor.extract" and op.operands[0] == product)
    mixed = _reached(operations, lambda op: op.name == "tensor.extract" and op.operands[0] != product)
    for op in reversed(operations[:-1]):
        value = op.results[0] if len(list(op.results)) else None
        if value is None or value not in of_product or value in mixed or not isinstance(value.type, ir.F32Type):
            continue
        if op.name == "arith.divf" and not divisions:
            continue
        if op.name == "tensor.extract":
            return None
        inside = slice_of([value], block)
        users = [use.owner.operation for v in inside & of_product if v != value for use in v.uses]
        if all(any(result in inside for result in user.results) for user in users):
            return value
    return None


def early_row_values(op: ir.Operation, product: ir.Value, divisions: bool, type_of: Callable[[ir.Value], str]) -> list[ir.Value]:
    """The staged values of query rows that the early value of `product` in a map needs."""
    block = body_of(op)
    value = early_value(block, product, divisions)
    needed = slice_of([value], block) if value is not None else set()
    return [value for value in column_values(op, type_of) if value in needed]


def _reached(operations: list[ir.Operation], starts: Callable[[ir.Operation], bool]) -> set[ir.Value]:
    found: set[ir.Value] = set()
    for op in operations:
        if starts(op) or any(operand in found for operand in op.operands):
            found.update(op.results)
    return found
