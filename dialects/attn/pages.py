"""`attn.pages`: keys and values in pages of a cache, which a table finds."""

from typing import Any

from attn_mlir.dialects.attn.dialect import Attn
from attn_mlir.dialects.attn.pieces import OWNERS, verify_owner
from attn_mlir.dialects.attn.sequences import sides_of
from attn_mlir.dialects.verify import check, is_tensor
from attn_mlir.mlir import ext, ir


class PagesOp(Attn.Operation, name="pages"):
    """Key row i of sequence b is row i % size of page `table`[b, i / size].

    Beside the `attn.sequences` of packed tensors. The tensors of keys (k, v, the key tensors of products, those of terms) are then
    [pages, Hkv, size, D], of one size, and `begins`[b] of the keys counts along the pages of sequence b. That is an address only: what
    pieces see, masks and bounds are as without, with positions in the sequence. `table` holds integers, [sequences, most pages]; the
    nearest page that there is stands for one out of range, and its last column for those after it, so that nothing else is read.
    """

    table: ext.Operand[Any]

    def verify_invariants(self) -> bool:
        if not verify_owner(self, (*OWNERS, "attn.pairs")):
            return False
        type_ = self.table.type
        fits = is_tensor(type_, 2) and isinstance(type_.element_type, ir.IntegerType) and type_.element_type.width in (32, 64)
        if not check(self, fits, f"takes `table` as a tensor of i32 or i64, [sequences, pages], got {type_}"):
            return False
        return check(self, "key" in sides_of(self.operation.parent), "comes beside the 'attn.sequences' of keys")
