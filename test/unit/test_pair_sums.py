"""What drivers multiply and sum beside kernels over pairs in memory, with a kernel in Python: all sizes, layouts and chunks."""

from typing import Any

import pytest
import torch
from torch import Tensor

from attn_mlir.backends.allocation import empty_heads
from attn_mlir.backends.gpu import pair_chunks, pair_sums, pairs_in_memory
from attn_mlir.backends.gpu.pair_products import KeyRange, PairsInMemory, PairStage, PairSum, RangeStep
from attn_mlir.backends.program import ResultShapes

CAUSAL = KeyRange((RangeStep("const", (0,)), RangeStep("number", (1,)), RangeStep("number", (6,)), RangeStep("min", (1, 2))), 0, 3)
SUMS = PairSum("key", (0,), (0,), 0), PairSum("query", (1, 2), (0, 1), 1), PairSum("key", (3,), (1,), 2)
"""dk-like, dq-like of two terms, dv-like sums of q, k, v and do."""


def laid_out(shape: tuple[int, ...], order: str) -> Tensor:
    """A tensor [B, H, S, D] of numbers that 16 bits and sums of them hold exactly."""
    made = empty_heads(shape, torch.bfloat16, order, "cpu")
    return made.copy_(torch.randint(-2, 3, shape).bfloat16())


def weights(stage: PairStage, given: list[Any], own: ResultShapes) -> list[Tensor]:
    """The kernel: products where a causal mask keeps a pair, in 16 bits."""
    s, dp, rows, i, j, *_, keys = given
    assert own.shapes[0] == own.shapes[1] == s.shape == dp.shape and stage.kernel == ""
    query = i + torch.arange(s.shape[1]) % rows
    key = j + torch.arange(s.shape[2] * s.shape[3])
    present = ((query[:, None] >= key) & (key < keys)).view(s.shape[1:])
    return [torch.where(present, x / 64, 0).bfloat16() for x in (s, dp)]


@pytest.mark.parametrize("order", ["bhsd", "bshd", "sbhd"])
@pytest.mark.parametrize("heads", [(1, 1), (4, 1), (4, 2), (3, 3)])
@pytest.mark.parametrize("sizes", [(1, 17, 17), (2, 50, 61), (3, 33, 8), (1, 1, 40), (2, 64, 64)])
@pytest.mark.parametrize("most", [300, 3000, 1 << 25])
def test_sums(order: str, heads: tuple[int, int], sizes: tuple[int, int, int], most: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pair_chunks, "MOST_PAIRS", most)
    monkeypatch.setattr(pair_chunks, "FEWEST", 8)
    monkeypatch.setattr(pair_sums, "LEAST_QUERIES", 4)
    (many, few), (batches, queries, keys) = heads, sizes
    q, do = (laid_out((batches, many, queries, columns), order) for columns in (5, 3))
    k, v, other = (laid_out((batches, few, keys, columns), order) for columns in (5, 3, 5))
    described = PairsInMemory(((0, 1), (3, 4)), (), SUMS, (), CAUSAL)
    shapes = torch.Size((batches, few, keys, 5)), torch.Size((batches, many, queries, 5)), torch.Size((batches, few, keys, 3))
    made = ResultShapes(shapes, (torch.float32,) * 3, (True,) * 3)
    kernel = pairs_in_memory.PairKernel(described, {"": (torch.bfloat16,) * 2}, weights, 100)
    found = pairs_in_memory.run(kernel, [q, k, other, do, v], made, order)
    group = many // few
    q, k, v, do, other = (x.double().repeat_interleave(1 if x.shape[1] == many else group, 1) for x in (q, k, v, do, other))
    present = torch.ones(queries, keys, dtype=torch.bool).tril()
    p, ds = (torch.where(present, x / 64, 0).bfloat16().double() for x in (q @ k.mT, do @ v.mT))
    wanted = [(p.mT @ q).unflatten(1, (few, group)).sum(2), p @ k + ds @ other, (ds.mT @ do).unflatten(1, (few, group)).sum(2)]
    for a, b in zip(found, wanted, strict=True):
        assert float((a.double() - b).abs().max()) <= 1e-3
