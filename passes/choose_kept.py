"""Makes a choice of every product with what dropout keeps."""

from dataclasses import dataclass

from attn_mlir.mlir import arith, ir
from attn_mlir.passes.base import Pass
from attn_mlir.passes.regions import find_all, maker


@dataclass(frozen=True)
class ChooseKept(Pass):
    """Replaces `x * (1 if kept else 0)` by `x if kept else 0`, for every `attn.kept` of a kernel.

    What is dropped is 0 then, even if x is not finite.
    """

    name = "attn-choose-kept"

    def run(self, module: ir.Operation) -> bool:
        for kept in find_all(module, "attn.kept"):
            for use in list(kept.results[0].uses):
                choice = use.owner.operation
                if choice.name == "arith.select" and [_number(value) for value in list(choice.operands)[1:]] == [1.0, 0.0]:
                    _choose(kept.results[0], choice)
        return True


def _choose(kept: ir.Value, choice: ir.Operation) -> None:
    """Replaces the products with a choice between 1 and 0."""
    products = [use.owner.operation for use in choice.results[0].uses if use.owner.operation.name == "arith.mulf"]
    for product in products:
        others = [value for value in product.operands if value != choice.results[0]]
        if len(others) == 1:
            with product.location, ir.InsertionPoint(product):
                made = arith.SelectOp(kept, others[0], choice.operands[2]).result
            product.results[0].replace_all_uses_with(made)
            product.erase()


def _number(value: ir.Value) -> float | None:
    op = maker(value, "arith.constant")
    return ir.FloatAttr(op.attributes["value"]).value if op is not None else None
