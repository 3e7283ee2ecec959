"""Names in a TileLang program: unique, and valid in Python and in the CUDA that it becomes."""

import keyword
import re

from attn_mlir.mlir import ir

_TAKEN = (
    "T sys tilelang Target PASSES lower build asm auto bool break case catch char const continue default delete do double else enum "
    "explicit extern false float for goto if inline int long mutable new operator private protected public register return short signed "
    "sizeof static struct switch template this throw true try typedef typename union unsigned using virtual void volatile while half "
    "min max abs range len print main i j"
)


class TilelangNames:
    """Hands out names, each once."""

    def __init__(self) -> None:
        self._taken = {*_TAKEN.split(), *keyword.kwlist}

    def new(self, wanted: str) -> str:
        """`wanted`, or that with a number behind it where it is taken already."""
        base = re.sub(r"\W", "_", wanted).strip("_") or "x"
        base = f"x{base}" if base[0].isdigit() else base
        name, number = base, 0
        while name in self._taken:
            number += 1
            name = f"{base}_{number}"
        self._taken.add(name)
        return name


_ROLES = {
    ("tile.load", 2): "head_read", ("tile.load", 3): "first", ("tile.load", 4): "count",
    ("tile.store", 4): "first", ("tile.store", 5): "count", ("scf.for", 0): "begin", ("scf.for", 1): "end",
}  # fmt: skip


def role(value: ir.Value) -> str | None:
    """A name for an index after what uses it."""
    found = {_ROLES.get((use.owner.operation.name, use.operand_number)) for use in value.uses} - {None}
    return min((name for name in found if name is not None), default=None)


def hint(value: ir.Value) -> str | None:
    """The name that a value has in the user's program or in the pass that made it."""
    location = value.owner.operation.location if not isinstance(value.owner, ir.Block) else ir.BlockArgument(value).location
    return location.name_str if isinstance(location, ir.NameLoc) else None
