"""What a kernel stores: the values that its function returns."""

from dataclasses import dataclass

from attn_mlir.dialects.attn.pieces import outputs_of
from attn_mlir.mlir import ir
from attn_mlir.passes.derivation.emit import output_name


@dataclass(frozen=True)
class Result:
    """One returned tensor: value `number` that `attn.finalize` yields. Row outputs have one value a row."""

    name: str
    number: int
    type: ir.Type
    is_row: bool


def returned(function: ir.Operation, online: ir.Operation) -> list[Result] | None:
    """The results of a function that holds `online` alone, in order; None after an error."""
    operations = [op.operation for op in function.regions[0].blocks[0].operations]
    for op in operations[:-1]:
        if op != online and op.name.startswith("attn.") and op.name != "attn.output":
            op.location.emit_error("attn-tile: a function has one attention, and nothing beside it; run attn-outline first")
            return None
    results = [_result(online, value) for value in operations[-1].operands]
    if not results or None in results:
        operations[-1].location.emit_error("attn-tile: the function of an attention returns outputs of it, and nothing else")
        return None
    return [result for result in results if result is not None]


def _result(online: ir.Operation, value: ir.Value) -> Result | None:
    if isinstance(value, ir.BlockArgument):
        return None
    op, outputs = value.owner.operation, outputs_of(online)
    if op == online:
        position = ir.OpResult(value).result_number
        names = [ir.StringAttr(name).value for name in ir.ArrayAttr(online.attributes["outputs"])]
        if position == 0:
            return Result(output_name(0), 0, value.type, False)
        return Result(names[position - 1], outputs + position - 1, value.type, True)
    if op.name == "attn.output" and op.operands[0] == online.results[0]:
        index = ir.IntegerAttr(op.attributes["index"]).value
        return Result(output_name(index), index, value.type, False)
    return None
