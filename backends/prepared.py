"""Lists of keys as kernels that read pages take them: what sizes say of them, what is wanted, and what a device or torch makes."""

from collections.abc import Callable, Sequence
from typing import NamedTuple

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


class WantedLists(NamedTuple):
    """What is read of lists besides their pages, see `PreparedLists`."""

    listed: bool = False
    shifts: bool = False
    seen: bool = False
    inverse: bool = False


class PreparedLists(NamedTuple):
    """Of each sequence, [batch entries x heads x lists, ...]: `pages` of its keys, and how many keys are `used`.

    `listed` are the numbers of its blocks, `shifts` how far each is from where it would be as the next one, in keys, `seen` how many keys
    of the list each query sees. `inverse(tile, in_order)`: see `runtime.prepared_lists.inverse_of`; it is called once. `listing()` gives
    the numbers again, as they were, where the inverse was wanted. `wrong()` waits for the device and tells whether a number was no block;
    None where nobody looked.
    """

    pages: Tensor
    used: Tensor
    listed: Tensor | None
    shifts: Tensor | None
    seen: Tensor | None
    inverse: Callable[[int, bool], Sequence[Tensor]]
    listing: Callable[[], Tensor]
    wrong: Callable[[], bool] | None
