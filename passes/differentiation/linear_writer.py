"""What the parts of the backward of a linear attention have in common: tensors that are read, and gradients that add up."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from attn_mlir.mlir import arith, ir, tensor
from attn_mlir.passes.derivation.expr import Expr
from attn_mlir.passes.differentiation.host import HostBuilder, HostExpressions, scatter_to_read
from attn_mlir.passes.differentiation.linear_model import LinearModel
from attn_mlir.passes.tiling.scalars import constant_index


@dataclass(eq=False)
class GradientWriter:
    """Writes into the backward function; `found` are the gradients of each argument of the primal."""

    of: LinearModel
    host: HostBuilder
    found: dict[ir.Value, list[ir.Value]] = field(default_factory=dict)

    def operand(self, name: str) -> ir.Value | None:
        """The argument that the linear attention takes as its operand of this name."""
        value = self.of.primal.operands.get(name)
        return None if value is None else self.host.mapping[value]

    def group(self, whole: ir.Value, shared: ir.Value) -> ir.Value:
        """How many heads of o share one of another tensor."""
        one = constant_index(1)
        heads, given = (tensor.dim(x, one) for x in (whole, shared))
        return arith.floordivsi(heads, given)

    def of_group(self, shared: ir.Value, group: ir.Value, indices: Sequence[ir.Value]) -> ir.Value:
        """An element of a tensor of which `group` heads of o share one."""
        return self.host.read(shared, [indices[0], arith.floordivsi(indices[1], group), *indices[2:]])

    def emit(self, nodes: Sequence[Expr], indices: Sequence[ir.Value], known: Mapping[Expr, ir.Value]) -> list[ir.Value]:
        """Values of nodes at a position, where those of some leaves are known."""
        expressions = HostExpressions(self.host, self.of.program, padded(indices), dict(known))
        return [expressions.emit(node) for node in nodes]

    def add(self, argument: ir.Value, gradient: ir.Value) -> None:
        """Adds a part of an argument's gradient."""
        self.found.setdefault(argument, []).append(gradient)

    def scatter(self, reads: Mapping[Expr, ir.Value], of: ir.Value, first: int, rank: int) -> None:
        """Adds weights, from number `first` on, to where captured tensors are read."""
        for weight, (leaf, captured) in enumerate(reads.items(), first):
            self.add(captured, scatter_to_read(self.host, self.of.program, leaf, of, weight, ("b", "h", "t", "d")[:rank], padded))


def padded(indices: Sequence[ir.Value]) -> list[ir.Value]:
    """The indices b, h, t and d; d is 0 where there are no channels."""
    return [*indices] if len(indices) == 4 else [*indices, constant_index(0)]
