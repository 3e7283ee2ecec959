"""Sums that share a kernel with elements: of their rows (`attn.row_dot`), and of heads of what is made of them (`attn.head_sum`)."""

from attn_mlir.dialects.regions import around
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


def summed_elements(head_sum: ir.Operation) -> tuple[ir.Operation, ir.Operation] | None:
    """The `attn.elements` of [B, H, T, D] and the `attn.collect` that make what an `attn.head_sum` adds up, and nothing else; else None.

    They read rows of 16 bits: tiles of several tensors of f32 have no place beside each other in shared memory.
    """
    x = head_sum.operands[0] if head_sum.name == "attn.head_sum" else None
    if x is None or isinstance(x.owner, ir.Block) or x.owner.operation.name != "attn.collect" or ir.RankedTensorType(x.type).rank != 4:
        return None
    collect = x.owner.operation
    elements = collect.operands[0].owner.operation
    alone = len(list(x.uses)) == 1 and len(list(elements.results[0].uses)) == 1 and elements.block == collect.block == head_sum.block
    wide = any(ir.RankedTensorType(value.type).rank == 4 and value.type.element_type.width > 16 for value in _read(elements))
    return (elements, collect) if alone and not wide and not pieces(elements, "attn.sequences") else None


def _read(elements: ir.Operation) -> list[ir.Value]:
    """The tensors that elements read."""
    return [op.operands[0] for op in find_all(elements, "tensor.extract")]


def sum_of(elements: ir.Operation) -> ir.Operation | None:
    """The `attn.head_sum` that alone reads what is made of elements; None where there is none."""
    if elements.name != "attn.elements":
        return None
    readers = [use.owner.operation for each in elements.results[0].uses for result in each.owner.operation.results for use in result.uses]
    found = [op for op in readers if (of := summed_elements(op)) is not None and of[0] == elements]
    return found[0] if found else None


def row_dots(elements: ir.Operation) -> list[ir.Operation]:
    """The sums of rows in the function of an `attn.elements`: after `attn-outline` these are those that it reads."""
    operations = [view.operation for view in elements.block.operations]
    return [op for op in operations if op.name == "attn.row_dot" and elements_of(op) == elements]


def reads_of(dot: ir.Operation, elements: ir.Operation) -> list[ir.Operation]:
    """Where the elements read its sums."""
    return [op for op in find_all(elements, "tensor.extract") if op.operands[0] == dot.results[0]]


def _around(op: ir.Operation) -> ir.Operation | None:
    """The `attn.elements` in whose regions an op stands."""
    return next((above for above in around(op) if above.name == "attn.elements"), None)
