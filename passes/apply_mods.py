"""Applies mods that read other channels before the attention, once for every element."""

from dataclasses import dataclass

from attn_mlir.dialects.attn import build
from attn_mlir.dialects.attn.partners import partner_of
from attn_mlir.mlir import ir
from attn_mlir.passes.base import Pass
from attn_mlir.passes.regions import block_of, find_all, inline, piece
from attn_mlir.passes.tiling.scalars import cast_float

_OPERANDS = {"attn.query": 0, "attn.key": 1}


@dataclass(frozen=True)
class ApplyMods(Pass):
    """Replaces each `attn.query` and `attn.key` with a `partner` by an `attn.elements` that makes the changed tensor.

    Its kernel reads and writes the tensor once, where a mod inside of an attention is computed again for every block of queries, and what
    multiplies finds its rows in memory as without a mod. Kernels of few queries keep their mods: there, keys would be read and
    written once more for nothing.
    """

    name = "attn-apply-mods"

    def run(self, module: ir.Operation) -> bool:
        for attention in find_all(module, "attn.attention", "attn.online"):
            for name, operand in _OPERANDS.items():
                mod = piece(attention, name)
                if mod is None or partner_of(mod) is None:
                    continue
                if attention.parent is None or attention.parent.name != "func.func":
                    attention.location.emit_error(f"{self.name}: '{attention.name}' must stand directly in a func.func")
                    return False
                with mod.location, ir.InsertionPoint(attention):
                    attention.operands[operand] = _changed(mod, attention.operands[operand])
                mod.erase()
        return True


def _changed(mod: ir.Operation, tensor: ir.Value) -> ir.Value:
    """The tensor after the mod, as a mod in tiles would round it."""
    block, partner = block_of(mod), partner_of(mod)
    type_ = ir.RankedTensorType(tensor.type)

    def element(b: ir.Value, h: ir.Value, i: ir.Value, d: ir.Value) -> list[ir.Value]:
        channels = [d] if partner is None else [d, partner.index(d, type_.shape[3])]
        reads = [ir.Operation.create("tensor.extract", results=[type_.element_type], operands=[tensor, b, h, i, at]) for at in channels]
        return inline(block, [*[cast_float(read.result, block.arguments[0].type) for read in reads], b, h, i, d])

    return build.collect(build.elements(tensor, element), 0, type_)
