"""The kernel that lists the work of packed sequences on Hopper: run on the host, beside operations of torch; wrong lengths, too."""

import ctypes
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from amd_tools import needs_host_clang
from attn_mlir.backends.gpu.packed import SemaphoreBlocks, items_of
from attn_mlir.backends.nvidia import work_items
from host_kernels import host_library, start_on_host

_CALL = """
extern "C" void call(const void *form, int blocks, int threads) { host_launch(attn_list_work_items, form, blocks, 1, threads, 0); }
"""
CASES = {
    "several": ((40, 1, 0, 7, 128), (3, 1, 0, 40, 40)),
    "none of them long": ((0, 0), (5, 5)),
    "one": ((300,), (1,)),
    "equal ones": ((64,) * 9, (7,) * 9),
    "more than a warp": ([(37 * n) % 50 for n in range(70)], [(11 * n) % 7 for n in range(70)]),
}
Tensor = torch.Tensor


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> ctypes.CDLL:
    """The kernel for the host."""
    return host_library(tmp_path_factory.mktemp("work_items"), work_items.source() + _CALL)


@pytest.fixture
def hosted(library: ctypes.CDLL, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Launches run on the host; how many thread blocks each had."""
    return start_on_host(monkeypatch, work_items, lambda _, form, blocks, threads: library.call(ctypes.c_char_p(form), blocks, threads))


def both(*given: Any) -> tuple[Tensor, Tensor]:
    return work_items.listed_items(*given), items_of(*given)


@needs_host_clang
@pytest.mark.parametrize("first", [False, True])
@pytest.mark.parametrize("other", [False, True])
@pytest.mark.parametrize("lengths", CASES.values(), ids=list(CASES))
def test_as_torch(lengths: tuple[Sequence[int], Sequence[int]], other: bool, first: bool, hosted: list[int]) -> None:
    own, others = (torch.tensor([[n, -7] for n in side], dtype=torch.int32)[:, 0] for side in lengths)
    rows = int(own.sum())
    # Too little room, as for wrong lengths, and as much as three thread blocks fill.
    for block, room in ((16, rows), (128, rows + 5), (16, rows // 2), (16, 16 * 5000)):
        got, wanted = both(own, others if other else None, block, room, first)
        assert torch.equal(got, wanted)
    assert max(hosted) == 3 and len(hosted) == 4


@needs_host_clang
@pytest.mark.parametrize("lengths", CASES.values(), ids=list(CASES))
def test_semaphores(lengths: tuple[Sequence[int], Sequence[int]], hosted: list[int]) -> None:
    own, others = (torch.tensor(side, dtype=torch.int32) for side in lengths)
    for room in (int(others.sum()), 3):
        got, wanted = both(own, others, 16, int(own.sum()), False, SemaphoreBlocks.of(room, 8, len(own) if room > 3 else 1))
        assert torch.equal(got, wanted)


def test_more_sequences_than_a_thread_block_orders_are_listed_by_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(work_items.cuda, "device", lambda _: SimpleNamespace(capability=(9, 0)))
    own = torch.ones(work_items.MOST + 1, dtype=torch.int32)
    assert torch.equal(*both(own, own, 64, len(own), False))
    monkeypatch.setattr(work_items.cuda, "device", lambda _: SimpleNamespace(capability=(8, 0)))
    assert torch.equal(*both(own[:3], own[:3], 64, 3, False))


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")
@pytest.mark.parametrize("count", [1, 33, 1000, 1024])
def test_on_a_gpu(count: int) -> None:
    own, others = (torch.randint(0, 900, (count,), dtype=torch.int32, device="cuda") for _ in range(2))
    semaphores = SemaphoreBlocks.of(int(others.sum()), 64, count)
    for given in (
        (own, others, 64, int(own.sum()), True),
        (own, None, 128, int(own.sum()), False),
        (own, others, 64, 9000, False, semaphores),
    ):
        assert torch.equal(*both(*given))
