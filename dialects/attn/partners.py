"""Which channel of the same row is the partner of a channel, where an `attn.query` or `attn.key` reads two of them."""

from dataclasses import dataclass

from attn_mlir.dialects.verify import check
from attn_mlir.mlir import arith, ir

KINDS = ("half", "interleaved")


@dataclass(frozen=True)
class Partner:
    """The first `channels` channels are paired, d with d + channels / 2 ("half") or 2 i with 2 i + 1 ("interleaved").

    A channel after them is its own partner. Every channel is the partner of its partner.
    """

    kind: str
    channels: int

    def of(self, d: int) -> int:
        """The partner of channel `d`."""
        if d >= self.channels:
            return d
        return d ^ 1 if self.kind == "interleaved" else (d + self.channels // 2) % self.channels

    def index(self, d: ir.Value, dim: int) -> ir.Value:
        """The partner of channel `d` of `dim`, at the insertion point."""
        half = self.channels // 2
        if self.kind == "interleaved":
            other = arith.XOrIOp(d, _constant(1)).result
        else:
            first = arith.CmpIOp(arith.CmpIPredicate.slt, d, _constant(half)).result
            after, before = arith.AddIOp(d, _constant(half)).result, arith.SubIOp(d, _constant(half)).result
            other = arith.SelectOp(first, after, before).result
        if self.channels >= dim:
            return other
        paired = arith.CmpIOp(arith.CmpIPredicate.slt, d, _constant(self.channels)).result
        return arith.SelectOp(paired, other, d).result


def partner_of(piece: ir.Operation) -> Partner | None:
    """What a mod reads beside its element, as its verified attributes say; None where that is nothing."""
    if "partner" not in piece.attributes:
        return None
    return Partner(ir.StringAttr(piece.attributes["partner"]).value, ir.IntegerAttr(piece.attributes["channels"]).value)


def verify_partner(op: ir.OpView, operand: int) -> bool:
    """Checks `partner` and `channels` of a mod of the tensor that is operand number `operand` of the op around it."""
    attributes, owner = op.operation.attributes, op.operation.parent
    kind = attributes["partner"]
    if not check(op, isinstance(kind, ir.StringAttr) and kind.value in KINDS, f"takes `partner` as {' or '.join(KINDS)}, got {kind}"):
        return False
    channels = attributes["channels"] if "channels" in attributes else None
    count = channels.value if isinstance(channels, ir.IntegerAttr) and str(channels.type) == "i64" else 0
    if not check(op, count >= 2 and count % 2 == 0, f"pairs an even number of `channels`, as i64, got {channels}"):
        return False
    tensor = owner.operands[operand].type if len(owner.operands) > operand else None
    fits = not isinstance(tensor, ir.RankedTensorType) or tensor.rank != 4 or tensor.is_dynamic_dim(3) or count <= tensor.shape[3]
    return check(op, fits, f"pairs {count} channels, more than there are in {tensor}")


def _constant(value: int) -> ir.Value:
    return arith.ConstantOp(ir.IndexType.get(), value).result
