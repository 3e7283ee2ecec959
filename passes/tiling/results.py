"""What a kernel stores: the values that its function returns."""

from dataclasses import dataclass

from attn_mlir.dialects.attn.pairs import residual_factor
from attn_mlir.dialects.attn.pieces import outputs_of
from attn_mlir.mlir import arith, ir
from attn_mlir.passes.derivation.emit import output_name
from attn_mlir.passes.tiling.scalars import cast_float, constant_float


@dataclass(frozen=True)
class TiledResult:
    """One returned tensor: value `number` that `attn.finalize` yields. Row outputs have one value a row.

    `is_residual`: what rounding takes from the value, instead of it.
    """

    name: str
    number: int
    type: ir.Type
    is_row: bool
    is_residual: bool = False

    def element(self, value: ir.Value) -> ir.Value:
        """What is stored of a value, at the insertion point."""
        type_ = ir.RankedTensorType(self.type).element_type
        rounded = cast_float(value, type_)
        factor = residual_factor(type_)
        if not self.is_residual or factor is None:
            return rounded
        residual = arith.SubFOp(value, cast_float(rounded, value.type)).result
        return cast_float(arith.MulFOp(residual, constant_float(value.type, factor)).result, type_)


def returned(function: ir.Operation, online: ir.Operation) -> list[TiledResult] | None:
    """The results of a function that holds `online` alone, in order; None after an error."""
    operations = [op.operation for op in function.regions[0].blocks[0].operations]
    for op in operations[:-1]:
        if op != online and op.name.startswith("attn.") and op.name not in ("attn.output", "attn.residual"):
            op.location.emit_error("attn-tile-rows: a function has one attention, and nothing beside it; run attn-outline first")
            return None
    results = [_result(online, value) for value in operations[-1].operands]
    if not results or None in results:
        operations[-1].location.emit_error("attn-tile-rows: the function of an attention returns outputs of it, and nothing else")
        return None
    return [result for result in results if result is not None]


def _result(online: ir.Operation, value: ir.Value) -> TiledResult | None:
    if isinstance(value, ir.BlockArgument):
        return None
    op, outputs = value.owner.operation, outputs_of(online)
    if op == online:
        position = ir.OpResult(value).result_number
        names = [ir.StringAttr(name).value for name in ir.ArrayAttr(online.attributes["outputs"])]
        if position == 0:
            return TiledResult(output_name(0), 0, value.type, False)
        return TiledResult(names[position - 1], outputs + position - 1, value.type, True)
    if op.name == "attn.output" and op.operands[0] == online.results[0]:
        index = ir.IntegerAttr(op.attributes["index"]).value
        return TiledResult(output_name(index), index, value.type, False)
    if op.name == "attn.residual" and op.operands[0] == online.results[0]:
        index = ir.IntegerAttr(op.attributes["index"]).value if "index" in op.attributes else 0
        return TiledResult(f"residual{index or ''}", index, value.type, False, is_residual=True)
    return None
