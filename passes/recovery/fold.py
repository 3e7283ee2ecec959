"""Folds what a row state's initial value leaves behind once a step has been written out for the whole row.

The rules say what holds for finite scores of any usual size: adding to the lowest number changes nothing, a maximum
with it is the other operand, and zero times a number is zero. Whether that was right is confirmed on numbers afterwards.
"""

from collections.abc import Callable

from attn_mlir.mlir import ir
from attn_mlir.passes.regions import erase_unused
from attn_mlir.passes.simplification import RULES
from attn_mlir.passes.simplification.folding import constant, number

# Beyond these a number stands for an infinity; f32 ends at 3.4e38, and users write -1e38 as well.
_LOW, _HIGH = -1e37, 1e37


def fold(block: ir.Block) -> None:
    """Folds the ops of `block`, and drops those that nothing uses."""
    while any([_fold_op(op) for op in [o.operation for o in block.operations]]):
        pass
    erase_unused(block)


def _fold_op(op: ir.Operation) -> bool:
    if len(list(op.results)) != 1 or not list(op.operands) or not list(op.results[0].uses):
        return False
    with op.location, ir.InsertionPoint(op):
        rule = _RULES.get(op.name)
        new = rule(op) if rule else None
        new = RULES[op.name](op) if new is None and op.name in RULES else new
    if new is None:
        return False
    if isinstance(op.location, ir.NameLoc) and not isinstance(new.owner, ir.Block) and new.owner.operation.name == "attn.reduce":
        new.owner.operation.location = op.location  # a state's name, which is now that of the reduction
    op.results[0].replace_all_uses_with(new)
    return True


def _is_low(value: ir.Value) -> bool:
    known = number(value)
    return known is not None and known <= _LOW


def _is_high(value: ir.Value) -> bool:
    known = number(value)
    return known is not None and known >= _HIGH


def _is_zero(value: ir.Value) -> bool:
    return number(value) == 0.0


def _maximum(op: ir.Operation) -> ir.Value | None:
    x, y = op.operands
    return y if _is_low(x) else x if _is_low(y) else None


def _minimum(op: ir.Operation) -> ir.Value | None:
    x, y = op.operands
    return y if _is_high(x) else x if _is_high(y) else None


def _add(op: ir.Operation) -> ir.Value | None:
    if all(number(x) is not None for x in op.operands):
        return None
    return next((x for x in op.operands if _is_low(x) or _is_high(x)), None)


def _sub(op: ir.Operation) -> ir.Value | None:
    x, y = op.operands
    if number(x) is not None and number(y) is not None:
        return None
    if _is_low(x) or _is_high(x):
        return x
    known = number(y)
    return constant(-known, y.type) if known is not None and (_is_low(y) or _is_high(y)) else None


def _mul(op: ir.Operation) -> ir.Value | None:
    return next((x for x in op.operands if _is_zero(x)), None)


def _div(op: ir.Operation) -> ir.Value | None:
    x, y = op.operands
    return x if _is_zero(x) and not _is_zero(y) else None


def _exponential(op: ir.Operation) -> ir.Value | None:
    x = op.operands[0]
    return constant(0.0, x.type) if _is_low(x) else None


def _detach(op: ir.Operation) -> ir.Value | None:
    x = op.operands[0]
    return x if number(x) is not None else None


_RULES: dict[str, Callable[[ir.Operation], ir.Value | None]] = {
    "arith.maximumf": _maximum,
    "arith.minimumf": _minimum,
    "arith.addf": _add,
    "arith.subf": _sub,
    "arith.mulf": _mul,
    "arith.divf": _div,
    "math.exp": _exponential,
    "math.exp2": _exponential,
    "attn.detach": _detach,
}
