"""Applies mods that read other channels before the attention, once for every element."""

from dataclasses import dataclass

from attn_mlir.dialects.attn import build
from attn_mlir.dialects.attn.partners import partner_of
from attn_mlir.mlir import arith, ir
from attn_mlir.passes.base import Pass
from attn_mlir.passes.regions import block_of, find_all, inline, piece
from attn_mlir.passes.sequences import Packing, packing_of, pages_of, read_index
from attn_mlir.passes.tiling.scalars import cast_float

_OPERANDS = {"attn.query": (0, "query"), "attn.key": (1, "key")}
"""Which operand a mod changes, and whose rows these are."""


@dataclass(frozen=True)
class ApplyMods(Pass):
    """Replaces each `attn.query` and `attn.key` with a `partner` by an `attn.elements` that makes the changed tensor.

    Its kernel reads and writes the tensor once, where a mod inside of an attention is computed again for every block of queries, and what
    multiplies finds its rows in memory as without a mod. Kernels of few queries keep their mods: there, keys would be read and
    written once more for nothing. Mods of keys in pages (`attn.pages`) stay, too.
    """

    name = "attn-apply-mods"

    def run(self, module: ir.Operation) -> bool:
        for attention in find_all(module, "attn.attention", "attn.online"):
            for name, (operand, side) in _OPERANDS.items():
                mod = piece(attention, name)
                if mod is None or partner_of(mod) is None or (side == "key" and pages_of(attention) is not None):
                    continue
                if attention.parent is None or attention.parent.name != "func.func":
                    attention.location.emit_error(f"{self.name}: '{attention.name}' must stand directly in a func.func")
                    return False
                with mod.location, ir.InsertionPoint(attention):
                    attention.operands[operand] = _changed(mod, attention.operands[operand], side, packing_of(attention, side))
                mod.erase()
        return True


def _changed(mod: ir.Operation, tensor: ir.Value, side: str, packing: Packing | None) -> ir.Value:
    """The tensor after the mod, as a mod in tiles would round it."""
    block, partner = block_of(mod), partner_of(mod)
    type_ = ir.RankedTensorType(tensor.type)

    def read(b: ir.Value, h: ir.Value, i: ir.Value, d: ir.Value) -> ir.Value:
        if packing is not None:  # number and position of a sequence: its rows lie in a tensor of one batch entry
            b, i = arith.constant(ir.IndexType.get(), 0), arith.addi(read_index(packing.begins, b), i)
        element = ir.Operation.create("tensor.extract", results=[type_.element_type], operands=[tensor, b, h, i, d]).result
        return cast_float(element, block.arguments[0].type)

    def element(b: ir.Value, h: ir.Value, i: ir.Value, d: ir.Value) -> list[ir.Value]:
        channels = [d] if partner is None else [d, partner.index(d, type_.shape[3])]
        return inline(block, [*[read(b, h, i, at) for at in channels], b, h, i, d])

    packed = None if packing is None else lambda: build.sequences(packing.begins, packing.lengths, side)
    return build.collect(build.elements(tensor, element, packed), 0, type_)
