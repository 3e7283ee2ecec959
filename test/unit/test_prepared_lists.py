"""Lists of keys made ready by kernels for NVIDIA GPUs, compiled for the host: they give what operations of torch give."""

import ctypes
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from amd_tools import needs_host_clang
from attn_mlir.api import key_numbers
from attn_mlir.backends.nvidia import lists as fused
from attn_mlir.backends.prepared import ListPlaces, ListShapes, PreparedLists, WantedLists
from attn_mlir.errors import ArgumentError
from attn_mlir.runtime.prepared_lists import by_torch, placed_by_torch
from host_kernels import host_library

_CALLS = """
extern "C" void call_prepare(const void *form, int blocks, int heads, int threads, int bytes) {
  host_launch(threads == 128 ? attn_prepare_short_lists : attn_prepare_lists, form, blocks, heads, threads, bytes);
}
extern "C" void call_invert(const void *form, int blocks, int heads, int threads, int bytes) {
  host_launch(attn_invert_lists, form, blocks, heads, threads, bytes);
}
"""
_BRING = """
#include <set>
static std::set<long long> host_brought;
static std::atomic_flag host_bringing;
static void host_bring(long long from, int bytes) {
  while (host_bringing.test_and_set()) {}
  for (int n = 0; n < bytes; ++n) host_brought.insert(from + n);
  host_bringing.clear();
}
extern "C" int call_brought(long long from) {
  const int all = host_brought.size();
  return from ? host_brought.count(from) : (host_brought.clear(), all);
}
"""
CASES = {
    "single keys": (1, 1, 3, 300, 5000, 1, 1, 1, 1),
    "heads of their own, short": (2, 2, 5, 7, 40, 64, 10, 16, 2),
    "many blocks": (1, 1, 3, 40, 3000, 16, 16, 7, 4),
    "one block": (1, 1, 1, 1, 1, 64, 64, 64, 1),
    "many entries": (1, 1, 2, 1500, 4000, 1, 1, 1, 2),
    "more entries than blocks": (1, 2, 9, 33, 33, 128, 100, 32, 1),
}
"""B, heads, lists, entries, blocks, keys of a block and of the last one, queries of a list, heads of sequences for each."""


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Any:
    source = fused.source().replace("extern __shared__ int attn_memory[];", "int *const attn_memory = host_memory;")
    before, inside, after = source.partition("#ifdef __CUDA_ARCH__")
    made = f"{_BRING}{before}  host_bring((long long)from, bytes);\n{inside}{after}{_CALLS}"
    return host_library(tmp_path_factory.mktemp("lists"), made)


@pytest.fixture
def hosted(library: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Launches run on the host."""
    flag = torch.zeros(3, dtype=torch.int32)

    def start(entry: str, form: bytes, grid: tuple[int, int, int], block: tuple[int, int], where: tuple[int, int]) -> None:
        call = library.call_invert if entry == fused.INVERT else library.call_prepare
        call(ctypes.c_char_p(form), grid[0], grid[1], *block)

    def read(wait: bool) -> Any:
        found = tuple(flag.tolist()) if flag[0] else None
        flag.zero_()
        return found

    monkeypatch.setattr(fused, "_start", start)
    monkeypatch.setattr(fused, "_flag", lambda _: SimpleNamespace(address=flag.data_ptr(), read=read))
    monkeypatch.setattr(torch.cuda, "current_stream", lambda _: None)
    monkeypatch.setattr(fused.cuda, "device", lambda _: SimpleNamespace(capability=(9, 0), multiprocessors=4))
    monkeypatch.setattr(fused.cuda, "current_stream", lambda _: 0)
    monkeypatch.setattr(fused.cuda, "is_capturing", lambda index: False)


def drawn(case: str, shift: str) -> tuple[torch.Tensor, ListShapes]:
    """Lists of a case, strided, with one entry that is none and one of the last block; with an end of keys ("top", "bottom"), or "all"."""
    batch, heads, lists, count, blocks, keys, last, queries, repeat = CASES[case]
    size, kv_len = max(1, lists * queries - queries // 2), (blocks - 1) * keys + last
    shifted = {"all": None, "top": 0, "bottom": kv_len - size}[shift]
    shapes = ListShapes(batch, heads, lists, count, blocks, keys, kv_len, queries, size, shifted, repeat, repeat, heads)
    index = torch.randint(-1, blocks, (batch, heads, lists, count), dtype=torch.int32)
    index[:, :, 0] = -1
    index[0, 0, -1] = blocks - 1
    index = index.mT.contiguous().mT
    return index, shapes


@needs_host_clang
@pytest.mark.parametrize("shift", ["all", "top", "bottom"])
@pytest.mark.parametrize("case", list(CASES))
def test_the_same_as_by_torch(case: str, shift: str, hosted: None) -> None:
    index, shapes = drawn(case, shift)
    wanted = WantedLists(True, True, shift != "all", True)
    got, want = fused.prepare_lists(index, shapes, wanted), by_torch(index, shapes, wanted)
    assert got is not None and got.wrong is not None and not got.wrong(True)
    for name in ("pages", "used", "listed", "shifts", "seen"):
        mine, right = getattr(got, name), getattr(want, name)
        assert (mine is None) == (right is None), name
        assert mine is None or torch.equal(mine, right), name
    tile = max(1, shapes.keys // 2)
    mine, right = got.inverse(tile, True), want.inverse(tile, True)
    assert mine[1].shape == right[1].shape
    for (a, b), (c, d) in zip(mine[1].view(-1, 2).tolist(), right[1].view(-1, 2).tolist(), strict=True):
        assert mine[0][a:b].tolist() == right[0][c:d].tolist()
        assert mine[3][a:b].tolist() == right[3][c:d].tolist()


PLACED = {
    "single keys, packed": (1, 1, 0, 1, (0, 3, 0)),
    "single keys, in pages": (2, 1, 16, 1, (16, 1, 0)),
    "heads, blocks in pages": (4, 16, 64, 16, (8, 2, 1)),
    "blocks of several pages": (1, 48, 16, 16, (5, 0, 0)),
    "blocks of single rows, packed": (2, 5, 0, 1, (0, 2, 1)),
}
"""Heads of lists, keys of a block, positions of a page, of one that kernels read, and steps of these."""


@needs_host_clang
@pytest.mark.parametrize("wrong", [False, True])
@pytest.mark.parametrize("end", [0, 1, 2])
@pytest.mark.parametrize("queries", [[3, 0, 5, 1, 4, 0], [1, 1, 0, 1, 5, 5], [0, 0, 0, 12, 1, 0], [1] * 13])
@pytest.mark.parametrize("case", list(PLACED))
def test_lists_of_packed_sequences(case: str, queries: list[int], end: int, wrong: bool, hosted: None) -> None:
    """Queries of several sequences, some without queries or keys; wrong offsets lead somewhere, and both ways there."""
    (heads, keys, page, rows, steps), most = PLACED[case], 90
    sequences = len(queries)
    used, lengths = torch.tensor(queries, dtype=torch.int32), torch.tensor([40, 7, 33, 90, 0, 8] * 3, dtype=torch.int32)[:sequences]
    begins = used.cumsum(0, dtype=torch.int32) - used
    if wrong:
        used, lengths = (torch.randint(*span, (sequences,), dtype=torch.int32) for span in ((-3, 20), (-9, 200)))
    key_begins = lengths.cumsum(0, dtype=torch.int32) - lengths
    columns = -(-most // page) if page else 0
    table = torch.randint(0, 50, (sequences, columns + 1), dtype=torch.int32)[:, :columns] if page else None
    places = ListPlaces(begins, used, key_begins, lengths, table, page, rows, steps, end)
    blocks, count = -(-most // keys), 12
    whole = (1, 1, 15) if heads == 1 else (15, heads, 1)  # two queries are in no sequence
    shapes = ListShapes(*whole, count, blocks, keys, most, 1, 1, None, 1, 2, 0)
    index = torch.randint(-1, blocks, (*whole, count), dtype=torch.int32)
    asked = WantedLists(True, True)
    got, want = fused.prepare_lists(index, shapes, asked, places), placed_by_torch(index, shapes, asked, places)
    assert got is not None and got.wrong is not None and not got.wrong(True)
    for name in ("pages", "used", "listed", "shifts"):
        assert torch.equal(getattr(got, name), getattr(want, name)), name
    assert wrong or (got.used > 0).any()


@needs_host_clang
@pytest.mark.parametrize("number", [40, 1 << 30, -2, -(1 << 31)])
def test_a_number_that_is_no_block_is_told_and_read_as_none(number: int, hosted: None) -> None:
    shapes = ListShapes(1, 1, 2, 3, 40, 64, 2560, 1, 2, None, 1, 1, 1)
    index = torch.tensor([[3, number, 1], [5, 5, -1]], dtype=torch.int32)[None, None]
    made = fused.prepare_lists(index, shapes, WantedLists())
    assert made is not None and made.wrong is not None and made.wrong(False) == (number, 40, 64) and not made.wrong(False)
    assert made.used.tolist() == [128, 64] and made.pages[0, :2].tolist() == [1, 3]


@needs_host_clang
@pytest.mark.parametrize("most", [1 << 20, 100])
@pytest.mark.parametrize("case", ["single keys", "heads", "short, v among keys", "packed"])
def test_what_is_listed_is_brought_closer(case: str, most: int, library: Any, hosted: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """All bytes of the pages of k and v that a list names, and no others; none where they are too many, or do not lie together."""
    monkeypatch.setattr(fused.thresholds, "LISTED_AHEAD", most)
    places = None
    if case == "packed":
        begins, used, lengths = (
            torch.tensor([0, 2, 2], dtype=torch.int32),
            torch.tensor([2, 0, 1], dtype=torch.int32),
            torch.tensor([9, 3, 20]).int(),
        )
        places = ListPlaces(begins, used, lengths.cumsum(0).int() - lengths, lengths, None, 0, 1, (0, 1, 0), 0)
        shapes, pages = ListShapes(1, 1, 3, 5, 20, 1, 20, 1, 1, None, 1, 1, 0), 32
    else:
        count, blocks, repeat = (300, 3000, 1) if case == "single keys" else (5, 40, 4)
        shapes = ListShapes(2, 1, 1, count, blocks, 1, blocks, 1, 1, None, repeat, 1 if case == "heads" else 4, 4 if case == "heads" else 1)
        pages = 2 * blocks * (4 if case == "heads" else 1)
    k, v = torch.randn(pages, 1, 1, 32).half(), torch.randn(pages, 1, 1, 24).half()
    v = k[..., :24] if "v among" in case else v
    index = torch.randint(-1, shapes.blocks, (shapes.batch, 1, shapes.lists, shapes.count), dtype=torch.int32)
    index[..., 0] = shapes.blocks + 7 if places else index[..., 1]
    library.call_brought(ctypes.c_longlong(0))
    made = fused.prepare_lists(index, shapes, WantedLists(), places, (k, v))
    assert made is not None
    ends = made.used if places is None else [min(int(n), shapes.count) for n in made.used]
    named = {int(page) for row, end in zip(made.pages.tolist(), ends, strict=True) for page in row[: int(end)]}
    tensors = [k] if "v among" in case else [k, v]
    wanted = (
        {x.data_ptr() + page * x.stride(0) * 2 + n for page in named for x in tensors for n in range(2 * x.shape[3])}
        if most > 100
        else set()
    )
    assert all(library.call_brought(ctypes.c_longlong(at)) for at in wanted) and library.call_brought(ctypes.c_longlong(0)) == len(wanted)
    spread = k.expand(pages, 3, 1, 32), v.expand(pages, 3, 1, 24)
    assert fused.prepare_lists(index, shapes, WantedLists(), places, spread) is not None and not library.call_brought(ctypes.c_longlong(0))


def test_pages_that_one_of_k_and_v_lacks_are_not_brought() -> None:
    k, v = torch.zeros(8, 1, 1, 32).half(), torch.zeros(5, 1, 1, 32).half()
    assert fused._ahead((k, v), 10).pages == fused._ahead((v, k), 10).pages == 5
    assert fused._ahead((k[:0], v), 10) == fused._ahead((k, v[:0]), 10) == fused._Ahead()


def test_lists_that_do_not_fit_are_made_by_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fused.cuda, "device", lambda _: SimpleNamespace(capability=(9, 0), multiprocessors=132))
    shapes = ListShapes(1, 1, 1, 60_000, 1 << 20, 1, 1 << 20, 1, 1, None, 1, 1, 1)
    assert fused.prepare_lists(torch.zeros(1, 1, 1, 60_000, dtype=torch.int32), shapes, WantedLists()) is None


def test_who_waits_for_lists_and_who_is_told_later(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first call of some sizes waits and tells of its own list; others tell what kernels left by then, once."""
    monkeypatch.setattr(key_numbers, "_WAITED", set())
    shapes, waited, told = ListShapes(1, 1, 2, 3, 40, 64, 2560, 1, 2, None, 1, 1, 1), list[bool](), list[Any]()

    def wrong(wait: bool) -> Any:
        waited.append(wait)
        return told.pop() if told else None

    good, bad = torch.zeros(1, 1, 2, 3, dtype=torch.int32), torch.full((1, 1, 2, 3), 40, dtype=torch.int32)
    lists = PreparedLists(good, good, None, None, None, lambda *_: (), lambda: good, wrong)
    told.append((40, 40, 64))
    with pytest.raises(ArgumentError, match=r"^key_index holds 40, but there are 40 blocks of 64 keys"):
        key_numbers.check_prepared(lists, bad, shapes)
    key_numbers.check_prepared(lists, good, shapes)
    key_numbers.check_prepared(lists, bad, shapes)
    assert waited == [True, True, False]
    told.append((77, 40, 64))
    with pytest.raises(ArgumentError, match="this call or one before held 77, but there were 40 blocks of 64 keys: give 0 to 39"):
        key_numbers.check_prepared(lists, good, shapes)
    key_numbers.check_prepared(lists, good, shapes)
    key_numbers.check_prepared(lists._replace(wrong=None), bad, shapes)
    # Nobody looks at numbers while a graph is captured, so that the first call afterwards is the first one.
    key_numbers._WAITED.clear()
    waited.clear()
    with monkeypatch.context() as captured:
        captured.setattr(key_numbers, "is_captured", lambda _: True)
        key_numbers.check_prepared(lists, bad, shapes)
    key_numbers.check_prepared(lists, good, shapes)
    assert waited == [False, True]


def test_what_was_told_at_the_call_is_not_told_again(monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[Any] = [(40, 40, 64)]

    def wrong(wait: bool) -> Any:
        return told.pop() if told else None

    bad = torch.full((1, 1, 2, 3), 40, dtype=torch.int32)
    lists = PreparedLists(bad, bad, None, None, None, lambda *_: (), lambda: bad, wrong)
    key_numbers.check_at_call(lists, bad, 40, 64)  # later
    monkeypatch.setenv("ATTN_MLIR_CHECK", "1")
    with pytest.raises(ArgumentError, match=r"^key_index holds 40"):
        key_numbers.check_at_call(lists, bad, 40, 64)
    assert not told
    with pytest.raises(ArgumentError, match=r"^key_index holds 40"):
        key_numbers.check_at_call(lists._replace(wrong=None), bad, 40, 64)
