"""Lists of keys as kernels that read pages take them, and their inverse: by a kernel of the device, or by operations of torch.

Neither waits for the device. Lists lose what is there twice, and come in order, without gaps; what is left stands for no block.
"""

from collections.abc import Sequence
from typing import Any

import torch

from attn_mlir import driver
from attn_mlir.backends.kept import kept_by_sizes
from attn_mlir.backends.prepared import ListPlaces, ListShapes, PreparedLists, WantedLists

Tensor = torch.Tensor


def prepare(
    index: Tensor,
    shapes: ListShapes,
    wanted: WantedLists,
    device: str,
    places: ListPlaces | None = None,
    pages_of: Sequence[Tensor] = (),
) -> PreparedLists:
    """The lists of a tensor, which `device` reads; `places`: of queries of packed sequences. `pages_of`: see `driver.list_maker`."""
    make = driver.list_maker(device)
    made = None if make is None else make(index, shapes, wanted, places, pages_of)
    if made is not None:
        return made
    return by_torch(index, shapes, wanted) if places is None else placed_by_torch(index, shapes, wanted, places)


def by_torch(index: Tensor, shapes: ListShapes, wanted: WantedLists) -> PreparedLists:
    """The same by operations of torch."""
    ordered = sorted_lists(index, shapes.blocks)
    limits = None if shapes.shift is None else limits_of(shapes, index.device)
    used = _keys_below(ordered, shapes.keys, shapes.kv_len if limits is None else limits["last"])
    listed = _repeated(ordered.clamp(max=shapes.blocks - 1), shapes.repeat)
    seen = None
    if wanted.seen and limits is not None:
        seen = _repeated(_seen(ordered, used, shapes.keys, limits["each"]), shapes.repeat)

    def first_pages() -> dict[str, Tensor]:
        heads = torch.arange(shapes.heads * shapes.repeat, device=index.device) // shapes.key_group
        first = (torch.arange(shapes.batch, device=index.device)[:, None] * shapes.key_step + heads) * shapes.blocks
        return {"pages": first.flatten().repeat_interleave(shapes.lists)[:, None].to(torch.int32)}

    pages = listed + kept_by_sizes(("pages", shapes, index.device), first_pages)["pages"]
    shifts = shifts_of(listed, shapes.keys) if wanted.shifts else None

    def listing() -> Tensor:
        return ordered.masked_fill(ordered == shapes.blocks, -1)

    def inverse(tile: int, in_order: bool) -> Sequence[Tensor]:
        return inverse_of(ordered, shapes.keys, tile, shapes.kv_len, in_order)

    return PreparedLists(
        pages, _repeated(used, shapes.repeat).flatten(), listed if wanted.listed else None, shifts, seen, inverse, listing, None
    )


def _repeated(lists: Tensor, repeat: int) -> Tensor:
    """Of [B, heads of lists, lists, ...] those of each head of sequences, [sequences, ...]."""
    return (lists.repeat_interleave(repeat, 1) if repeat > 1 else lists).flatten(0, 2)


def sorted_lists(index: Tensor, blocks: int) -> Tensor:
    """The lists in order without gaps; what is left is `blocks`, which is none."""
    ordered = index.sort(-1).values
    absent = ordered < 0
    absent[..., 1:].logical_or_(ordered[..., 1:] == ordered[..., :-1])
    return ordered.masked_fill_(absent, blocks).sort(-1).values


def shifts_of(listed: Tensor, keys: int) -> Tensor:
    """How far blocks are from where they would be as the next ones, so that one look and one sum give a position."""
    return (listed - torch.arange(listed.shape[1], dtype=listed.dtype, device=listed.device)) * keys


def limits_of(shapes: ListShapes, device: torch.device) -> dict[str, Tensor]:
    """How many keys queries see: "each" of every block, and the "last" of each."""
    shift = shapes.shift or 0

    def made() -> dict[str, Tensor]:
        query = torch.arange(shapes.lists * shapes.queries, device=device).clamp_(max=shapes.q_len - 1)
        each = (query + (shift + 1)).clamp_(0, shapes.kv_len).to(torch.int32).view(shapes.lists, shapes.queries)
        return {"each": each, "last": each[:, -1:]}

    return kept_by_sizes(("limits", shapes.lists, shapes.queries, shapes.q_len, shapes.kv_len, shift, device), made)


def _keys_below(ordered: Tensor, keys: int, limit: Any) -> Tensor:
    """How many keys of each list are before `limit`, a number or one for each list, which is not after the last key."""
    return (limit - ordered * keys).clamp_(0, keys).sum(-1, dtype=torch.int32)


def _seen(ordered: Tensor, used: Tensor, keys: int, limits: Tensor) -> Tensor:
    """How many keys of each list each of its queries sees, whose limits are [lists, queries]: [B, heads, lists, queries]."""
    begins, limits = ordered * keys, limits.expand(*ordered.shape[:3], -1).contiguous()
    before = torch.searchsorted(begins, limits, out_int32=True) - 1  # the last block that begins before
    inside = limits - begins.gather(3, before.clamp(min=0).long())
    return torch.minimum(before * keys + inside.clamp_(max=keys), used[..., None]).clamp_(min=0)


def inverse_of(ordered: Tensor, keys: int, tile: int, kv_len: int, in_order: bool = False) -> Sequence[Tensor]:
    """The tensors of `frontend.given.LISTS`, of which kernels of pairs read the inverse of the `ordered` lists alone: for each tile of keys
    the blocks of queries that list it, in their order, each once.

    With `in_order` also which block the same queries list next, for sums in a fixed order.
    """
    blocks, (batch, heads, lists, count) = -(-kv_len // keys), ordered.shape
    device, length = ordered.device, lists * count

    def make() -> dict[str, Tensor]:
        own = torch.arange(-(-kv_len // tile), device=device) * tile // keys
        numbers = torch.stack([own, own + 1], -1).to(ordered.dtype)
        first = torch.arange(batch * heads, device=device).view(batch, heads, 1, 1) * length
        return {"numbers": numbers.flatten().expand(batch, heads, -1).contiguous(), "first": first}

    kept = kept_by_sizes(("inverse", batch, heads, length, keys, tile, kv_len, device), make)
    entries, places = ordered.flatten(2).sort(dim=-1, stable=True)
    back = (places // count).to(torch.int32).flatten()
    ranges = torch.searchsorted(entries, kept["numbers"]).unflatten(2, (-1, 2)) + kept["first"]
    if not in_order:
        return back, ranges, back, back, ranges
    after = torch.nn.functional.pad(ordered[..., 1:], (0, 1), value=blocks).flatten(2).gather(2, places).flatten()
    return back, ranges, back, after.masked_fill_(after == blocks, -1), ranges


def placed_by_torch(index: Tensor, shapes: ListShapes, wanted: WantedLists, places: ListPlaces) -> PreparedLists:
    """Lists of queries of packed sequences, whose pages are where `places` lead."""
    blocks_of_all = shapes._replace(kv_len=shapes.blocks * shapes.keys, key_group=shapes.heads + 1, key_step=0)
    made = by_torch(index, blocks_of_all, wanted)  # whose pages are numbers of blocks, in order
    owner, limit = (x.repeat_interleave(shapes.heads) for x in limits_of_queries(places, shapes.batch * shapes.lists, shapes.kv_len))
    keys, numbers = shapes.keys, made.pages
    inside = torch.searchsorted(numbers, ((limit + (keys - 1)) // keys)[:, None], out_int32=True).squeeze(1)
    entries = torch.minimum(made.used // keys, inside)
    last = numbers.gather(1, (entries - 1).clamp(min=0)[:, None].long()).squeeze(1)
    beyond = torch.where(entries > 0, ((last + 1) * keys - limit).clamp(min=0), 0)
    return made._replace(pages=_placed(numbers, owner, shapes, places), used=(entries * keys - beyond).to(torch.int32))


def limits_of_queries(places: ListPlaces, queries: int, most: int) -> tuple[Tensor, Tensor]:
    """The sequence of each query, and how many keys it may see; for one of no sequence any, and 0."""
    begins, lengths, _, k_lengths = places[:4]
    query = torch.arange(queries, dtype=torch.int32, device=begins.device)
    owner = (torch.searchsorted(begins, query, right=True, out_int32=True) - 1).clamp(min=0)
    position = query - begins[owner]
    limit = k_lengths[owner]
    if places.end:
        limit = torch.minimum(limit, position + 1 + (limit - lengths[owner] if places.end > 1 else 0))
    inside = (position >= 0) & (position < lengths[owner])
    return owner, torch.where(inside, limit.clamp(0, most), 0)


def _placed(numbers: Tensor, owner: Tensor, shapes: ListShapes, places: ListPlaces) -> Tensor:
    """Which pages blocks of sequences are."""
    of_page, of_part, of_head = places.steps
    each = shapes.keys // places.rows
    if each > 1:
        numbers = (numbers[..., None] * each + torch.arange(each, dtype=torch.int32, device=numbers.device)).flatten(1)
    if places.table is None:
        found = (numbers + places.k_begins[owner][:, None]) * of_part
    else:
        parts, columns = places.page // places.rows, places.table.shape[1]
        place = torch.div(numbers, parts, rounding_mode="floor").clamp(max=columns - 1) + owner[:, None] * columns
        found = places.table.reshape(-1).index_select(0, place.flatten()).view_as(numbers) * of_page + numbers % parts * of_part
    if of_head:
        head = torch.arange(shapes.heads, dtype=torch.int32, device=numbers.device) // shapes.key_group * of_head
        found = found + head.repeat(len(owner) // shapes.heads)[:, None]
    return found.contiguous()
