"""Sums over keys that do not fit into the registers of one program get programs of their own."""

from dataclasses import dataclass

from attn_mlir.backends.gpu.passes.materialize_pairs import is_wide
from attn_mlir.mlir import ir
from attn_mlir.passes.base import Pass
from attn_mlir.passes.regions import block_of, clone_op, end_with, erase_unused, find_all, pieces


@dataclass(frozen=True)
class SplitSums(Pass):
    """Gives `attn.key_sum`s of more than `columns` columns together copies of their `attn.pairs`, until the rest has no more.

    A copy computes only the weights that its sum needs, of only the products that these need. Sums whose weights nothing else needs
    come first. What `gpu-materialize-pairs` takes over stays whole.
    """

    name = "amd-split-sums"
    columns: int = 384

    def run(self, module: ir.Operation) -> bool:
        for pairs in [op for op in find_all(module, "attn.pairs") if not is_wide(op)]:
            split = False
            while (sums := _sums_of(pairs)) and len(sums) > 1 and sum(map(_columns, sums)) > self.columns:
                moved = min(sums, key=lambda op: _shares(pairs, op))
                with moved.location, ir.InsertionPoint(pairs):
                    copy = clone_op(pairs, {})
                moved.operands[0] = copy.results[0]
                _prune(copy)
                split = True
            if split:
                _prune(pairs)
        return True


def _consumers(pairs: ir.Operation) -> list[ir.Operation]:
    return [use.owner.operation for use in pairs.results[0].uses]


def _sums_of(pairs: ir.Operation) -> list[ir.Operation]:
    """In the order in which they stand in the program."""
    found = {op for op in _consumers(pairs) if op.name == "attn.key_sum"}
    return [view.operation for view in pairs.block.operations if view.operation in found]


def _columns(op: ir.Operation) -> int:
    return ir.RankedTensorType(op.results[0].type).shape[-1]


def _weights(op: ir.Operation) -> list[int]:
    """The numbers of the weights that a consumer takes."""
    if "weight" in op.attributes:
        return [ir.IntegerAttr(op.attributes["weight"]).value]
    return list(ir.DenseI64ArrayAttr(op.attributes["weights"]))


def _shares(pairs: ir.Operation, op: ir.Operation) -> bool:
    """Whether another consumer takes a weight of this one."""
    others = {weight for other in _consumers(pairs) if other != op for weight in _weights(other)}
    return not others.isdisjoint(_weights(op))


def _prune(pairs: ir.Operation) -> None:
    """Leaves the weights that are used, and what they are computed from."""
    consumers, (pair,), products = _consumers(pairs), pieces(pairs, "attn.pair"), pieces(pairs, "attn.product")
    used = sorted({weight for op in consumers for weight in _weights(op)})
    block = block_of(pair)
    last = block.operations[-1].operation
    kept = [list(last.operands)[weight] for weight in used]
    end_with(block, "attn.yield", kept)
    erase_unused(block)
    unused = [number for number in range(len(products)) if not list(block.arguments[number].uses)]
    for number in reversed(unused if len(unused) < len(products) else unused[1:]):
        block.erase_argument(number)
        products[number].erase()
    for op in consumers:
        numbers = [used.index(weight) for weight in _weights(op)]
        if "weight" in op.attributes:
            op.attributes["weight"] = ir.IntegerAttr.get(ir.IntegerAttr(op.attributes["weight"]).type, numbers[0])
        else:
            op.attributes["weights"] = ir.DenseI64ArrayAttr.get(numbers, op.context)
