"""Which arguments of a program its functions read: of others only sizes matter, or where a mask keeps a key."""

from attn_mlir.mlir import ir
from attn_mlir.passes.regions import block_of, find_all


def read_arguments(module: ir.Operation) -> set[int]:
    """The positions of the attention's arguments whose elements something besides masks takes; of others only sizes matter.

    Functions of scalars beside the attention end in the same arguments.
    """
    functions = find_all(module, "func.func")
    inputs = min(len(list(block_of(function).arguments)) for function in functions)
    found = set()
    for function in functions:
        arguments = list(block_of(function).arguments)
        found |= {
            i for i, argument in enumerate(arguments[len(arguments) - inputs :]) if any(_takes_elements(use) for use in argument.uses)
        }
    return found


def _takes_elements(use: ir.OpOperand) -> bool:
    owner = use.owner.operation
    if owner.name == "tensor.dim":
        return False
    op: ir.Operation | None = owner
    while op is not None and op.name != "attn.mask":
        op = op.parent
    return op is None
