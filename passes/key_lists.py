"""Key lists in passes: the `attn.key_lists` of an op."""

from dataclasses import dataclass

from attn_mlir.mlir import ir
from attn_mlir.passes.regions import piece


@dataclass(frozen=True)
class KeyLists:
    """The tensors of an `attn.key_lists`, and its sizes: queries and keys of a block, keys of a tile of the inverse."""

    entries: ir.Value
    ranges: ir.Value
    back: ir.Value
    kept: ir.Value
    back_ranges: ir.Value
    queries: int
    keys: int
    tile: int

    @property
    def names_keys(self) -> bool:
        """Whether the entries are the keys themselves."""
        return self.keys == 1


def key_lists_of(owner: ir.Operation) -> KeyLists | None:
    """The key lists of an op; None where all keys are listed."""
    found = piece(owner, "attn.key_lists")
    if found is None:
        return None
    return KeyLists(*found.operands, *list(ir.DenseI64ArrayAttr(found.attributes["block"])))
