"""Which sizes a captured tensor needs, where it is indexed with b, h, q_idx, kv_idx or d directly."""

import dataclasses
from collections.abc import Iterable, Mapping, Sequence

from attn_mlir.frontend import where
from attn_mlir.frontend.emit import Piece
from attn_mlir.frontend.node import Node, Position, Source
from attn_mlir.frontend.reach import reachable

_QUERY = ("", "B", "Hq", "Sq", "D")
_SIZES = {
    "query": _QUERY,
    "key": ("", "B", "Hkv", "Skv", "D"),
    "value": ("", "B", "Hkv", "Skv", "Dv"),
    "score": ("", "B", "Hq", "Sq", "Skv"),
    "mask": ("B", "Hq", "Sq", "Skv"),
    "row": ("", "B", "Hq", "Sq"),
    "step": ("", "B", "Hq", "Sq"),
    "finalize": ("", "B", "Hq", "Sq"),
    "weight": ("", "B", "Hq", "Sq", "Skv"),
    "dscore": ("", "", "B", "Hq", "Sq", "Skv"),
}


@dataclasses.dataclass(frozen=True, slots=True)
class Extent:
    """Dimension `dim` of a captured tensor is indexed with the parameter `index`, which runs up to `size`."""

    source: Source
    dim: int
    index: str
    size: str
    """B, Hq, Hkv, Sq, Skv, D or Dv; H for the heads of v where these are not Hkv."""
    position: Position | None = dataclasses.field(default=None, compare=False)
    """Where the user's function reads it."""

    def line(self) -> str:
        """The line of the user's function, for messages."""
        if self.position is None or self.position[0].co_filename.startswith("<"):
            return ""
        return "\n" + where.resolve(self.position).snippet()


LINEAR_SIZES = {
    "query": _QUERY,
    "key": ("", "B", "Hkv", "Sq", "D"),
    "value": ("", "B", "H", "Sq", "Dv"),
    "decay": ("", "B", "H", "Sq", "D"),
    "skip": ("B", "H", "Sq"),
    "erase": ("", "B", "H", "Sq", "D"),
}
"""Those of the pieces of a linear attention, where H is the number of heads of v."""


def extents(pieces: Iterable[Piece], sizes_of: Mapping[str, Sequence[str]] = _SIZES) -> tuple[Extent, ...]:
    """The extents that the pieces need, each once."""
    found: dict[Extent, None] = {}
    for piece in pieces:
        indices = [argument for argument in piece.arguments if argument.kind == "int"]
        sizes = dict(zip(indices, [size for size in sizes_of.get(piece.name, ()) if size], strict=False))
        for node in reachable(piece.results):
            if node.op == "tensor.extract":
                found.update(dict.fromkeys(_of_extract(node, sizes)))
    return tuple(found)


def _of_extract(node: Node, sizes: dict[Node, str]) -> Sequence[Extent]:
    source = node.attribute.source
    return [
        Extent(source, dim, str(index.attribute), sizes[index], node.position)
        for dim, index in enumerate(node.operands)
        if sizes.get(index)
    ]
