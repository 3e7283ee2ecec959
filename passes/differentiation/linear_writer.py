"""What the parts of the backward of a linear attention have in common: tensors that are read, and gradients that add up."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from attn_mlir.dialects.attn import build
from attn_mlir.mlir import arith, ir, tensor
from attn_mlir.passes.derivation.expr import Node
from attn_mlir.passes.differentiation.host import Expressions, Host
from attn_mlir.passes.differentiation.linear_model import LinearModel
from attn_mlir.passes.tiling.scalars import cast_float, constant_index


@dataclass(eq=False)
class Writer:
    """Writes into the backward function; `found` are the gradients of each argument of the primal."""

    of: LinearModel
    host: Host
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

    def read(self, source: ir.Value, indices: Sequence[ir.Value]) -> ir.Value:
        """An element of a tensor in the type of scores."""
        element = ir.RankedTensorType(source.type).element_type
        read = ir.Operation.create("tensor.extract", results=[element], operands=[source, *indices]).result
        return cast_float(read, self.host.score)

    def add(self, argument: ir.Value, gradient: ir.Value) -> None:
        """Adds a part of an argument's gradient."""
        self.found.setdefault(argument, []).append(gradient)

    def scatter(self, leaf: Node, of: ir.Value, weight: int, rank: int) -> None:
        """Adds a weight to where a parameter reads its captured tensor."""
        param = self.of.program.param(leaf)
        if param.read is None:
            raise ValueError("only reads of captured tensors are scattered to")
        read, into = param.read, self.host.mapping[param.read.tensor]

        def index(*positions: ir.Value) -> list[ir.Value]:
            expressions = Expressions(self.host, self.of.program, padded(positions), {})
            return [expressions.copy(i, param.block) for i in read.indices]

        with ir.Location.name(f"d{param.name}", ir.Location.current):
            made = build.scatter(of, into, weight, self.host.like(into), ("b", "h", "t", "d")[:rank], index)
        self.add(read.tensor, made)


def padded(indices: Sequence[ir.Value]) -> list[ir.Value]:
    """The indices b, h, t and d; d is 0 where there are no channels."""
    return [*indices] if len(indices) == 4 else [*indices, constant_index(0)]
