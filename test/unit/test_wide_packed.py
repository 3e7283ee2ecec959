"""Gradients of packed sequences with heads of more than 256 columns on GPUs, emulated and real, against float64 on the CPU."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from amd_tools import needs_host_clang
from attn_mlir import ArgumentError, attention_varlen, masks
from attn_mlir.backends.gpu import packed_pairs, pair_chunks
from attn_mlir.backends.gpu.packed_pairs import PackedPairs
from attn_mlir.backends.gpu.pair_chunks import PairSizes
from attn_mlir.backends.gpu.pair_products import PairsInMemory, PairSum
from gpu_cases import GPU

EMULATED = "hip-emulated"
QUERIES, KEYS = (17, 1, 0, 33, 127, 40, 31), (17, 5, 9, 40, 127, 0, 31)
SHORT = (3, 4, 3, 4, 5, 1) * 3
causal = masks.causal()
CASES: dict[str, tuple[Sequence[int], Sequence[int], tuple[int, int], tuple[int, int], dict[str, Any]]] = {
    "causal": (QUERIES, QUERIES, (4, 2), (272, 48), {"mask_mod": causal}),
    "bottom right": (QUERIES, KEYS, (4, 1), (272, 48), {"mask_mod": masks.causal("bottom_right")}),
    "full": (QUERIES, KEYS, (2, 2), (264, 264), {}),
    "slopes": (QUERIES, QUERIES, (4, 2), (272, 48), {"mask_mod": causal, "slopes": True}),
    "window": (QUERIES, QUERIES, (4, 2), (257, 48), {"mask_mod": masks.sliding_window(9)}),
    "fully masked rows": (QUERIES, KEYS, (2, 1), (264, 64), {"mask_mod": lambda b, h, i, j: i >= j + 20}),
    "values among the keys": (QUERIES, QUERIES, (4, 1), (576, 512), {"mask_mod": causal, "shared": True}),
    "short": (SHORT, SHORT, (4, 1), (264, 256), {"mask_mod": causal}),
    "nothing": ((0, 4), (5, 0), (4, 1), (264, 256), {"mask_mod": causal}),
}


def offsets(lengths: Sequence[int], device: str) -> Tensor:
    """Where sequences begin and end."""
    return torch.tensor(np.cumsum([0, *lengths]), dtype=torch.int32, device=device)


def differences(name: str, device: str, tensors: str) -> list[str]:
    """Which of o and the gradients differ from those in float64 by more than bf16 rounds."""
    queries, keys, (heads, groups), (columns, values), given = CASES[name]
    options = {key: value for key, value in given.items() if key not in ("slopes", "shared")}
    sizes = ((queries, heads, columns), (keys, groups, columns), (keys, groups, values), (queries, heads, values))
    drawn = [torch.randn(sum(lengths) + 3, h, d).bfloat16() for lengths, h, d in sizes]  # the last rows are of no sequence
    slopes = torch.randn(heads)

    def run(where: str, at: str, exact: bool) -> list[Tensor]:
        ins: list[Tensor]
        *ins, do, factors = ((x.double() if exact else x).to(at).requires_grad_() for x in (*drawn, slopes))
        wrt = ins[:2] if "shared" in given else ins[:3]
        v = ins[1][..., :values] if "shared" in given else ins[2]
        if "slopes" in given:
            options["score_mod"] = lambda s, b, h, i, j: s + factors[h] * (j - i) * 0.1
            wrt = [*wrt, factors]
        o = attention_varlen(ins[0], ins[1], v, offsets(queries, at), offsets(keys, at), device=where, **options)
        return [x.detach().double().cpu() for x in (o, *torch.autograd.grad(o, wrt, do.detach()))]

    pairs = enumerate(zip(run(device, tensors, False), run("cpu", "cpu", True), strict=True))
    bounds = {4: 0.15} if "slopes" in given else {}  # sums of terms that cancel, over all pairs
    return [
        f"{number}: {float((a - b).norm() / b.norm())}"
        for number, (a, b) in pairs
        if not (a - b).norm() <= bounds.get(number, 6e-3) * b.norm() + 1e-3
    ]


@needs_host_clang
@pytest.mark.parametrize("name", CASES)
def test_emulated(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if name in ("causal", "bottom right", "slopes"):
        monkeypatch.setattr(pair_chunks, "MOST_PAIRS", 4096)
        monkeypatch.setattr(pair_chunks, "FEWEST", 8)
    assert not differences(name, EMULATED, "cpu")


@needs_host_clang
def test_other_sequences_have_no_part() -> None:
    """NaN and infinity in one sequence, and in rows of none, change no other's gradients."""
    lengths = (5, 9, 7)
    q, k, v, do = (torch.randn(24, 2, 264).half() for _ in range(4))
    found = []
    for bad in (0.0, torch.nan, torch.inf):
        ins: Any = [x.clone() for x in (q, k, v)]
        for x in ins:
            x[5:14], x[21:] = bad, bad
        for x in ins:
            x.requires_grad_()
        o = attention_varlen(ins[0], ins[1], ins[2], offsets(lengths, "cpu"), mask_mod=causal, device=EMULATED)
        found.append(torch.autograd.grad(o, ins, do))
    for other in found[1:]:
        for a, b in zip(found[0], other, strict=True):
            assert torch.equal(a[:5], b[:5]) and torch.equal(a[14:21], b[14:21])


@needs_host_clang
def test_what_else_is_in_a_batch_decides_about_no_product(monkeypatch: pytest.MonkeyPatch) -> None:
    groups = list[int]()
    found = PackedPairs._groups

    def seen(own: PackedPairs) -> Any:
        made = found(own)
        groups.extend(map(len, made))
        return made

    monkeypatch.setattr(PackedPairs, "_groups", seen)
    q, cu = torch.randn(12, 1, 264).half().requires_grad_(), offsets((5, 3, 4), "cpu")
    for invariant in (False, True):
        o = attention_varlen(q, q, q, cu, cu, mask_mod=causal, device=EMULATED, batch_invariant=invariant)
        torch.autograd.grad(o.float().sum(), q)
    assert groups == [3, 1, 1, 1]


def parts_of(begins: Sequence[int], queries: Sequence[int], keys: Sequence[int], most: int = 1 << 25) -> list[tuple[list[int], int]]:
    """The sequences that are computed together, and how many pairs their chunks have."""
    given = [torch.tensor(x, dtype=torch.int32) for x in (np.cumsum([0, *queries])[:-1], queries, begins, keys)]
    total = PairSizes(1, 2, sum(queries), 1, max([0, *(b + n for b, n in zip(begins, keys, strict=True))]))
    q, k = torch.zeros(1, 2, total.queries, 4), torch.zeros(1, 1, total.keys, 4)
    described = PairsInMemory(((0, 1),), (), (PairSum("query", (1,), (0,), 0),), (), sequences=(2, 3, 4, 5))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(pair_chunks, "MOST_PAIRS", most)
        parts = list(PackedPairs(described, [q, k, *given], total).parts())
    return [(part.order.tolist(), sum(2 * c.batches * c.rows * c.columns for c in part.chunks)) for part in parts]


def test_sequences_of_one_length_are_a_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    assert [each for each, _ in parts_of([0, 8, 8, 72], [8, 3, 64, 8], [8, 0, 64, 7])] == [[3, 0, 2]]
    monkeypatch.setattr(packed_pairs, "SPARE", 0)
    together = parts_of([0, 8, 16], [8, 8, 8], [8, 8, 8])
    assert together == [([0, 1, 2], 2 * 3 * 64)]
    assert [each for each, _ in parts_of([0, 8, 8, 72], [8, 3, 64, 8], [8, 0, 64, 7])] == [[3, 0], [2]]
    assert len(parts_of([0, 8, 16], [8, 8, 8], [8, 8, 8], most=300)) == 2  # of at most so many pairs
    assert len(parts_of([0, 4, 8], [8, 8, 8], [8, 8, 8])) == 3  # keys of two sequences have several gradients
    assert parts_of([0, 0], [0, 3], [7, 0]) == []


class TestGpu:
    pytestmark = GPU

    @pytest.mark.parametrize("name", CASES)
    def test_gradients(self, name: str) -> None:
        assert not differences(name, "cuda", "cuda")

    def test_bits_and_long_sequences(self) -> None:
        lengths = (1000, 127, 1500, 130, 128, 2048)
        q, k = (torch.randn(sum(lengths), h, 576, device="cuda", dtype=torch.bfloat16, requires_grad=True) for h in (16, 1))
        do, at = torch.randn(sum(lengths), 16, 512, device="cuda", dtype=torch.bfloat16), offsets(lengths, "cuda")
        runs = []
        for _ in range(2):
            o = attention_varlen(q, k, k[..., :512], at, mask_mod=causal)
            runs.append([o, *torch.autograd.grad(o, [q, k], do)])
        assert all(torch.equal(a, b) for a, b in zip(*runs, strict=True))
        begin = 0
        for length in lengths:
            rows = slice(begin, begin + length)
            begin += length
            exact = [x.detach()[rows].double() for x in (q, k)]
            exact = [x.requires_grad_() for x in exact]
            s = torch.einsum("qhd,kgd->hqk", *exact) / 24
            there = torch.ones(length, length, dtype=torch.bool, device="cuda").tril()
            o = torch.einsum("hqk,kd->qhd", s.masked_fill(~there, -torch.inf).softmax(-1), exact[1][:, 0, :512])
            for a, b in zip(runs[0], [o, *torch.autograd.grad(o, exact, do[rows].double())], strict=True):
                assert float((a[rows].double() - b).norm()) <= 6e-3 * float(b.norm())

    def test_a_graph_is_refused(self) -> None:
        x = torch.randn(40, 2, 264, device="cuda", dtype=torch.float16, requires_grad=True)
        at, told = offsets((17, 23), "cuda"), ""

        def step() -> None:
            o = attention_varlen(x, x, x, at, max_q=23, max_k=23)
            torch.autograd.grad(o, x, o.detach())

        with torch.cuda.stream(torch.cuda.Stream()):
            step()
        torch.cuda.synchronize()
        with torch.cuda.graph(torch.cuda.CUDAGraph()):
            try:
                step()
            except ArgumentError as error:
                told = str(error)
        assert "read the lengths on the host" in told
