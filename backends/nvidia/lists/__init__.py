"""Lists of keys made ready by kernels: one for what a forward pass reads of them, one for their inverse. See `driver.list_maker`."""

import ctypes
import functools
import struct
from collections.abc import Sequence
from typing import NamedTuple

import torch

from attn_mlir.backends.allocation import empty
from attn_mlir.backends.gpu.kernel import KernelCode
from attn_mlir.backends.nvidia import cuda, own_kernel, thresholds
from attn_mlir.backends.nvidia.device_helpers import text_of
from attn_mlir.backends.nvidia.lists.pending import PendingLists, keep_pending
from attn_mlir.backends.prepared import ListPlaces, ListShapes, PreparedLists, WantedLists

SOURCE, PLACES = "attn_lists.cu", "attn_places.cuh"
PREPARE, SHORT, INVERT = "attn_prepare_lists", "attn_prepare_short_lists", "attn_invert_lists"
_FORM, _INVERSE = struct.Struct("=16Q9q22i"), struct.Struct("=5Q4i")
"""What the kernels take, `AttnLists` and `AttnInverse`."""
_SHORT_ENTRIES, _SHORT_BLOCKS, _WARPS = 256, 2048, 4
"""A warp has a list of so many entries and blocks, of so many warps; a thread block others."""
_SHARED_BYTES = 200 * 1024
"""Of a thread block at most."""
_MOST, _MOST_Y = (1 << 31) - 1, 65535
_BRINGING, _BROUGHT_AT = 8, 16
"""Thread blocks that bring what a list names at most; bytes that divide where it is."""
_FLAGS: "dict[int, ListFlag]" = {}
"""By device."""
Tensor = torch.Tensor


def prepare_lists(
    index: Tensor, shapes: ListShapes, wanted: WantedLists, places: ListPlaces | None = None, pages_of: Sequence[Tensor] = ()
) -> PreparedLists | None:
    """See `driver.list_maker`; None for lists that do not fit into shared memory, and on other chips than Hopper."""
    lists, words = shapes.batch * shapes.heads * shapes.lists, -(-shapes.blocks // 32)
    short = shapes.count <= _SHORT_ENTRIES and shapes.blocks <= _SHORT_BLOCKS
    device = index.get_device()
    entry, threads, together = (SHORT, 32, _WARPS) if short else (PREPARE, 256, 1)
    memory = 4 * (words + shapes.count + threads + 1) * together
    sequences, each = lists * shapes.repeat, 1 if places is None else shapes.keys // places.rows
    most = max(sequences * max(shapes.count * each, shapes.queries), words * lists)
    if not lists or memory > _SHARED_BYTES or shapes.batch * shapes.heads > _MOST_Y or most > _MOST:
        return None
    if cuda.device(device).capability != (9, 0):
        return None
    shape, place = (sequences, shapes.count), index.device
    pages = empty((sequences, shapes.count * each), dtype=torch.int32, device=place)
    listed, shifts = (empty(shape, dtype=torch.int32, device=place) if asked else None for asked in (wanted.listed, wanted.shifts))
    used = empty((sequences,), dtype=torch.int32, device=place)
    seen = empty((sequences, shapes.queries), dtype=torch.int32, device=place) if wanted.seen else None
    bits = empty((words * lists + 1,), dtype=torch.int32, device=place) if wanted.inverse else None
    cursor = 0 if bits is None else bits.data_ptr() + 4 * words * lists
    looks = places is None and not cuda.is_capturing(device)  # numbers of packed sequences are looked at before, or not at all
    stream, flag = cuda.current_stream(device), _flag(device) if looks else None
    addresses = [0 if x is None else x.data_ptr() for x in (index, pages, listed, shifts, used, seen, bits)]
    of_flag = 0 if flag is None else flag.address
    sizes = (lists, shapes.heads, shapes.lists, shapes.count, shapes.blocks, shapes.keys, shapes.kv_len, shapes.queries, shapes.q_len)
    rest = (shapes.shift is not None, shapes.shift or 0, shapes.repeat, shapes.key_group, shapes.key_step)
    of_places, steps, more = _leading(places, each)
    ahead = _ahead(pages_of, sequences // max(1, min(shapes.repeat, shapes.key_group)) * shapes.count * each)
    form = _FORM.pack(
        *addresses,
        cursor,
        of_flag,
        *(x.data_ptr() for x in of_places),
        *[0] * (5 - len(of_places)),
        *ahead.addresses,
        *index.stride(),
        *steps,
        *ahead.steps,
        *sizes,
        *rest,
        *more,
        *ahead.sizes,
        ahead.pages,
    )
    blocks = -(-lists // together)
    bringing = min(_BRINGING, max(1, 2 * cuda.device(device).multiprocessors // blocks)) if ahead.pages else 0

    def launch() -> None:
        _start(entry, form, (blocks, 1 + bringing, 1), (threads * together, memory), (stream, device))

    pending = PendingLists(form, shapes, launch, (index, used, *of_places, *pages_of)) if wanted.later else None
    if pending is None:
        launch()
    else:
        keep_pending(pages, pending)

    def inverse(tile: int, in_order: bool) -> Sequence[Tensor]:
        assert bits is not None
        return _inverse(bits, shapes, tile, in_order)

    def listing() -> Tensor:
        assert bits is not None
        return _listing(bits, shapes)

    return PreparedLists(pages, used, listed, shifts, seen, inverse, listing, _nothing if flag is None else flag.read, pending)


def _leading(places: ListPlaces | None, each: int) -> tuple[list[Tensor], tuple[int, int, int], tuple[int, ...]]:
    """What kernels take of places: tensors, steps and numbers."""
    if places is None:
        return [], (0, 0, 0), (0,) * 5
    tensors = [x.contiguous() for x in (*places[:4], places.table) if x is not None]
    columns = 0 if places.table is None else places.table.shape[1]
    return tensors, places.steps, (len(places.q_begins), columns, max(1, places.page // places.rows), each, places.end)


class _Ahead(NamedTuple):
    """Of k and v: where their pages are, bytes from one to the next, bytes of one, and how many there are; zeros: nothing is brought."""

    addresses: tuple[int, int] = (0, 0)
    steps: tuple[int, int] = (0, 0)
    sizes: tuple[int, int] = (0, 0)
    pages: int = 0


def _ahead(pages_of: Sequence[Tensor], listed: int) -> _Ahead:
    """What is brought to the second level cache of so many listed pages of these: all of it, or nothing."""
    pages = min(map(len, pages_of), default=0)
    if len(pages_of) != 2 or not pages:
        return _Ahead()
    k, v = pages_of
    alone = v.data_ptr() == k.data_ptr() and v.stride() == k.stride() and v.shape[-1] <= k.shape[-1]  # v is columns of k
    found = []
    for x in (k,) if alone else (k, v):
        address, step, size = x.data_ptr(), x.stride(0) * x.element_size(), x[0].numel() * x.element_size()
        if not x[0].is_contiguous() or (address | step | size) % _BROUGHT_AT:
            return _Ahead()
        found.append((address, step, size))
    page = sum(size for *_, size in found)
    if page > thresholds.BROUGHT_PAGES or listed * page > thresholds.LISTED_AHEAD:
        return _Ahead()
    found += [(0, 0, 0)] * (2 - len(found))
    addresses, steps, sizes = zip(*found, strict=True)
    return _Ahead(addresses, steps, sizes, pages)


def _inverse(bits: Tensor, shapes: ListShapes, tile: int, in_order: bool) -> Sequence[Tensor]:
    """See `runtime.prepared_lists.inverse_of`."""
    heads, words, tiles = shapes.batch * shapes.heads, -(-shapes.blocks // 32), -(-shapes.kv_len // tile)
    room, device, place = heads * shapes.lists * shapes.count, bits.get_device(), bits.device
    entries = empty((room,), dtype=torch.int32, device=place)
    after = empty((room,), dtype=torch.int32, device=place) if in_order else entries
    ranges = empty((shapes.batch, shapes.heads, tiles, 2), dtype=torch.int64, device=place)
    cursor = bits.data_ptr() + 4 * (bits.numel() - 1)
    addresses = bits.data_ptr(), cursor, entries.data_ptr(), after.data_ptr() if in_order else 0, ranges.data_ptr()
    form = _INVERSE.pack(*addresses, shapes.lists, shapes.blocks, tiles, shapes.keys // tile)
    _start(INVERT, form, (words, heads, 1), (256, 0), (cuda.current_stream(device), device))
    return entries, ranges, entries, after, ranges


def _listing(bits: Tensor, shapes: ListShapes) -> Tensor:
    """The numbers that bitmaps hold, [B, heads, lists, blocks], -1 for the others."""
    words = bits[:-1].view(shapes.batch, shapes.heads, -1, 1, shapes.lists)
    there = (words >> torch.arange(32, dtype=torch.int32, device=bits.device)[:, None] & 1).flatten(2, 3)[:, :, : shapes.blocks].mT
    return torch.where(there > 0, torch.arange(shapes.blocks, dtype=torch.int32, device=bits.device), -1)


class ListFlag:
    """Memory of the host in which kernels on a device leave a number that is no block, how many blocks there are, and of how many keys.

    All kernels share it: nobody waits for one of them, so that what it holds may be of an earlier call.
    """

    def __init__(self, device: int) -> None:
        self._memory = torch.zeros(3, dtype=torch.int32, device="cpu").pin_memory()
        self._device = device
        self.address = self._memory.data_ptr()
        self._values = (ctypes.c_int * 3).from_address(self.address)

    def read(self, wait: bool) -> tuple[int, int, int] | None:
        """What they left until now, which is told once; to `wait` is for what the current stream was given. None: nothing."""
        if wait:
            torch.cuda.current_stream(self._device).synchronize()
        if not self._values[0]:
            return None
        number, blocks, keys = self._values
        self._values[0] = 0
        return number, blocks, keys


def _nothing(wait: bool) -> None:
    return None


def _flag(device: int) -> ListFlag:
    """That of a device."""
    found = _FLAGS.get(device)
    return found or _FLAGS.setdefault(device, ListFlag(device))


@functools.cache
def source() -> str:
    """The kernels."""
    return text_of(f"lists/{PLACES}", f"lists/{SOURCE}")


def code_of(entry: str) -> KernelCode:
    """One of the kernels; all have one source."""
    return own_kernel.code_of(entry, source())


def _start(entry: str, form: bytes, grid: tuple[int, int, int], block: tuple[int, int], where: tuple[int, int]) -> None:
    """Launches a kernel of `block`, threads and bytes of shared memory, on `where`, a stream and a device."""
    most = _SHARED_BYTES if block[1] > 48 * 1024 else 0
    own_kernel.start(entry, source, form, grid, (*block, most), where)
