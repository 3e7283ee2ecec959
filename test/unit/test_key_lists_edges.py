"""Edges of key lists: none, empty ones, other dtypes, layouts and memory, transforms, graphs, and what is refused."""

import re
from typing import Any

import pytest
import torch

import attn_mlir
from attn_mlir.errors import ArgumentError, UnsupportedError
from key_list_cases import agree, dense, draw, inputs, listed

SIZES = (1, 2, 1, 37, 90, 16)
BLOCK = (16, 32)


def attend(qkv: Any, index: torch.Tensor, block: tuple[int, int] = BLOCK, **options: Any) -> Any:
    return attn_mlir.attention(*qkv, key_index=index, key_block=block, **options)


@pytest.mark.parametrize("count", [0, 3])
def test_empty_lists(count: int) -> None:
    qkv, index = inputs(SIZES), torch.full((1, 1, 3, count), -1, dtype=torch.int32)
    o, lse = attend(qkv, index, return_lse=True)
    assert (o == 0).all() and (lse == -torch.inf).all()
    assert all((g == 0).all() for g in torch.autograd.grad(o.sum(), qkv))


def test_one_empty_list_and_a_block_twice() -> None:
    qkv = inputs(SIZES)
    index = torch.tensor([[[[2, 0, 2], [-1, -1, -1], [1, -1, 1]]]], dtype=torch.int32)
    wanted, _ = dense(qkv, listed(index, BLOCK, 2, 37, 90))
    o = attend(qkv, index)
    agree([o], [wanted])
    do = torch.randn_like(o)
    agree(torch.autograd.grad(o, qkv, do), torch.autograd.grad(wanted, qkv, do.double()))
    # The order of a list does not matter, to the bit.
    assert torch.equal(o, attend(qkv, index.flip(-1)))


def test_twice_is_an_error_where_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ATTN_MLIR_CHECK", "1")
    index = torch.tensor([[[[2, 0], [1, 1], [-1, -1]]]], dtype=torch.int32)
    with pytest.raises(ArgumentError, match=re.escape("key_index[0, 0, 1] lists block 1 twice")):
        attend(inputs(SIZES), index)


def test_entries_of_blocks_longer_than_the_keys() -> None:
    """Room is made for the keys that there are, not for those of a block: the lists of a graph, too."""
    from attn_mlir.runtime.key_lists import fake_key_lists, run_key_lists

    index = torch.tensor([[[[0, -1], [-1, 0]]]], dtype=torch.int32)
    for keys in (1_000_001, 1 << 20):
        made = run_key_lists(index, 37, keys, True)
        assert max(x.numel() for x in made) <= 4 * 37
        assert [x.shape for x in fake_key_lists(index, 37, keys, True)] == [x.shape for x in made]
        qkv = [x[:, :, :37] for x in inputs(SIZES)]
        o = attend(qkv, torch.zeros(1, 1, 3, 1, dtype=torch.int32), (16, keys))
        agree([o], [dense(qkv, torch.ones(1, 2, 37, 37, dtype=torch.bool))[0]])


def test_unlisted_keys_are_not_read() -> None:
    q, k, v = (x.detach() for x in inputs(SIZES))
    index = torch.tensor([[[[0], [2], [0]]]], dtype=torch.int32)
    o = attend((q, k, v), index)
    k[:, :, 32:64], v[:, :, 32:64] = torch.nan, torch.nan
    assert torch.equal(o, attend((q, k, v), index))
    tokens = torch.tensor([[[[0, 31], [64, 89], [5, -1]]]], dtype=torch.int32)
    assert not attend((q, k, v), tokens, (16, 1)).isnan().any()


def test_memory_of_the_list() -> None:
    qkv, index = inputs(SIZES), draw(SIZES, BLOCK, 2, 4)
    o = attend(qkv, index)
    wide = torch.full((1, 2, 3, 8), 99, dtype=torch.int32)
    wide[..., ::2] = index
    assert torch.equal(o, attend(qkv, wide[..., ::2]))
    # Changed in place, also through numpy, it is read as it is then.
    first = torch.zeros_like(index)
    a = attend(qkv, first)
    first.numpy()[:] = index.numpy()
    assert torch.equal(attend(qkv, first), o) and not torch.equal(a, o)


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_dtypes(dtype: torch.dtype) -> None:
    qkv, index = inputs(SIZES, dtype), draw(SIZES, (16, 1), 1, 20)
    o = attend(qkv, index, (16, 1))
    wanted, _ = dense(qkv, listed(index, (16, 1), 2, 37, 90))
    tolerance = 1e-12 if dtype == torch.float64 else 2e-2
    agree([o], [wanted], tolerance)
    do = torch.randn_like(o)
    agree(torch.autograd.grad(o, qkv, do), torch.autograd.grad(wanted, qkv, do.double()), 2 * tolerance)


def test_layouts_and_heads_as_rows() -> None:
    (q, k, v), index = inputs(SIZES), draw(SIZES, (1, 1), 1, 20)
    o, lse = attend((q, k, v), index, (1, 1), return_lse=True)
    turned = [x.transpose(1, 2).contiguous() for x in (q, k, v)]
    o2, lse2 = attend(turned, index, (1, 1), return_lse=True, layout="bshd")
    assert torch.equal(o, o2.transpose(1, 2)) and torch.equal(lse, lse2) and o2.is_contiguous() and o.is_contiguous()


def lengths(b: int, h: int, q_idx: int, kv_idx: int) -> Any:
    return q_idx + attn_mlir.kv_len() - attn_mlir.q_len() >= kv_idx


def test_positions_where_heads_are_rows() -> None:
    q, k, v = inputs(SIZES)
    index, table = draw(SIZES, (1, 1), 1, 30), torch.randn(2, 37)
    present = listed(index, (1, 1), 2, 37, 90) & (torch.arange(37)[:, None] + 53 >= torch.arange(90))
    o = attend((q, k, v), index, (1, 1), mask_mod=lengths, score_mod=lambda s, b, h, i, j: s * table[h, i])
    wanted, _ = dense((q, k, v), present, lambda s, b, h, i, j: s * table[h, i])
    agree([o], [wanted])


def test_dropout_is_that_of_positions() -> None:
    (q, k, v), index = inputs(SIZES), draw(SIZES, BLOCK, 1, 2)
    options = {"dropout_p": 0.4, "dropout_seed": (7, 3)}
    o = attend((q, k, v), index, **options)
    kept = attn_mlir.dropout_mask(1, 2, 37, 90, **options)
    present = listed(index, BLOCK, 2, 37, 90)
    group = k.repeat_interleave(2, 1), v.repeat_interleave(2, 1)
    s = (q.double() @ group[0].double().mT / 4).masked_fill(~present, -torch.inf)
    wanted = (s.softmax(-1).nan_to_num() * kept / 0.6) @ group[1].double()
    agree([o], [wanted])
    do = torch.randn_like(o)
    agree(torch.autograd.grad(o, (q, k, v), do), torch.autograd.grad(wanted, (q, k, v), do.double()))


def test_tangents_and_second_derivatives() -> None:
    sizes = (1, 1, 1, 5, 40, 16)
    qkv, index = inputs(sizes, torch.float64), draw(sizes, (2, 1), 1, 9)
    present = listed(index, (2, 1), 1, 5, 40)
    moved = tuple(torch.randn_like(x) for x in qkv)
    found = torch.func.jvp(lambda *x: attend(x, index, (2, 1)), tuple(qkv), moved)
    agree(found, torch.func.jvp(lambda *x: dense(x, present)[0], tuple(qkv), moved), 1e-11)

    def twice(function: Any) -> Any:
        grads = torch.autograd.grad(function(*qkv).square().sum(), qkv, create_graph=True)
        return torch.autograd.grad(torch.stack([g.square().sum() for g in grads]).sum(), qkv)

    agree(twice(lambda *x: attend(x, index, (2, 1))), twice(lambda *x: dense(x, present)[0]), 1e-9)


@pytest.mark.parametrize("block", [BLOCK, (1, 16)])
def test_torch_compile(block: tuple[int, int]) -> None:
    qkv, index = inputs(SIZES), draw(SIZES, block, 1, 2)
    compiled: Any = torch.compile(lambda q, k, v, x: attend((q, k, v), x, block, mask_mod=lengths), fullgraph=True, backend="aot_eager")
    for _ in range(2):
        o, wanted = compiled(*qkv, index), attend(qkv, index, block, mask_mod=lengths)
        agree([o], [wanted.detach()], 1e-6)
        do = torch.randn_like(o)
        agree(torch.autograd.grad(o, qkv, do), torch.autograd.grad(wanted, qkv, do), 1e-6)
        index = draw(SIZES, block, 1, 2)
    with pytest.raises(Exception, match=r"there are \d blocks of"):
        compiled(*qkv, torch.full_like(index, 50))


def test_objects_and_batched_lists() -> None:
    (q, k, v), index = inputs(SIZES), draw(SIZES, BLOCK, 1, 2)
    assert torch.equal(attn_mlir.Attention()(q, k, v, key_index=index, key_block=BLOCK), attend((q, k, v), index))
    with pytest.raises(UnsupportedError, match=r"key_index is batched by torch\.vmap"):
        torch.vmap(lambda x: attend((q, k, v), x))(index.unsqueeze(0))


def test_no_keys_and_no_queries() -> None:
    q, k, v = (x.detach() for x in inputs(SIZES))
    none = torch.zeros((1, 1, 3, 0), dtype=torch.int32)
    assert (attend((q, k[:, :, :0], v[:, :, :0]), none) == 0).all()
    assert attend((q[:, :, :0], k, v), none[:, :, :0]).shape == (1, 2, 0, 16)
    no_heads, each = [x[:, :0] for x in (q, k, v)], torch.zeros((1, 1, 37, 1), dtype=torch.int32)
    assert attend(no_heads, each, (1, 1)).shape == (1, 0, 37, 16)


WRONG = [
    ({"key_block": None}, ArgumentError, "key_index needs key_block"),
    (
        {"key_index": torch.zeros(1, 1, 3, 1, dtype=torch.int32).to_sparse()},
        ArgumentError,
        "key_index must be dense, got layout torch.sparse_coo",
    ),
    ({"key_index": None}, ArgumentError, "key_block is for key_index"),
    ({"key_block": (16,)}, ArgumentError, "two positive integers"),
    ({"key_block": (0, 32)}, ArgumentError, "two positive integers"),
    ({"key_index": torch.zeros(1, 1, 3, 1)}, ArgumentError, "int32 tensor, got a tensor of torch.float32"),
    ({"key_index": torch.zeros(1, 1, 3, 1, dtype=torch.int64)}, ArgumentError, "key_index.to(torch.int32)"),
    ({"key_index": torch.zeros(1, 3, 1, dtype=torch.int32)}, ArgumentError, "got shape [1, 3, 1]"),
    ({"key_index": torch.zeros(1, 1, 2, 1, dtype=torch.int32)}, ArgumentError, "37 queries in blocks of 16"),
    ({"key_index": torch.zeros(1, 3, 3, 1, dtype=torch.int32)}, ArgumentError, "key_index has 3 heads"),
    ({"key_index": torch.zeros(1, 1, 3, 1, dtype=torch.int32, device="meta")}, ArgumentError, "on meta but q is on cpu"),
    ({"key_index": torch.full((1, 1, 3, 1), 3, dtype=torch.int32)}, ArgumentError, "holds 3, but there are 3 blocks of 32 keys"),
    ({"key_index": torch.full((1, 1, 3, 1), -2, dtype=torch.int32)}, ArgumentError, "holds -2"),
    ({"num_splits": 2}, UnsupportedError, "without num_splits"),
    ({"return_partial": True}, UnsupportedError, "key_index is for whole results"),
]


@pytest.mark.parametrize(("wrong", "error", "message"), WRONG)
def test_wrong_arguments(wrong: dict[str, Any], error: type[Exception], message: str) -> None:
    given = {"key_index": torch.zeros(1, 1, 3, 1, dtype=torch.int32), "key_block": BLOCK, **wrong}
    with pytest.raises(error, match=re.escape(message)):
        attn_mlir.attention(*inputs(SIZES), **given)
