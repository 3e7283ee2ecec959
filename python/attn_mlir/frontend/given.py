"""What a traced function takes besides captures: products, the sequences of packed tensors, the positions of parts."""

import dataclasses
import sys
from collections.abc import Sequence
from typing import Any

from attn_mlir.capture_kinds import CaptureKind
from attn_mlir.frontend.node import Node, Source
from attn_mlir.frontend.scope import Captured

PRODUCT, SEQUENCE = "product", "sequences"
SEQUENCES = ("q_begins", "q_lengths", "k_begins", "k_lengths")
"""The arguments of a function on packed tensors that come after q, k and v."""
PAGES = "block_table"
"""The argument after them where keys lie in pages."""
LENGTHS = {("size", "q", 2): "q_lengths", ("size", "k", 2): "k_lengths"}
POSITION = "position"
POSITIONS = ("q_offset", "kv_offset", "q_total", "kv_total")
"""The arguments of a function on parts of longer sequences: where these begin, and how long the sequences are (of packed tensors, 0)."""
TOTALS = {("size", "q", 2): ("q_offset", "q_total"), ("size", "k", 2): ("kv_offset", "kv_total")}
OFFSETS = {"q_idx": "q_offset", "kv_idx": "kv_offset"}
DOCUMENT = "document"
"""The argument after them where whole sequences are packed documents: the number of that which a part is of, which functions get as b."""
LIST = "lists"
LISTS = {"list": ("i32", 1), "list_ranges": ("i64", 4), "back": ("i32", 1), "back_kept": ("i32", 1), "back_ranges": ("i64", 4)}
"""The arguments of a function with lists of keys, in the order of `attn.key_lists`: element types and ranks."""
DESCALE = "descale"
DescaleForms = tuple[tuple[str, str], ...]
"""Scales of 8-bit inputs and outputs by name, and the indices of each: b, h (a query head) and k (a key head); or "number"."""
FOLDED = {("size", "q", 1), ("size", "q", 2)}
"""Sizes that are others where heads are rows."""
_OF_ROW, _OF_PAIR = ("b", "h", "q_idx"), ("b", "h", "q_idx", "kv_idx")
_PLACES = {
    "query": ("b", "h", "q_idx", "d"), "key": ("b", "h", "kv_idx", "d"), "value": ("b", "h", "kv_idx", "d"),
    "score": _OF_PAIR, "mask": _OF_PAIR, "row": _OF_ROW,
}  # fmt: skip


@dataclasses.dataclass(frozen=True, slots=True)
class Inputs:
    """The element type of q, by its name in MLIR, and head dimensions of q, k and v, and of further pairs of q and k."""

    element: str
    head_dim: int
    value_dim: int
    extra_dims: tuple[int, ...] = ()
    packed: bool = False
    """Whether sequences follow each other in them, so that lengths are those of a sequence."""
    paged: bool = False
    """Whether k and v are packed in pages, [pages, Hkv, size, D]."""
    parts: bool = False
    """Whether they are parts of longer sequences, whose positions the functions get."""

    lists: tuple[int, ...] = ()
    """Where lists say which keys queries see: queries and keys of a block, and keys of a tile (`attn.key_lists`)."""

    documents: bool = False
    """Whether the parts are of packed documents, one of each."""

    group: int = 1
    """Query heads of a key head that are rows of it: row r is query r // group of the member r % group."""

    kv_element: str = ""
    """The element type of k and v where it has 8 bits; empty: q's."""

    output: str = ""
    """The element type of o; empty: that of k and v."""

    descales: DescaleForms = ()

    key: tuple[Any, ...] = dataclasses.field(init=False, repr=False, compare=False)
    """All of it, to find a trace by."""

    def __post_init__(self) -> None:
        dims = self.element, self.head_dim, self.value_dim, self.extra_dims
        object.__setattr__(self, "key", (*dims, self.packed, self.paged, self.parts, self.lists, self.documents, self.group, *self._narrow))

    @property
    def narrow(self) -> bool:
        """Whether k and v have elements of 8 bits."""
        return bool(self.kv_element)

    @property
    def _narrow(self) -> tuple[Any, ...]:
        return (self.kv_element, self.output, self.descales) if self.kv_element or self.output or self.descales else ()

    @property
    def largest(self) -> float:
        """The largest finite score."""
        return sys.float_info.max if self.element == "f64" else 3.4028234663852886e38


def places_of(piece: str, arguments: Sequence[Node]) -> dict[Node, str]:
    """What the integers among a piece's arguments are, by the order in which functions take them: users name them as they like."""
    return dict(zip([argument for argument in arguments if argument.kind == "int"], _PLACES[piece], strict=False))


def sequence_captures(inputs: Inputs) -> list[Captured]:
    """Where the sequences of packed tensors begin and how long they are, as arguments of the function; none without packed tensors."""
    found = [Captured((SEQUENCE, name), name, CaptureKind.TENSOR, "i32", 1) for name in SEQUENCES] if inputs.packed else []
    return [*found, Captured((SEQUENCE, PAGES), PAGES, CaptureKind.TENSOR, "i32", 2)] if inputs.paged else found


def list_captures(inputs: Inputs) -> list[Captured]:
    """Lists of keys as arguments of the function; none where queries see all keys."""
    return [Captured((LIST, name), name, CaptureKind.TENSOR, *type_) for name, type_ in LISTS.items()] if inputs.lists else []


def position_captures(inputs: Inputs) -> list[Captured]:
    """Where parts of longer sequences begin, as arguments of the function; none where tensors are whole."""
    names = (*POSITIONS, DOCUMENT) if inputs.documents else POSITIONS
    return [Captured((POSITION, name), name, CaptureKind.INT) for name in names] if inputs.parts else []


def moved_places(inputs: Inputs) -> dict[str, str]:
    """The indices of functions to which an argument of `position_captures` is added, and which."""
    return {**OFFSETS, "b": DOCUMENT} if inputs.documents else OFFSETS if inputs.parts else {}


def product_captures(inputs: Inputs) -> list[Captured]:
    """The tensors of further products, q2, k2, q3..., as arguments of the function."""
    names = [(f"{role}{number}", dim) for number, dim in enumerate(inputs.extra_dims, 2) for role in "qk"]
    return [Captured((PRODUCT, name), name, CaptureKind.TENSOR, inputs.element, 4, columns=dim) for name, dim in names]


def product_pairs(captures: Sequence[Captured]) -> list[tuple[Source, Source]]:
    """The sources of the tensors of queries and of keys of each further product."""
    sources = [captured.source for captured in captures if captured.source[0] == PRODUCT]
    return list(zip(sources[::2], sources[1::2], strict=True))
