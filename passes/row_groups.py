"""Sums of rows that share a kernel with the elements of the same rows (`attn.row_dot` with `attn.elements`)."""

from attn_mlir.mlir import ir
from attn_mlir.passes.regions import block_of, find_all, pieces


def elements_of(dot: ir.Operation) -> ir.Operation | None:
    """The `attn.elements` over a tensor that `dot` sums up, where nothing else of the block but the return reads the sums; else None.

    Each of its elements reads the sum of its own row alone.
    """
    if dot.name != "attn.row_dot":
        return None
    readers = {use.owner.operation for use in dot.results[0].uses}
    extracts = [op for op in readers if op.name == "tensor.extract"]
    if not extracts or any(op.name != "func.return" for op in readers if op not in extracts):
        return None
    makers = {_around(op) for op in extracts}
    found = next(iter(makers))
    if found is None or len(makers) > 1 or found.block != dot.block or found.operands[0] not in dot.operands:
        return None
    element = block_of(pieces(found, "attn.element")[0])
    own = list(element.arguments)[:3]
    return found if all(op.block == element and list(op.operands)[1:] == own for op in extracts) else None


def row_dots(elements: ir.Operation) -> list[ir.Operation]:
    """The sums of rows in the function of an `attn.elements`: after `attn-outline` these are those that it reads."""
    operations = [view.operation for view in elements.block.operations]
    return [op for op in operations if op.name == "attn.row_dot" and elements_of(op) == elements]


def reads_of(dot: ir.Operation, elements: ir.Operation) -> list[ir.Operation]:
    """Where the elements read its sums."""
    return [op for op in find_all(elements, "tensor.extract") if op.operands[0] == dot.results[0]]


def _around(op: ir.Operation) -> ir.Operation | None:
    """The `attn.elements` in whose regions an op stands."""
    parent = op.parent
    while parent is not None and parent.name not in ("attn.elements", "func.func"):
        parent = parent.parent
    return parent if parent is not None and parent.name == "attn.elements" else None
