"""What both passes that make derivatives ask of a function: its form, and by which arguments to differentiate."""

from attn_mlir.mlir import ir
from attn_mlir.passes.differentiation.errors import DifferentiationError
from attn_mlir.passes.differentiation.host import Primal
from attn_mlir.passes.regions import find_all, pieces


def is_plain(primal: Primal) -> bool:
    """Whether the function is just one attention of its first three arguments, as the frontend makes it.

    Its products may be of further arguments, each of which is in one place; its terms sum v, each into an output of its own, and the
    function returns o, these outputs, and then the row outputs.
    """
    attention, entry = primal.attention, primal.entry
    if list(attention.operands) != list(entry.arguments)[:3] or not _returns_all(attention, entry):
        return False
    others = [operand for product in pieces(attention, "attn.product") for operand in product.operands]
    captured = list(entry.arguments)[3:]
    return len(set(others)) == len(others) and all(operand in captured for operand in others)


def _returns_all(attention: ir.Operation, entry: ir.Block) -> bool:
    """Whether what is returned is o, an output for each term, which are of v and numbered as they come, and then the row outputs."""
    returned = list(entry.operations[-1].operation.operands)
    o, *rows = attention.results
    terms = pieces(attention, "attn.term")
    if len(returned) != 1 + len(terms) + len(rows) or returned[0] != o or returned[1 + len(terms) :] != rows:
        return False
    outputs = zip(terms, returned[1 : 1 + len(terms)], strict=True)
    return all(_is_output(value, n, o) and _sums(term, n, attention) for n, (term, value) in enumerate(outputs, 1))


def _is_output(value: ir.Value, number: int, o: ir.Value) -> bool:
    if isinstance(value.owner, ir.Block):
        return False
    op = value.owner.operation
    return op.name == "attn.output" and op.operands[0] == o and ir.IntegerAttr(op.attributes["index"]).value == number


def _sums(term: ir.Operation, number: int, attention: ir.Operation) -> bool:
    return term.operands[0] == attention.operands[2] and ir.IntegerAttr(term.attributes["output"]).value == number


def read_of_input(primal: Primal) -> ir.Operation | None:
    """A read of an element of q, k, v or a product's tensor, which would need a gradient besides that of the tensor as a whole."""
    inputs = [primal.entry.arguments[position] for position in primal.roles]
    pieces = [view.operation for view in primal.attention.regions[0].blocks[0].operations if view.operation.name != "attn.mask"]
    reads = [op for piece in pieces for op in find_all(piece, "tensor.extract")]
    return next((op for op in reads if op.operands[0] in inputs), None)


def floating_arguments(primal: Primal) -> list[int]:
    """The positions of all floating tensors."""
    return [i for i, argument in enumerate(primal.entry.arguments) if _is_floating_tensor(argument.type)]


def positions(primal: Primal, wrt: str) -> list[int]:
    """Those of the arguments that `wrt` names, joined by "+"; by default all floating tensors. Raises DifferentiationError."""
    floating, names = floating_arguments(primal), primal.names
    if not wrt:
        return floating
    found = []
    for name in wrt.split("+"):
        if name not in names or names.index(name) not in floating:
            known = ", ".join(names[i] for i in floating)
            raise DifferentiationError(f"'{name}' is no floating tensor among the arguments, which are {known}")
        found.append(names.index(name))
    return sorted(found)


def _is_floating_tensor(type_: ir.Type) -> bool:
    return isinstance(type_, ir.RankedTensorType) and isinstance(type_.element_type, ir.FloatType)
