"""Lists that thread blocks of a few queries make ready themselves, compiled for the host: they give what operations of torch give."""

import ctypes
import struct
from typing import Any

import pytest
import torch

from amd_tools import needs_host_clang
from attn_mlir.backends.nvidia import lists
from attn_mlir.backends.nvidia.device_helpers import text_of
from attn_mlir.backends.nvidia.hopper.few_rows import HELPERS
from attn_mlir.backends.prepared import ListPlaces, ListShapes, WantedLists
from attn_mlir.runtime.prepared_lists import by_torch, placed_by_torch
from host_kernels import host_library
from test_prepared_lists import CASES, PLACED, drawn

_THREADS = 64
_CALLS = f"""
struct CallFew {{
  AttnFew few;
  int *used;
}};
static void few(const CallFew f) {{
  const int parts = f.few.parts, part = blockIdx.x % parts, begin = part * f.few.length;
  const int end = part + 1 == parts ? f.few.lists.count * f.few.lists.keys : begin + f.few.length;
  f.used[blockIdx.x] = attn_list_part<{_THREADS}>(f.few.lists, host_memory, blockIdx.x / parts, begin, end);
}}
extern "C" void call_few(const void *form, int blocks, int bytes) {{ host_launch(few, form, blocks, 1, {_THREADS}, bytes); }}
"""


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Any:
    return host_library(tmp_path_factory.mktemp("few"), text_of(*HELPERS) + _CALLS)


@pytest.fixture(autouse=True)
def pretended(monkeypatch: pytest.MonkeyPatch) -> None:
    """There is a Hopper GPU, on which nothing is launched."""
    device: Any = type("Device", (), {"capability": (9, 0), "multiprocessors": 4})
    monkeypatch.setattr(lists, "_start", lambda *_: pytest.fail("a kernel of its own was launched"))
    monkeypatch.setattr(lists.cuda, "device", lambda _: device)
    monkeypatch.setattr(lists.cuda, "current_stream", lambda _: 0)
    monkeypatch.setattr(lists.cuda, "is_capturing", lambda _: True)


def made(library: Any, index: torch.Tensor, shapes: ListShapes, parts: int, length: int, places: Any = None) -> tuple[Any, torch.Tensor]:
    """The lists that a kernel makes, and what each part says is used."""
    got: Any = lists.prepare_lists(index, shapes, WantedLists(later=True), places)
    got.pages.fill_(-7)
    sequences = got.used.numel()
    used = torch.full((sequences * parts,), -7, dtype=torch.int32)
    form = got.pending.form + struct.pack("=4iQ", length, 1, 1, parts, used.data_ptr())
    library.call_few(ctypes.c_char_p(form), sequences * parts, 4 * (8 * _THREADS + shapes.blocks // 16 + 2 * _THREADS + 64))
    return got, used.view(sequences, parts)


def compare(got: Any, used: torch.Tensor, want: Any, keys_of_page: int) -> None:
    """Pages of keys that are used are the same; what comes after them is not read."""
    assert torch.equal(used, want.used[:, None].expand_as(used))
    for mine, right, keys in zip(got.pages, want.pages, want.used.tolist(), strict=True):
        count = -(-keys // keys_of_page)
        assert torch.equal(mine[:count], right[:count])


@needs_host_clang
@pytest.mark.parametrize(("parts", "length"), [(1, 128), (2, 128), (4, 64), (8, 192)])
@pytest.mark.parametrize("shift", ["all", "top", "bottom"])
@pytest.mark.parametrize("case", list(CASES))
def test_parts_of_lists(case: str, shift: str, parts: int, length: int, library: Any) -> None:
    index, shapes = drawn(case, shift)
    length = max(length, -(-shapes.count * shapes.keys // parts))
    got, used = made(library, index, shapes, parts, length)
    compare(got, used, by_torch(index, shapes, WantedLists()), shapes.keys)


@needs_host_clang
@pytest.mark.parametrize("end", [0, 1, 2])
@pytest.mark.parametrize("queries", [[3, 0, 5, 1, 4, 0], [1, 1, 0, 1, 5, 5], [1] * 13])
@pytest.mark.parametrize("case", list(PLACED))
def test_parts_of_lists_of_packed_sequences(case: str, queries: list[int], end: int, library: Any) -> None:
    (heads, keys, page, rows, steps), most = PLACED[case], 90
    sequences = len(queries)
    used, lengths = torch.tensor(queries, dtype=torch.int32), torch.tensor([40, 7, 33, 90, 0, 8] * 3, dtype=torch.int32)[:sequences]
    begins, key_begins = (x.cumsum(0, dtype=torch.int32) - x for x in (used, lengths))
    table = torch.randint(0, 50, (sequences, -(-most // page)), dtype=torch.int32) if page else None
    places = ListPlaces(begins, used, key_begins, lengths, table, page, rows, steps, end)
    blocks, count = -(-most // keys), 12
    whole = (1, 1, 15) if heads == 1 else (15, heads, 1)  # two queries are in no sequence
    shapes = ListShapes(*whole, count, blocks, keys, most, 1, 1, None, 1, 2, 0)
    index = torch.randint(-1, blocks, (*whole, count), dtype=torch.int32)
    got, found = made(library, index, shapes, 2, count * keys // 2, places)
    compare(got, found, placed_by_torch(index, shapes, WantedLists(), places), rows)
