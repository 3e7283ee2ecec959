"""`attn.key_lists`: each block of queries sees the blocks of keys that a list names."""

from typing import Any

from attn_mlir.dialects.attn.dialect import Attn
from attn_mlir.dialects.attn.pieces import verify_owner
from attn_mlir.dialects.verify import check, is_tensor
from attn_mlir.mlir import ext, ir

_OWNERS = ("attn.attention", "attn.online", "attn.pairs")
_WIDTHS = {"entries": 32, "ranges": 64, "back": 32, "kept": 32, "back_ranges": 64}
MOST_TILE = 32


class KeyListsOp(Attn.Operation, name="key_lists"):
    """Pairs are present only where a list names their keys; to everything else they are as masked.

    `block` = (bq, bk, tile). The queries [i bq, (i + 1) bq) of head h and batch entry b see the blocks of bk keys
    `entries`[begin, end) with (begin, end) = `ranges`[b, h / (Hq / H), i], whose second dimension H divides Hq. These numbers rise, so that
    none is there twice, and each block begins within k. With bk = 1 they are the keys themselves.

    The inverse, which sums over queries follow: the keys [j tile, (j + 1) tile) are named by the blocks of queries `back`[begin, end)
    with (begin, end) = `back_ranges`[b, h / (Hq / H), j], rising, too. A tile is whole in a block of keys; or blocks have a single
    key, tiles at most 32, and bit i of `kept` says whether key i of the tile is named. Of blocks of several keys `kept` may be the
    number of the block that these queries list next, -1 after the last one: sums that are added in a fixed order ask for it. Programs
    without such sums do not read the inverse.
    """

    entries: ext.Operand[Any]
    ranges: ext.Operand[Any]
    back: ext.Operand[Any]
    kept: ext.Operand[Any]
    back_ranges: ext.Operand[Any]
    block: Any

    def verify_invariants(self) -> bool:
        if not verify_owner(self, _OWNERS):
            return False
        operands = list(self.operation.operands)
        for (name, width), value in zip(_WIDTHS.items(), operands, strict=True):
            rank = 4 if width == 64 else 1
            fits = (
                is_tensor(value.type, rank)
                and isinstance(value.type.element_type, ir.IntegerType)
                and value.type.element_type.width == width
            )
            if not check(self, fits, f"takes `{name}` as a tensor of i{width} and rank {rank}, got {value.type}"):
                return False
        sizes = list(self.block) if isinstance(self.block, ir.DenseI64ArrayAttr) else []
        positive = len(sizes) == 3 and min(sizes) >= 1
        if not check(self, positive, f"takes `block` as three positive sizes (bq, bk, tile) in array<i64>, got {self.block}"):
            return False
        _, bk, tile = sizes
        whole = tile <= MOST_TILE if bk == 1 else bk % tile == 0
        return check(self, whole, f"has tiles that divide a block of {bk} keys, or of at most {MOST_TILE} where blocks have 1, got {tile}")
