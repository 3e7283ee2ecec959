"""Sizes of results: arithmetic on the sizes of a call's operands, as the shape functions that `attn-outline` writes have it."""

from collections.abc import Sequence
from dataclasses import dataclass

from attn_mlir.mlir import ir

Shape = Sequence[int]


@dataclass(frozen=True)
class SizeStep:
    """A step of the arithmetic of a size, in postfix order.

    "size" is that of dimension `axis` of an operand, "number" is `operand` itself; all others take the two values before.
    """

    op: str
    operand: int = 0
    axis: int = 0


Size = tuple[SizeStep, ...]
_OPERATIONS = {"arith.addi": "+", "arith.subi": "-", "arith.muli": "*", "arith.floordivsi": "/", "arith.ceildivsi": "ceil"}


def read_sizes(function: ir.Operation, ranks: Sequence[int]) -> list[tuple[Size, ...]]:
    """What a shape function returns, for results of so many dimensions each."""
    block = function.regions[0].blocks[0]
    numbers = {argument: number for number, argument in enumerate(block.arguments)}
    sizes = [_read(value, numbers) for value in block.operations[-1].operation.operands]
    ends = [sum(ranks[: i + 1]) for i in range(len(ranks))]
    return [tuple(sizes[end - rank : end]) for end, rank in zip(ends, ranks, strict=True)]


def _read(value: ir.Value, numbers: dict[ir.Value, int]) -> Size:
    op = value.owner.operation
    match op.name:
        case "arith.constant":
            return (SizeStep("number", ir.IntegerAttr(op.attributes["value"]).value),)
        case "tensor.dim":
            ((axis,),) = ([term.operand for term in _read(op.operands[1], numbers)],)
            return (SizeStep("size", numbers[op.operands[0]], axis),)
    return (*(term for operand in op.operands for term in _read(operand, numbers)), SizeStep(_OPERATIONS[op.name]))


def like(operand: int, rank: int) -> tuple[Size, ...]:
    """The sizes of an operand."""
    return tuple((SizeStep("size", operand, axis),) for axis in range(rank))


def shape_of(sizes: Sequence[Size], operands: Sequence[Shape]) -> tuple[int, ...]:
    """The shape that these sizes make for operands of these shapes."""
    return tuple(_value(size, operands) for size in sizes)


def _value(size: Size, operands: Sequence[Shape]) -> int:
    stack: list[int] = []
    for term in size:
        match term.op:
            case "size":
                stack.append(operands[term.operand][term.axis])
            case "number":
                stack.append(term.operand)
            case op:
                y, x = stack.pop(), stack.pop()
                stack.append({"+": x + y, "-": x - y, "*": x * y}[op] if op in "+-*" else x // y if op == "/" else -(-x // y))
    return stack[0]


def text_of(size: Size, operand: str) -> str:
    """A size as an expression in C; `operand` is what a size of an operand is written as."""
    stack: list[str] = []
    for term in size:
        match term.op:
            case "size":
                stack.append(operand.format(term.operand, term.axis))
            case "number":
                stack.append(str(term.operand))
            case op:
                y, x = stack.pop(), stack.pop()
                stack.append(f"attn::ceil_div({x}, {y})" if op == "ceil" else f"({x} {op} {y})")
    return stack[0]


def problem_of(size: Size, operands: int) -> bool:
    """Whether a size cannot be computed of so many operands."""
    depth = 0
    for term in size:
        depth += 1 if term.op in ("size", "number") else -1
        if (
            depth < 1
            or term.op not in ("size", "number", *_OPERATIONS.values())
            or (term.op == "size" and not 0 <= term.operand < operands)
        ):
            return True
    return depth != 1


def has_positions(sizes: Sequence[Size]) -> bool:
    """Whether the third dimension counts positions, and not a state's rows."""
    return len(sizes) < 3 or [(term.op, term.axis) for term in sizes[2]] == [("size", 2)]
