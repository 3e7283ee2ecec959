"""The kernel that makes offsets of packed sequences ready on Hopper: run on the host, beside operations of torch; wrong offsets, too."""

import ctypes
from types import SimpleNamespace

import pytest
import torch

from amd_tools import needs_host_clang
from attn_mlir.api import varlen_inputs
from attn_mlir.api.varlen_inputs import sequences_of
from attn_mlir.backends.nvidia import offsets
from attn_mlir.backends.work import leaves_rows
from host_kernels import host_library, start_on_host

_CALL = """
extern "C" void call(const void *form, int blocks, int threads, int single) {
  host_launch(single ? attn_cut_single_offsets : attn_cut_offsets, form, blocks, 1, threads, 0);
}
"""
Tensor = torch.Tensor


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> ctypes.CDLL:
    """The kernel for the host."""
    return host_library(tmp_path_factory.mktemp("offsets"), offsets.source() + _CALL)


@pytest.fixture
def hosted(library: ctypes.CDLL, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Launches run on the host; how many sequences each had."""

    def call(entry: str, form: bytes, blocks: int, threads: int) -> None:
        library.call(ctypes.c_char_p(form), blocks, threads, int(entry == offsets.SINGLE))

    return start_on_host(monkeypatch, offsets, call)


def ints(*values: int) -> Tensor:
    return torch.tensor(values, dtype=torch.int32)


@needs_host_clang
@pytest.mark.parametrize("count", [0, 1, 5, 300])
@pytest.mark.parametrize("form", ["one", "two", "used", "two and used", "pages"])
def test_as_torch(form: str, count: int, hosted: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    """Offsets that fall, and lead outside, included; strides, too. With gradients what callers change is not read again."""
    q, inside = torch.empty(40, 1, 8), (40, 50)
    of_q, of_k = (torch.randint(-20, 80, (count + 1, 2), dtype=torch.int32)[:, n] for n in (0, 1))
    used = torch.randint(-5, 80, (count,), dtype=torch.int32)
    table = torch.zeros(count, 3, dtype=torch.int32) if form == "pages" else None
    given = of_q, of_k if form.startswith("two") else None, used if form.endswith("used") or table is not None else None, table, inside
    wanted = sequences_of(q, *given)
    monkeypatch.setattr(varlen_inputs.driver, "offset_maker", lambda _: offsets.cut_offsets)
    made = sequences_of(q, *given)
    assert made.keys() == wanted.keys() and len(hosted) == (count > 0)
    assert all(torch.equal(made[name], wanted[name]) for name in wanted)
    kept = {name: value.clone() for name, value in made.items() if name != "block_table"}
    for each in (of_q, of_k, used):
        each.fill_(7)
    assert all(torch.equal(made[name], value) for name, value in kept.items())


@needs_host_clang
def test_a_sequence_by_hand(hosted: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(varlen_inputs.driver, "offset_maker", lambda _: offsets.cut_offsets)
    made = sequences_of(torch.empty(10, 1, 8), ints(0, 4, 4, 99), ints(0, 7, 3, 30), ints(5, 6, 7), None, (10, 20))
    assert {name: value.tolist() for name, value in made.items()} == {
        "q_begins": [0, 4, 4], "q_lengths": [4, 0, 6], "k_begins": [0, 7, 3], "k_lengths": [5, 6, 7],
    }  # fmt: skip
    assert hosted == [1]


def single(q: int, of_q: Tensor, of_k: Tensor, keys: int = 50) -> dict[str, list[int]]:
    """What comes of sequences of one query each."""
    made = sequences_of(torch.empty(q, 1, 8), of_q, of_k, None, None, (q, keys), True)
    return {name: value.tolist() for name, value in made.items()} | {"leaves": [int(leaves_rows(made["q_lengths"]))]}


@needs_host_clang
def test_rows_of_no_sequence_are_of_those_without_a_query(hosted: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    """Which have no keys then. More rows than sequences are left out as ever."""
    monkeypatch.setattr(varlen_inputs.driver, "offset_maker", lambda _: offsets.cut_offsets)
    of_q, of_k = ints(0, 1, 1, 2, 2, 3), ints(0, 4, 9, 11, 20, 50)
    assert single(5, of_q, of_k) == {
        "q_begins": [0, 3, 1, 4, 2], "q_lengths": [1] * 5, "k_begins": [0, 4, 9, 11, 20], "k_lengths": [4, 0, 2, 0, 30], "leaves": [0],
    }  # fmt: skip
    assert single(6, of_q, of_k)["q_lengths"] == [1, 0, 1, 0, 1] and single(6, of_q, of_k)["leaves"] == [1]
    made = sequences_of(torch.empty(5, 1, 8), of_q, of_k, None, None, (5, 50))
    assert made["q_lengths"].tolist() == [1, 0, 1, 0, 1] and leaves_rows(made["q_lengths"])


@needs_host_clang
@pytest.mark.parametrize("count", [1, 4, 33, 1025])
def test_each_row_is_of_one_sequence_whatever_offsets_say(count: int, hosted: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    """Offsets that fall or lead outside name rows twice; then what a sequence has of its own is what it has without."""
    monkeypatch.setattr(varlen_inputs.driver, "offset_maker", lambda _: offsets.cut_offsets)
    torch.manual_seed(count)
    right, wrong = torch.randint(0, 2, (count + 1,)).cumsum(0).int(), torch.randint(-20, 2 * count + 20, (count + 1,), dtype=torch.int32)
    right -= right[0].clone()
    for of_q in (right, wrong):
        of_k = torch.arange(count + 1, dtype=torch.int32)
        made, plain = single(count, of_q, of_k), sequences_of(torch.empty(count, 1, 8), of_q, of_k, None, None, (count, 50))
        assert made["leaves"] == [int(count > offsets.MOST_SINGLE)]
        if count > offsets.MOST_SINGLE:
            continue
        assert sorted(made["q_begins"]) == list(range(count)) and made["q_lengths"] == [1] * count
        named = dict(zip(plain["q_begins"].tolist(), plain["q_lengths"].tolist(), strict=True))
        for number, begin in enumerate(made["q_begins"]):
            own = plain["q_lengths"][number] > 0 and begin == plain["q_begins"][number]
            assert made["k_lengths"][number] in ((int(plain["k_lengths"][number]),) if own else (0,))
        assert of_q is wrong or {begin for begin, length in named.items() if length} <= set(made["q_begins"])


def test_others_have_operations_of_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(offsets.cuda, "device", lambda _: SimpleNamespace(capability=(8, 0)))
    assert offsets.cut_offsets(ints(0, 3), None, None, (3, 3), False) is None
