"""create_block_mask: the int8 pattern of blocks."""

from typing import Any

import pytest
import torch

from attn_mlir import create_block_mask, kv_len, masks, num_heads, q_len
from attn_mlir.api.block_mask import create_mask
from attn_mlir.errors import ArgumentError, TraceError


def dense(mask: Any, b: int, h: int, queries: int, keys: int, block_q: int, block_kv: int) -> torch.Tensor:
    """By definition: 1 where any element of the block is kept."""
    sizes = (b, h, queries, keys)
    grid = [torch.arange(size).view(*(size if i == j else 1 for j in range(4))) for i, size in enumerate(sizes)]
    kept = torch.as_tensor(mask(*grid)).broadcast_to(sizes)
    blocks = [part.split(block_kv, dim=3) for part in kept.split(block_q, dim=2)]
    return torch.stack([torch.stack([x.flatten(2).any(-1) for x in row], dim=-1) for row in blocks], dim=2).to(torch.int8)


IDS = torch.arange(500) // 170


@pytest.mark.parametrize(
    "mask",
    [
        lambda b, h, q_idx, kv_idx: q_idx >= kv_idx,
        lambda b, h, q_idx, kv_idx: (q_idx >= kv_idx) & (q_idx < kv_idx + 40),
        lambda b, h, q_idx, kv_idx: kv_idx < 100 * (b + h + 1),
        lambda b, h, q_idx, kv_idx: IDS[q_idx] == IDS[kv_idx],
        lambda b, h, q_idx, kv_idx: torch.logical_and(kv_idx % 3 == 0, q_idx > 450),
    ],
    ids=["causal", "window", "batch-and-head", "documents", "rows-without-keys"],
)
@pytest.mark.parametrize("sizes", [(2, 2, 500, 500), (1, 1, 130, 257), (1, 2, 1, 128)])
def test_pattern(mask: Any, sizes: tuple[int, int, int, int]) -> None:
    made = create_block_mask(mask, *sizes, device="cpu")
    pattern = made.to_dense()
    assert pattern.dtype == torch.int8 and pattern.shape == made.shape
    assert torch.equal(pattern, dense(mask, *sizes, 128, 128))


def test_block_sizes_and_absent_sizes() -> None:
    mask = lambda b, h, q_idx, kv_idx: q_idx >= kv_idx  # noqa: E731
    made = create_block_mask(mask, None, None, 100, 90, "cpu", 32, 16)
    assert made.shape == (1, 1, 4, 6)
    assert torch.equal(made.to_dense(), dense(mask, 1, 1, 100, 90, 32, 16))
    assert made.sparsity() == pytest.approx(100 * (1 - made.to_dense().float().mean().item()))


@pytest.mark.parametrize("sizes", [(100, 37), (37, 100), (1, 50)])
def test_masks_that_ask_for_lengths(sizes: tuple[int, int]) -> None:
    """Their pattern, and the mask itself, are those of the lengths that were given."""
    shift = sizes[1] - sizes[0]
    inside = lambda b, h, i, j: (i + shift - j <= 5) & (j - i - shift <= 2)  # noqa: E731
    window = lambda b, h, i, j: (kv_len() - q_len() + i - j <= 5) & masks.parse("b:-1,2")(b, h, i, j)  # noqa: E731
    others = [masks.and_(masks.causal("bottom_right"), "b:5,2"), masks.not_("b:5,2"), masks.not_("0")]
    wanted = [
        lambda b, h, i, j: inside(b, h, i, j) & (j <= i + shift),
        lambda b, h, i, j: ~inside(b, h, i, j),
        lambda b, h, i, j: (i + j) < 0,
    ]
    for mask, right in zip(["b:5,2", window, *others], [inside, inside, *wanted], strict=True):
        made = create_block_mask(mask, 1, 1, *sizes, "cpu", 16, 8)
        assert torch.equal(made.to_dense(), dense(right, 1, 1, *sizes, 16, 8))
        assert torch.equal(
            create_mask(mask, 1, 1, *sizes), right(0, 0, torch.arange(sizes[0])[:, None], torch.arange(sizes[1]))[None, None]
        )
    heads = lambda b, h, i, j: h * 2 < num_heads() + i * j  # noqa: E731
    assert create_mask(heads, 1, 4, *sizes)[0, :, 0, 0].tolist() == [True, True, False, False]
    with pytest.raises(TraceError, match="num_heads"):
        create_mask(heads, 1, None, *sizes)


def test_nothing_is_evaluated_before_it_is_looked_at() -> None:
    def counting(b: Any, h: Any, q_idx: Any, kv_idx: Any) -> Any:
        raise RuntimeError("evaluated")

    made = create_block_mask(counting, 1, 1, 10**6, 10**6, device="cuda")
    assert made.shape == (1, 1, 7813, 7813) and "counting" in repr(made)


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ((None, 1, 1, 8, 8), "takes a mask function of \\(b, h, q_idx, kv_idx\\), got NoneType"),
        ((lambda q, k: q >= k, 1, 1, 8, 8), "takes a mask function of four indices"),
        ((lambda b, h, q, k: q >= k, 0, 1, 8, 8), "B must be a positive integer, got 0"),
        ((lambda b, h, q, k: q >= k, 1, 1, "S", 8), "Q_LEN must be a positive integer, got 'S'"),
        ((lambda b, h, q, k: q >= k, 1, 1, 8, 8, "cpu", 0), "Q_BLOCK_SIZE must be a positive integer, got 0"),
    ],
)
def test_wrong_arguments(arguments: tuple[Any, ...], text: str) -> None:
    with pytest.raises(ArgumentError, match=text):
        create_block_mask(*arguments)
