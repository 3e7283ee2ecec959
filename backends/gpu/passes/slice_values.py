"""Narrows kernels of attention to a slice of the columns of v, of which a driver launches one for each slice."""

from dataclasses import dataclass
from typing import ClassVar

from attn_mlir.backends.gpu import attributes
from attn_mlir.backends.gpu.attributes import Fields
from attn_mlir.backends.gpu.scalar_bounds import MAX_COLUMNS
from attn_mlir.mlir import ir
from attn_mlir.passes.base import Pass
from attn_mlir.passes.regions import find_all

_STEP = 8
"""Slices begin at multiples of so many columns, where copy engines can."""
_LEAVING = ("func.return", "attn.residual")
"""What takes o, or its residual, whose column c depends on o's alone."""


@dataclass(frozen=True)
class SliceValues(Pass):
    """Gives v and o `columns` columns at most where they have more, as threads have registers for no more sums of a row.

    Weights, states and row outputs do not depend on v, and column c of o, and of its residual, only on column c of v: so the same kernel
    makes every slice. The choices of the function say what a driver needs, "launch_values", which argument v is, and "launch_columns", how
    many columns a launch sees. Scores are computed again for each slice.
    """

    name: ClassVar[str]
    columns: int = MAX_COLUMNS

    def blocks(self, head: int) -> Fields:
        """What is chosen for such heads of q of more than 256 columns that have no blocks yet."""
        return {}

    def run(self, module: ir.Operation) -> bool:
        if self.columns < _STEP or self.columns % _STEP:
            module.location.emit_error(f"{self.name}: `columns` must be a positive multiple of {_STEP}, got {self.columns}")
            return False
        for function in find_all(module, "func.func"):
            attentions = [op for op in find_all(function, "attn.attention") if op.parent == function]
            if len(attentions) == 1 and not self.narrow(module, function, attentions[0]):
                return False
        return True

    def narrow(self, module: ir.Operation, function: ir.Operation, attention: ir.Operation) -> bool:
        """Gives a function fewer columns where it has too many; False after an error."""
        head, value = (ir.RankedTensorType(attention.operands[n].type).shape[-1] for n in (0, 2))
        choices = attributes.read(function, attributes.CHOICES)
        more: Fields = {}
        if head > MAX_COLUMNS and "block_q" not in choices:
            more |= self.blocks(head)
        if value > self.columns:
            v = attention.operands[2]
            wide = wide_results(attention)
            if not isinstance(v.owner, ir.Block) or not all_leave(wide):
                attention.location.emit_error(f"{self.name}: v of {value} columns must come from outside of the kernel, and o leave it")
                return False
            if value % _STEP:
                attention.location.emit_error(
                    f"v has head dimension {value}: more than {self.columns} columns are seen in slices, which take multiples of {_STEP}: "
                    "pad v with zeros, and drop these columns of o"
                )
                return False
            count = -(-value // self.columns)
            columns = -(-value // count // _STEP) * _STEP
            for each in (v, *wide):
                each.set_type(with_columns(each.type, columns))
            retype(function)
            more |= {attributes.LAUNCH_COLUMNS: columns, attributes.LAUNCH_VALUES: ir.BlockArgument(v).arg_number}
        if more:
            with function.context:
                function.attributes[attributes.CHOICES] = attributes.write({**choices, **more})
        return True


def wide_results(attention: ir.Operation) -> list[ir.Value]:
    """The results of an attention that have columns, and their residuals."""
    wide = [result for result in attention.results if ir.RankedTensorType(result.type).rank == 4]
    return wide + [use.owner.operation.results[0] for each in wide for use in each.uses if use.owner.name == "attn.residual"]


def all_leave(values: list[ir.Value]) -> bool:
    """Whether nothing but the end of the function, and residuals, takes these results."""
    return all(use.owner.name in _LEAVING for each in values for use in each.uses)


def with_columns(type_: ir.Type, columns: int) -> ir.Type:
    """The type of tensors with so many columns."""
    tensor = ir.RankedTensorType(type_)
    return ir.RankedTensorType.get([*tensor.shape[:-1], columns], tensor.element_type, loc=ir.Location.unknown(type_.context))


def retype(function: ir.Operation) -> None:
    """Makes a function's type that of its arguments and of what it returns."""
    block = function.regions[0].blocks[0]
    inputs = [argument.type for argument in block.arguments]
    results = [value.type for value in block.operations[-1].operation.operands]
    with function.context:
        function.attributes["function_type"] = ir.TypeAttr.get(ir.FunctionType.get(inputs, results))
