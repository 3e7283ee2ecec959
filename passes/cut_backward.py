"""Cuts a backward function where its sums over keys have to be complete, so that keys may come in shards."""

from dataclasses import dataclass

from attn_mlir.dialects.regions import maker, walk
from attn_mlir.mlir import ir
from attn_mlir.passes.base import Pass
from attn_mlir.passes.regions import block_of, end_with, erase_unused, find_all, pieces, returned_by

_SUMS, _ROWS, _PAIRS = "sums", "rows", "pairs"
_KEYS = ("attn.pairs", "attn.attention")


@dataclass(frozen=True)
class CutBackward(Pass):
    """Leaves of every backward function the part that a shard of the keys contributes to.

    `part` is "sums", what the `attn.attention` ops of stage `stage` sum over keys; "pairs", the summands of gradients that are sums over
    pairs; or "rows", the summands that do not depend on pairs, and which count once however many shards there are. Sums of earlier stages
    (for "pairs" and "rows": of all) are further arguments, after the function's own: whole sums over all shards. Each result of
    "sums" and "pairs" is a sum over keys or over pairs, so that those of shards add up. `attn.results` says which of the old results are
    left, `attn.stages` how many stages there are. The pass refuses sums over keys that depend on each other within one stage.
    """

    name = "attn-cut-backward"
    part: str = _PAIRS
    stage: int = 0

    def run(self, module: ir.Operation) -> bool:
        if self.part not in (_SUMS, _ROWS, _PAIRS):
            module.location.emit_error(f"{self.name}: part is one of {_SUMS}, {_ROWS}, {_PAIRS}, got '{self.part}'")
            return False
        return all([self._cut(function) for function in find_all(module, "func.func") if find_all(function, "attn.pairs")])

    def _cut(self, function: ir.Operation) -> bool:
        stages = _stages(function)
        for attention, _ in stages:
            if not _is_additive(attention):
                attention.location.emit_error(f"{self.name}: sums over keys depend on other sums of the same pass over keys")
                return False
        given = [op for op, stage in stages if self.part != _SUMS or stage < self.stage]
        for value in [result for attention in given for result in attention.results if _is_used(result)]:
            value.replace_all_uses_with(block_of(function).add_argument(value.type, value.location))
        if self.part == _SUMS:
            chosen = [op for op, stage in stages if stage == self.stage]
            kept = {number: result for number, result in enumerate(r for op in chosen for r in op.results if _is_used(r))}
        else:
            kept = _summands(function, self.part == _PAIRS)
        _return(function, kept)
        with function.context:
            function.attributes["attn.results"] = ir.DenseI64ArrayAttr.get(list(kept))
            function.attributes["attn.stages"] = ir.IntegerAttr.get(ir.IntegerType.get_signless(64), len({stage for _, stage in stages}))
        return True


def _stages(function: ir.Operation) -> list[tuple[ir.Operation, int]]:
    """The attentions among a function's ops, which sum over keys before the pairs, and how many others come before each."""
    depth: dict[ir.Value, int] = {}
    found = []
    for view in block_of(function).operations:
        op = view.operation
        stage = max((depth.get(value, 0) for value in _reads(op)), default=0)
        if op.name == "attn.attention":
            found.append((op, stage))
            stage += 1
        depth.update(dict.fromkeys(op.results, stage))
    return found


def _reads(op: ir.Operation) -> list[ir.Value]:
    """The values that an op and what it holds read; those made inside come along."""
    return [*op.operands, *(value for inner in walk(op) for value in inner.operands)]


def _is_used(value: ir.Value) -> bool:
    return any(True for _ in value.uses)


def _is_additive(attention: ir.Operation) -> bool:
    """Whether its row gives sums over keys of what depends on no other sum: then those of shards add up."""
    block = block_of(pieces(attention, "attn.row")[0])
    reduced: set[ir.Value] = set()
    for view in block.operations:
        op = view.operation
        if op.name == "attn.yield":
            return all(value not in reduced or maker(value, "attn.reduce") is not None for value in op.operands)
        if any(value in reduced for value in op.operands):
            if op.name == "attn.reduce":
                return False
            reduced.update(op.results)
        if op.name == "attn.reduce":
            if ir.StringAttr(op.attributes["kind"]).value != "sum":
                return False
            reduced.update(op.results)
    return False


def _summands(function: ir.Operation, of_pairs: bool) -> dict[int, ir.Value]:
    """Of each result the sum of those summands that depend on pairs, or of those that do not, by its number; none where there are none."""
    depends: set[ir.Value] = set()
    for view in block_of(function).operations:
        op = view.operation
        if op.name in _KEYS or any(value in depends for value in _reads(op)):
            depends.update(op.results)
    kept = {}
    for number, result in enumerate(returned_by(function)):
        chosen = [leaf for leaf in _leaves(result) if (leaf in depends) == of_pairs]
        if chosen:
            kept[number] = _added(function, chosen)
    return kept


def _leaves(value: ir.Value) -> list[ir.Value]:
    """What sums of tensors add up to the value."""
    if isinstance(value.owner, ir.Block) or value.owner.operation.name != "arith.addf":
        return [value]
    return [leaf for operand in value.owner.operation.operands for leaf in _leaves(operand)]


def _added(function: ir.Operation, values: list[ir.Value]) -> ir.Value:
    total, *others = values
    last = block_of(function).operations[-1].operation
    with last.location, ir.InsertionPoint(last):
        for other in others:
            total = ir.Operation.create("arith.addf", results=[total.type], operands=[total, other]).result
    return total


def _return(function: ir.Operation, kept: dict[int, ir.Value]) -> None:
    """Lets the function return these values, and erases what nothing needs."""
    block = block_of(function)
    end_with(block, "func.return", list(kept.values()))
    erase_unused(block)
    with function.context:
        types = ir.FunctionType.get([argument.type for argument in block.arguments], [value.type for value in kept.values()])
        function.attributes["function_type"] = ir.TypeAttr.get(types)
