"""`append_kv`: new keys and values written into caches in place, contiguous or paged, rotated where asked."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from attn_mlir.api.inputs import check_device
from attn_mlir.errors import ArgumentError, UnsupportedError
from attn_mlir.runtime.checked import is_checked


def append_kv(
    k_cache: Tensor,
    v_cache: Tensor,
    k: Tensor,
    v: Tensor,
    seqused_k: Tensor,
    *,
    block_table: Tensor | None = None,
    cache_batch_idx: Tensor | None = None,
    q: Tensor | None = None,
    rotary_cos: Tensor | None = None,
    rotary_sin: Tensor | None = None,
    interleaved: bool = False,
) -> Tensor | None:
    """Writes k and v after the keys that caches hold, in place; returns q, rotated where tables are given (None without q).

    k is [B, n, Hkv, D], v [B, n, Hkv, Dv]; seqused_k, int32 [B], says how many keys each sequence has before: new ones come at positions
    seqused_k[b] to seqused_k[b] + n. Caches are [rows, S, Hkv, D], of any strides, of which sequence b has row b, or cache_batch_idx[b].
    With block_table, int32 [B, most pages], they are [pages, size, Hkv, D]: position p is row p % size of page block_table[b, p // size].

    rotary_cos, rotary_sin: [positions, R / 2] tables that rotate the first R channels of k and of q, [B, n_q, Hq, D], whose rows are at
    positions seqused_k[b], seqused_k[b] + 1, ...; channel i is paired with i + R / 2, or if `interleaved` 2 i with 2 i + 1.

    v_cache may be columns of k_cache (`k_cache[..., :512]`, MLA's), if v is those of k: another v, or what a rotation changes, is an error
    where values are looked at, and takes the place of k's columns elsewhere.

    It has no gradients. On the CPU everything is checked before anything is written. On a GPU nothing waits for lengths and tables, so that
    it can be part of a CUDA graph: what they lead outside of caches is not written; `ATTN_MLIR_CHECK=1` checks them there, too.
    """
    _check(k_cache, v_cache, k, v, seqused_k)
    count, new = k.shape[:2]
    positions = seqused_k.long()[:, None] + torch.arange(new, device=k.device)
    looks = k.device.type == "cpu" or is_checked()
    if looks and (seqused_k < 0).any():
        raise ArgumentError("seqused_k must not be negative")
    entry, slot = _places(k_cache, positions, block_table, cache_batch_idx, looks)
    if (rotary_cos is None) != (rotary_sin is None):
        raise ArgumentError("rotary_cos and rotary_sin come together")
    if rotary_cos is not None and rotary_sin is not None:
        _check_rotation(k, rotary_cos=rotary_cos, rotary_sin=rotary_sin)
        if q is not None:
            if not isinstance(q, Tensor) or q.dim() != 4 or len(q) != count or not q.is_floating_point():
                given = f"shape {list(q.shape)} of {q.dtype}" if isinstance(q, Tensor) else type(q).__name__
                raise ArgumentError(f"q must be a tensor of floats [{count}, position, head, dim], got {given}")
            check_device("q", q, k.device, "k")
            at = seqused_k.long()[:, None] + torch.arange(q.shape[1], device=k.device)
            q = _rotated("q", q, (at, looks), (rotary_cos, rotary_sin), interleaved)
        k = _rotated("k", k, (positions, looks), (rotary_cos, rotary_sin), interleaved)
    with torch.no_grad():
        k, v = (_apart(x, k_cache, v_cache) for x in (k, v))
        if looks:
            _check_columns(k_cache, v_cache, k, v)
            k_cache[entry, slot] = k.to(k_cache.dtype)
            v_cache[entry, slot] = v
        else:
            _write_inside(((k_cache, k.to(k_cache.dtype)), (v_cache, v)), entry, slot)
    return q


def _check_columns(k_cache: Tensor, v_cache: Tensor, k: Tensor, v: Tensor) -> None:
    """Raises ArgumentError where v_cache is columns of k_cache, and v is not these of k, over which it would be written."""
    step, size = v_cache.data_ptr() - k_cache.data_ptr(), k_cache.element_size()
    steps = [a == b or count == 1 for a, b, count in zip(k_cache.stride(), v_cache.stride(), k_cache.shape[:3], strict=False)]
    if not all(steps) or k_cache.stride(3) != 1 or v_cache.stride(3) != 1 or step % size:
        return
    first = step // size  # v_cache's first column among those of k_cache
    begin, end = max(first, 0), min(first + v.shape[3], k.shape[3])
    if begin >= end:
        return
    of_k, of_v = (x.contiguous().view(torch.uint8) for x in (k[..., begin:end], v[..., begin - first : end - first]))
    if not torch.equal(of_k, of_v):
        raise ArgumentError(
            f"v_cache has columns {begin} to {end - 1} of k_cache in the same memory, and v (or k, rotated) has others there: "
            "pass these columns of k as v, or give v_cache memory of its own"
        )


def _apart(x: Tensor, *caches: Tensor) -> Tensor:
    """x, copied where it is a view of a cache, whose rows may be written before they are read."""
    memory = x.untyped_storage().data_ptr()
    return x.clone() if any(cache.untyped_storage().data_ptr() == memory for cache in caches) else x


def _write_inside(pairs: Sequence[tuple[Tensor, Tensor]], entry: Tensor, slot: Tensor) -> None:
    """Writes rows at places of caches, those outside of these nowhere; an `entry` of -1 is outside.

    Rows without a place do what one with a place does, the same once more, or, where there is none, write what is there.
    """
    cache = pairs[0][0]
    if not entry.numel() or not cache.shape[0] or not cache.shape[1]:
        return
    entry, slot = entry.flatten(), slot.flatten()
    inside = (entry >= 0) & (entry < cache.shape[0]) & (slot >= 0) & (slot < cache.shape[1])
    which = torch.where(inside, torch.arange(len(entry), device=entry.device), inside.int().argmax())
    entry, slot = entry[which].clamp(0, cache.shape[0] - 1), slot[which].clamp(0, cache.shape[1] - 1)
    for cache, rows in pairs:
        cache[entry, slot] = torch.where(inside.any(), rows.flatten(0, 1)[which], cache[entry, slot])


def _check(k_cache: Any, v_cache: Any, k: Any, v: Any, seqused_k: Any) -> None:
    named = {"k_cache": k_cache, "v_cache": v_cache, "k": k, "v": v}
    for name, x in named.items():
        if not isinstance(x, Tensor) or x.dim() != 4:
            given = f"shape {list(x.shape)}" if isinstance(x, Tensor) else type(x).__name__
            raise ArgumentError(f"{name} must be a tensor of four dimensions, [entry, position, head, dim], got {given}")
        if x.device.type not in ("cpu", "cuda"):
            raise UnsupportedError(
                f"append_kv runs on CPUs and GPUs, and {name} is on {x.device}: write k_cache[entry, position] = k there"
            )
        check_device(name, x, k.device, "k")
        if x.dtype != k.dtype:
            raise ArgumentError(f"{name} has dtype {x.dtype} but k has {k.dtype}: cast one of them")
        if torch.is_grad_enabled() and x.requires_grad:
            raise ArgumentError(f"{name} requires a gradient, and caches are written in place: call append_kv under torch.no_grad()")
    for name, cache in (("k_cache", k_cache), ("v_cache", v_cache)):
        if shares_places(cache):
            raise ArgumentError(
                f"{name} has one place in memory for several elements, as expand() and unfold() make: give it memory of its own"
            )
    if k_cache.shape[:3] != v_cache.shape[:3]:
        raise ArgumentError(f"v_cache has shape {list(v_cache.shape)}, which does not go with that of k_cache, {list(k_cache.shape)}")
    for name, x, cache in (("k", k, k_cache), ("v", v, v_cache)):
        if x.shape[2:] != cache.shape[2:] or x.shape[:2] != k.shape[:2]:
            raise ArgumentError(
                f"{name} has shape {list(x.shape)}, which does not go with k, {list(k.shape)}, and its cache, {list(cache.shape)}"
            )
    _check_table("seqused_k", seqused_k, 1, k.shape[0], k.device)


def shares_places(x: Tensor) -> bool:
    """Whether elements may share memory: where none do, each dimension steps over all that those of smaller strides span."""
    span = 0
    for stride, size in sorted(zip(x.stride(), x.shape, strict=True)):
        if size > 1 and stride <= span:
            return True
        span += stride * max(0, size - 1)
    return False


def _check_rotation(k: Tensor, **tables: Any) -> None:
    if k.element_size() < 2 or not k.is_floating_point():
        raise ArgumentError(f"k has dtype {k.dtype}, which is not rotated: rotate it in a wider type before the call")
    for name, table in tables.items():
        if not isinstance(table, Tensor) or not table.is_floating_point():
            given = f"one of {table.dtype}" if isinstance(table, Tensor) else type(table).__name__
            raise ArgumentError(f"{name} must be a tensor of floats [positions, R / 2], got {given}")
        check_device(name, table, k.device, "k")


def _check_table(name: str, x: Any, rank: int, count: int, device: torch.device) -> None:
    if not isinstance(x, Tensor) or x.dtype != torch.int32 or x.dim() != rank or len(x) != count or x.device != device:
        given = f"{list(x.shape)} of {x.dtype} on {x.device}" if isinstance(x, Tensor) else type(x).__name__
        wanted = f"[{count}]" if rank == 1 else f"[{count}, pages]"
        raise ArgumentError(f"{name} must be an int32 tensor {wanted} on {'the CPU' if device.type == 'cpu' else device}, got {given}")


def _places(cache: Tensor, positions: Tensor, table: Tensor | None, rows: Tensor | None, looks: bool) -> tuple[Tensor, Tensor]:
    """The entry and the row in the cache of every new key; no two may share one, which is looked at where `looks`."""
    size = cache.shape[1]
    if table is not None:
        _check_table("block_table", table, 2, len(positions), positions.device)
    if rows is not None:
        if table is not None:
            raise ArgumentError("cache_batch_idx is for contiguous caches: leave it out where block_table is given")
        _check_table("cache_batch_idx", rows, 1, len(positions), positions.device)
    own = torch.arange(len(positions), device=positions.device) if rows is None else rows.long()
    if not looks:
        if table is None:
            return own[:, None].expand_as(positions), positions
        page, most = positions // max(1, size), table.shape[1]
        found = table.long().gather(1, page.clamp(0, max(0, most - 1))) if most else torch.full_like(positions, -1)
        return torch.where((positions >= 0) & (page < most), found, -1), positions % max(1, size)
    end = int(positions.max()) + 1 if positions.numel() else 0
    if end > (size if table is None else table.shape[1] * size):
        what = f"k_cache has {size} positions" if table is None else f"block_table has {table.shape[1]} pages of {size} positions"
        raise ArgumentError(f"seqused_k and the new keys reach position {end - 1}, but {what}")
    if table is not None:
        entry = table.long().gather(1, positions // size)
    else:
        entry = own[:, None].expand_as(positions)
    name, kind = ("cache_batch_idx", "rows") if table is None else ("block_table", "pages")
    if entry.numel() and (int(entry.min()) < 0 or int(entry.max()) >= len(cache)):
        raise ArgumentError(f"{name} names {kind} from {int(entry.min())} to {int(entry.max())}, but k_cache has {len(cache)}")
    slot = positions % size
    if len(torch.unique(entry * size + slot)) != entry.numel():
        raise ArgumentError(f"{name} gives several sequences one place to write to")
    return entry, slot


def _rotated(name: str, x: Tensor, places: tuple[Tensor, bool], tables: tuple[Tensor, Tensor], interleaved: bool) -> Tensor:
    """The rows at these places, rotated in the type of the tables or in float32, whichever is wider.

    `places` are positions, and whether these are looked at; others than the tables have stand for the nearest one.
    """
    (positions, looks), (cos, sin) = places, tables
    if cos.shape != sin.shape or cos.dim() != 2 or 2 * cos.shape[1] > x.shape[3]:
        raise ArgumentError(
            f"rotary_cos and rotary_sin must be [positions, R / 2] with R up to {name}'s {x.shape[3]}, got {list(cos.shape)}"
        )
    if not looks:
        positions = positions.clamp(0, max(0, len(cos) - 1))
    elif positions.numel() and int(positions.max()) >= len(cos):
        raise ArgumentError(f"rotary_cos has {len(cos)} positions, but {name} reaches position {int(positions.max())}")
    half, wide = cos.shape[1], torch.promote_types(torch.promote_types(cos.dtype, torch.float32), x.dtype)
    c, s = (table[positions].to(wide)[:, :, None] for table in (cos, sin))
    turned, rest = x[..., : 2 * half].to(wide), x[..., 2 * half :]
    a, b = (turned[..., ::2], turned[..., 1::2]) if interleaved else (turned[..., :half], turned[..., half:])
    parts = a * c - b * s, b * c + a * s
    made = torch.stack(parts, -1).flatten(-2) if interleaved else torch.cat(parts, -1)
    return torch.cat([made.to(x.dtype), rest], -1)
