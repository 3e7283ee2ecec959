"""Makes the query heads that share a key head the query rows of one program, for decoding with a single query."""

from dataclasses import dataclass

from attn_mlir.mlir import arith, ir, tensor
from attn_mlir.passes.base import Pass
from attn_mlir.passes.regions import block_of, find_all, pieces, scores_in, walk

# Their block arguments hold b, the query head and the query position, after any numbers.
_OF_A_QUERY = frozenset({"attn.query", "attn.score", "attn.mask", "attn.row", "attn.init", "attn.step", "attn.finalize"})


@dataclass(frozen=True)
class PackHeads(Pass):
    """Lets q come as [B, Hkv, Hq / Hkv, D] instead of [B, Hq, 1, D], so that a group of heads fills the rows of a tile.

    So do the query tensors of `attn.product` pieces. In the pieces, head h becomes h * group + q_idx and position q_idx becomes 0.
    The program is then right only for a single query position; o and the row outputs have q's new shape. Of packed tensors, whose sequences
    have one query each, b is that of the query there, see `attn.sequences`.
    """

    name = "attn-pack-heads"

    def run(self, module: ir.Operation) -> bool:
        for attention in find_all(module, "attn.attention", "attn.online"):
            if attention.parent is None or attention.parent.name != "func.func":
                attention.location.emit_error(f"{self.name}: '{attention.name}' must stand directly in a func.func")
                return False
            q = attention.operands[0]
            queries = [q, *[product.operands[0] for product in pieces(attention, "attn.product")]]
            sizes = [op for op in walk(attention.parent) if op.name == "tensor.dim" and op.operands[0] in queries]
            with attention.location, ir.InsertionPoint.at_block_begin(attention.block):
                one, two = _index(1), _index(2)
                key_heads, group = tensor.DimOp(q, one).result, tensor.DimOp(q, two).result
                heads = arith.MulIOp(key_heads, group).result
            for size in sizes:
                if not _replace_size(size, heads, one):
                    return False
            for piece in [view.operation for view in attention.regions[0].blocks[0].operations]:
                _pack(piece, group)
                if piece.name == "attn.sequences" and ir.StringAttr(piece.attributes["of"]).value == "query":
                    with piece.context:
                        piece.attributes["by_heads"] = ir.UnitAttr.get()
        return True


def _index(value: int) -> ir.Value:
    return arith.ConstantOp(ir.IndexType.get(), value).result


def _replace_size(size: ir.Operation, heads: ir.Value, one: ir.Value) -> bool:
    """Gives a size of q its value before packing."""
    maker = size.operands[1].owner
    if isinstance(maker, ir.Block) or maker.operation.name != "arith.constant":
        size.location.emit_error("attn-pack-heads: which size of q is asked for must be a constant")
        return False
    dimension = ir.IntegerAttr(maker.operation.attributes["value"]).value
    if dimension in (1, 2):
        size.results[0].replace_all_uses_with(heads if dimension == 1 else one)
    return True


def _pack(piece: ir.Operation, group: ir.Value) -> None:
    if piece.name not in _OF_A_QUERY:
        return
    block = block_of(piece)
    _, head, query = list(block.arguments)[scores_in(block) :][:3]
    with piece.location, ir.InsertionPoint.at_block_begin(block):
        scaled = arith.MulIOp(head, group)
        packed = arith.AddIOp(scaled.result, query)
        zero = _index(0)
    head.replace_all_uses_except(packed.result, scaled.operation)
    query.replace_all_uses_except(zero, packed.operation)
