"""Key lists as kernels read them: of a tensor of block numbers, sorted lists without gaps, and their inverse.

They are made on the host, at every call: what the tensor holds may have changed. An entry that is listed twice is there once.
"""

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from attn_mlir.backends.allocation import empty
from attn_mlir.errors import ArgumentError
from attn_mlir.runtime.checked import is_checked

Array = np.ndarray[Any, Any]
TILES = (32, 16)


@dataclass(frozen=True)
class ListForm:
    """Queries and keys of a block as kernels see them, the keys of a tile of the inverse, and keys of a listed block of the user."""

    queries: int
    keys: int
    tile: int
    listed: int

    @property
    def sizes(self) -> tuple[int, int, int]:
        """As `attn.key_lists` takes them."""
        return self.queries, self.keys, self.tile

    def parts(self, kv_len: Any) -> Any:
        """Entries that kernels see for one of the user's, of so many keys: keys of small blocks, which are listed one by one."""
        return torch.sym_max(1, torch.sym_min(self.listed, kv_len)) if self.keys == 1 else 1

    def tiles(self, kv_len: Any) -> Any:
        """Tiles of the inverse that an entry is in."""
        return torch.sym_max(1, torch.sym_min(self.keys // self.tile, -(-kv_len // self.tile)))


def form_of(queries: int, keys: int) -> ListForm:
    """Blocks of whole vectors of keys stay blocks; of others, the keys are listed."""
    tile = next((tile for tile in TILES if keys % tile == 0), 0)
    return ListForm(queries, keys, tile, keys) if tile else ListForm(queries, 1, TILES[0], keys)


def fold(x: torch.Tensor, group: int) -> torch.Tensor:
    """[B, H, S, D] with the heads of a group as rows: [B, H / group, S group, D]."""
    return x.unflatten(1, (-1, group)).transpose(2, 3).flatten(2, 3)


def unfold(x: torch.Tensor, group: int) -> torch.Tensor:
    """The inverse, also of [B, H, S]."""
    return x.unflatten(2, (-1, group)).transpose(2, 3).flatten(1, 2)


def lists_of(index: torch.Tensor, kv_len: int, form: ListForm, inverse: bool) -> list[torch.Tensor]:
    """The tensors of `frontend.given.LISTS`. Their sizes follow from those of `index`; what is after the last entry is 0.

    Raises ArgumentError for a number that is no block of the keys.
    """
    numbers = np.sort(index.numpy(), axis=-1, kind="stable")
    blocks = -(-kv_len // form.listed)
    if numbers.size:
        check_range(int(numbers[..., 0].min()), int(numbers[..., -1].max()), blocks, form.listed)
    present = numbers >= 0
    twice = np.zeros_like(present)
    twice[..., 1:] = present[..., 1:] & (numbers[..., 1:] == numbers[..., :-1])
    check_twice(numbers, twice)
    present &= ~twice
    entries, rows = numbers[present].astype(np.int64), np.repeat(np.arange(math.prod(present.shape[:-1])), _counts(present))
    parts = form.parts(kv_len)
    if form.keys == 1 and form.listed > 1:
        entries = (entries[:, None] * form.listed + np.arange(parts)).reshape(-1)
        rows = np.repeat(rows, parts)
        inside = entries < kv_len
        entries, rows = entries[inside], rows[inside]
    lists = math.prod(present.shape[:-1])
    room = index.numel() * parts
    made = [_padded(entries, room), _ranges(rows, lists, present.shape[:-1])]
    heads, tiles = present.shape[:2], -(-kv_len // form.tile)
    if not inverse:
        return [*made, _padded(entries[:0], 1), _padded(entries[:0], 1), torch.zeros((*heads, 0, 2), dtype=torch.int64, device="cpu")]
    return [*made, *_inverse(entries, rows, (*heads, present.shape[2], tiles), form, room, form.tiles(kv_len))]


def run_key_lists(index: torch.Tensor, kv_len: int, keys: int, inverse: bool) -> list[torch.Tensor]:
    """What the operator `attn_mlir::key_lists` does in a graph of torch.compile or torch.export: `lists_of` blocks of so many keys."""
    return lists_of(index, kv_len, form_of(1, keys), inverse)


def fake_key_lists(index: torch.Tensor, kv_len: int, keys: int, inverse: bool) -> list[torch.Tensor]:
    """Tensors of the same sizes without data."""
    form = form_of(1, keys)
    batch, heads, lists, count = index.shape
    room = batch * heads * lists * count * form.parts(kv_len)
    back, tiles = (room * form.tiles(kv_len), -(-kv_len // form.tile)) if inverse else (0, 0)

    def made(*shape: Any, dtype: torch.dtype = torch.int32) -> torch.Tensor:
        return empty(shape, dtype=dtype, device=index.device)

    ranges = made(batch, heads, lists, 2, dtype=torch.int64), made(batch, heads, tiles, 2, dtype=torch.int64)
    flat = [made(torch.sym_max(1, size)) for size in (room, back, back)]
    return [flat[0], ranges[0], flat[1], flat[2], ranges[1]]


def check_range(low: int, high: int, blocks: int, keys: int) -> None:
    """Refuses lists whose least and largest numbers are no blocks of `keys` keys, of which there are `blocks`."""
    if low < -1 or high >= blocks:
        raise ArgumentError(
            f"key_index holds {high if high >= blocks else low}, but there are {blocks} blocks of {keys} keys: "
            f"give 0 to {blocks - 1}, or -1 for no block"
        )


def check_twice(numbers: Array, twice: Array) -> None:
    """Where asked for, refuses lists of `numbers` with entries that are there `twice`."""
    if is_checked() and twice.any():
        where = tuple(int(i) for i in np.argwhere(twice)[0][:3])
        raise ArgumentError(f"key_index{list(where)} lists block {int(numbers[where][twice[where]][0])} twice (ATTN_MLIR_CHECK=1)")


def _inverse(entries: Array, rows: Array, sizes: tuple[int, ...], form: ListForm, room: int, width: int) -> list[torch.Tensor]:
    """The queries that list a tile, which of its keys these are, and where those of each tile lie. `sizes`: B, H, lists, tiles.

    `width`: tiles that an entry is in.
    """
    batch, heads, per_head, tiles = sizes
    owners, queries = rows // max(1, per_head), rows % max(1, per_head)
    kept = np.full(len(entries), -1, np.int64)
    if form.keys == 1:
        tile = entries // form.tile
        # Keys of one tile that a list names follow each other.
        first = np.ones(len(entries), bool)
        first[1:] = (tile[1:] != tile[:-1]) | (rows[1:] != rows[:-1])
        starts = np.flatnonzero(first)
        bits = np.left_shift(np.int64(1), entries % form.tile)
        kept = np.bitwise_or.reduceat(bits, starts) if len(starts) else bits
        tile, owners, queries = tile[starts], owners[starts], queries[starts]
    else:
        tile = (entries[:, None] * (form.keys // form.tile) + np.arange(width)).reshape(-1)
        owners, queries, kept = (np.repeat(x, width) for x in (owners, queries, kept))
        inside = tile < tiles
        tile, owners, queries, kept = tile[inside], owners[inside], queries[inside], kept[inside]
    own = owners * tiles + tile
    order = np.argsort(own, kind="stable")
    room *= width
    words = kept[order].astype(np.uint64).astype(np.uint32).view(np.int32)
    return [_padded(queries[order], room), _padded(words, room), _ranges(own[order], batch * heads * tiles, (batch, heads, tiles))]


def _counts(present: Array) -> Array:
    return present.sum(-1).reshape(-1)


def _ranges(owners: Array, count: int, shape: tuple[int, ...]) -> torch.Tensor:
    """Where the entries of each of `count` owners lie, whose numbers rise."""
    ends = np.cumsum(np.bincount(owners, minlength=count)[:count] if count else np.zeros(0, np.int64))
    begins = np.concatenate([np.zeros(1, ends.dtype), ends])[:-1]
    return torch.from_numpy(np.stack([begins, ends], -1).astype(np.int64).reshape(*shape, 2))


def _padded(entries: Array, room: int) -> torch.Tensor:
    made = np.zeros(max(1, room), np.int32)
    made[: len(entries)] = entries
    return torch.from_numpy(made)
