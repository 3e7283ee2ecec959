"""Splits an attention whose row takes more than one pass over keys, so that each pass is an attention of its own."""

from dataclasses import dataclass

from attn_mlir.mlir import arith, ir
from attn_mlir.passes.base import Pass
from attn_mlir.passes.derivation import DerivationError, accumulator_limit, derive, is_narrow, read_row
from attn_mlir.passes.magnitudes import scores_may_be_large
from attn_mlir.passes.regions import block_of, end_with, erase_unused, find_all, piece, scores_in

_FIRST, _LAST = "first", "last"


@dataclass(frozen=True)
class SplitPasses(Pass):
    """Leaves of each function that holds an `attn.attention` its first pass over keys, or what is after it.

    `part` "first" gives the reductions of that pass as row outputs, with weights of 0; "last" takes them as further arguments, tensors
    [B, Hq, Sq], in the same order, in place of the reductions. Rows of one pass are refused.
    """

    name = "attn-split-passes"
    part: str = _LAST

    def run(self, module: ir.Operation) -> bool:
        if self.part not in (_FIRST, _LAST):
            module.location.emit_error(f"{self.name}: part is {_FIRST} or {_LAST}, got '{self.part}'")
            return False
        return all([self._split(attention) for attention in find_all(module, "attn.attention")])

    def _split(self, attention: ir.Operation) -> bool:
        row, function = piece(attention, "attn.row"), attention.parent
        if row is None or function is None or function.name != "func.func":
            attention.location.emit_error(f"{self.name}: takes an attention with a row that stands directly in a func.func")
            return False
        reductions = [view.operation for view in block_of(row).operations if view.operation.name == "attn.reduce"]
        try:
            read = read_row(row)
            decisions = derive(
                read, accumulator_limit(attention, 2), is_narrow(attention), scores_may_be_large(attention)
            ).program.plan.decisions
        except DerivationError as error:
            row.location.emit_error(f"the row has no online form: {error}")
            return False
        if len(read.reductions) != len(reductions):
            row.location.emit_error(f"{self.name}: some reductions of the row are the same or not needed: run attn-simplify first")
            return False
        first = [op for index, op in enumerate(reductions) if decisions[index].kv_pass == 1]
        if not first or all(decision.kv_pass == 1 for decision in decisions.values()):
            row.location.emit_error(f"{self.name}: the row takes one pass over keys")
            return False
        with attention.location:
            if self.part == _FIRST:
                _yield(function, attention, row, first)
            else:
                _read(function, row, first)
        return True


def _yield(function: ir.Operation, attention: ir.Operation, row: ir.Operation, first: list[ir.Operation]) -> None:
    """Lets the row yield weights of 0 and these reductions, and the function return them."""
    block, score = block_of(row), first[0].results[0].type
    old = block.operations[-1].operation
    with old.location, ir.InsertionPoint(old):
        zero = arith.constant(score, 0.0)
        ir.Operation.create("attn.yield", operands=[zero, *(op.results[0] for op in first)])
    old.erase()
    erase_unused(block)
    wide = ir.ShapedType.get_dynamic_size()
    types = [attention.results[0].type, *[ir.RankedTensorType.get([wide] * 3, score)] * len(first)]
    names = [f"pass_{number}" for number in range(len(first))]
    attributes = {name: attention.attributes[name] for name in attention.attributes}
    attributes["outputs"] = ir.ArrayAttr.get([ir.StringAttr.get(name) for name in names])
    with attention.location, ir.InsertionPoint(attention):
        made = ir.Operation.create("attn.attention", results=types, operands=list(attention.operands), attributes=attributes, regions=1)
    attention.regions[0].blocks[0].append_to(made.regions[0])
    end_with(block_of(function), "func.return", made.results)
    attention.erase()
    inputs = [argument.type for argument in block_of(function).arguments]
    function.attributes["function_type"] = ir.TypeAttr.get(ir.FunctionType.get(inputs, types))


def _read(function: ir.Operation, row: ir.Operation, first: list[ir.Operation]) -> None:
    """Reads these reductions of further arguments."""
    block, entry = block_of(row), block_of(function)
    indices = list(block.arguments)[scores_in(block) :][:3]
    wide = ir.ShapedType.get_dynamic_size()
    for op in first:
        result = op.results[0]
        tensor = entry.add_argument(ir.RankedTensorType.get([wide] * 3, result.type), op.location)
        with op.location, ir.InsertionPoint(op):
            read = ir.Operation.create("tensor.extract", results=[result.type], operands=[tensor, *indices]).result
        result.replace_all_uses_with(read)
        op.erase()
    type_ = ir.FunctionType(ir.TypeAttr(function.attributes["function_type"]).value)
    inputs = [argument.type for argument in entry.arguments]
    function.attributes["function_type"] = ir.TypeAttr.get(ir.FunctionType.get(inputs, type_.results))
