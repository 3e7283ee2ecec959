"""Lists of keys as kernels that read pages take them: what sizes say of them, what is wanted, and what a device or torch makes."""

from collections.abc import Callable, Sequence
from typing import NamedTuple, Protocol

from torch import Tensor


class ListShapes(NamedTuple):
    """What sizes say of lists [batch, heads, lists, count] of numbers below `blocks`, blocks of `keys` of `kv_len` keys.

    `shift`: query i sees the keys up to i + shift, None: all. Each head stands for `repeat` heads of sequences, `key_group` of which see
    one head of pages; entries of the next batch entry have `key_step` times as many pages before them.
    """

    batch: int
    heads: int
    lists: int
    count: int
    blocks: int
    keys: int
    kv_len: int
    queries: int
    q_len: int
    shift: int | None
    repeat: int
    key_group: int
    key_step: int


class ListPlaces(NamedTuple):
    """Where lists of queries of packed sequences lead, of blocks of their own sequence: list n is of query n, or of heads of it.

    The first tensors are those of `frontend.given.SEQUENCES`, then comes a table of pages of `page` positions, or None. Pages that kernels
    read have `rows` positions; `steps`: how many of them on the next page of the cache begins, the next of its parts, and the next head.
    """

    q_begins: Tensor
    q_lengths: Tensor
    k_begins: Tensor
    k_lengths: Tensor
    table: Tensor | None
    page: int
    rows: int
    steps: tuple[int, int, int]
    end: int = 0
    """0: queries see all keys, 1: those up to their own position, 2: as many of the last ones less as queries come after them."""


class WantedLists(NamedTuple):
    """What is read of lists besides their pages, see `PreparedLists`."""

    listed: bool = False
    shifts: bool = False
    seen: bool = False
    inverse: bool = False
    later: bool = False
    """Whether nothing but kernels of single queries reads them, which may make pages and what is used themselves."""


class LaterLists(Protocol):
    """Lists that whoever reads their pages first makes."""

    is_made: bool

    def start(self) -> None:
        """Starts what makes them, unless that was done."""


class PreparedLists(NamedTuple):
    """Of each sequence, [batch entries x heads x lists, ...]: `pages` of its keys, and how many keys are `used`.

    `listed` are the numbers of its blocks, `shifts` how far each is from where it would be as the next one, in keys, `seen` how many keys
    of the list each query sees. `inverse(tile, in_order)`: see `runtime.prepared_lists.inverse_of`; it is called once. `listing()` gives
    the numbers again, as they were, where the inverse was wanted. `wrong(wait)` tells of a number that was no block, of how many blocks of
    how many keys: of these lists, if it is to `wait` for the device, and of earlier ones; None where nobody looked.
    """

    pages: Tensor
    used: Tensor
    listed: Tensor | None
    shifts: Tensor | None
    seen: Tensor | None
    inverse: Callable[[int, bool], Sequence[Tensor]]
    listing: Callable[[], Tensor]
    wrong: Callable[[bool], tuple[int, int, int] | None] | None
    pending: LaterLists | None = None
    """Where they are made later: pages and what is used hold nothing before."""
