"""What changes between two calls of `flex_attention`, in graphs and where torch keeps no account of it, and scores that are NaN."""

from typing import Any

import pytest
import torch
from torch._dynamo.testing import CompileCounterWithBackend
from torch.nn.attention import flex_attention as torch_flex

import attn_mlir
from attn_mlir import flex
from attn_mlir.flex import resolve
from flex_dense import compare, dense, qkv

flex_attention: Any = flex.flex_attention
MAKERS: dict[str, Any] = {"ours": flex.create_block_mask, "torchs": torch_flex.create_block_mask}


def causal(b: Any, h: Any, q_idx: Any, kv_idx: Any) -> Any:
    return q_idx >= kv_idx


def of_tables(pattern: torch.Tensor, mask_mod: Any = None) -> Any:
    """A mask of blocks of 8, made of a pattern [H, rows, columns]."""
    listed = torch.argsort(pattern.int(), dim=-1, descending=True, stable=True).int()[None]
    return flex.BlockMask.from_kv_blocks(pattern.sum(-1).int()[None], listed, BLOCK_SIZE=8, mask_mod=mask_mod)


@pytest.mark.parametrize("maker", [*MAKERS, "tables"])
def test_new_masks_of_new_lengths_compile_nothing(maker: str) -> None:
    counter = CompileCounterWithBackend("eager")
    call = torch.compile(lambda q, k, v, mask: flex_attention(q, k, v, block_mask=mask), fullgraph=True, dynamic=True, backend=counter)
    compiled = []
    for length in (24, 40, 72):
        q, k, v = qkv(sq=length)
        if maker == "tables":
            pattern = (torch.rand(4, length // 8, length // 8) > 0.5) | torch.eye(length // 8, dtype=torch.bool)
            mask = of_tables(pattern, causal)
        else:
            pattern = torch.ones(4, length // 8, length // 8, dtype=torch.bool)
            mask = MAKERS[maker](causal, None, None, length, length, device="cpu", BLOCK_SIZE=8)

        def kept(b: Any, h: Any, m: Any, n: Any, pattern: torch.Tensor = pattern) -> Any:
            return (m >= n) & pattern[h, m // 8, n // 8]

        compare(call(q, k, v, mask), dense(q, k, v, mask_mod=kept)[0])
        compiled.append(counter.frame_count)
    assert compiled == [compiled[0]] * 3


@pytest.mark.parametrize("maker", ["torchs", "tables"])
def test_a_graph_reads_the_tables_of_a_mask_at_every_call(maker: str) -> None:
    q, k, v = qkv(sq=40)
    all_blocks = torch.ones(1, 5, 5, dtype=torch.bool)
    mask = of_tables(all_blocks, causal) if maker == "tables" else MAKERS[maker](causal, None, None, 40, 40, device="cpu", BLOCK_SIZE=8)
    call = torch.compile(lambda q, k, v, mask: flex_attention(q, k, v, block_mask=mask), fullgraph=True, backend="eager")
    compare(call(q, k, v, mask), dense(q, k, v, mask_mod=causal)[0])
    if maker == "tables":
        mask.kv_num_blocks.fill_(1)  # the first block of each row
        wanted = dense(q, k, v, mask_mod=lambda b, h, m, n: (m >= n) & (n < 8))[0]
    else:
        mask.full_kv_num_blocks.zero_()
        wanted = dense(q, k, v, mask_mod=lambda b, h, m, n: (m >= n) & (m // 8 == n // 8))[0]
    compare(call(q, k, v, mask), wanted)


@pytest.mark.parametrize("how", ["set", "turn", "shrink"])
def test_a_table_whose_memory_or_order_changes(how: str) -> None:
    q, k, v = qkv(sq=16)
    mask = of_tables(torch.tensor([[[True, False], [True, True]]]))
    compare(flex_attention(q, k, v, block_mask=mask), dense(q, k, v, mask_mod=lambda b, h, m, n: m // 8 >= n // 8)[0])
    if how == "set":
        mask.kv_num_blocks.set_(torch.tensor([[[2, 1]]], dtype=torch.int32))
        kept = [[True, True], [True, False]]
    elif how == "turn":  # [[0, 1], [0, 1]] becomes [[0, 0], [1, 1]], in the same memory
        mask.kv_indices.transpose_(2, 3)
        kept = [[True, False], [False, True]]
    else:
        mask.kv_num_blocks.data = mask.kv_num_blocks[:, :, :1].expand(1, 1, 2)
        kept = [[True, False], [True, False]]
    pattern = torch.tensor(kept)
    compare(flex_attention(q, k, v, block_mask=mask), dense(q, k, v, mask_mod=lambda b, h, m, n: pattern[m // 8, n // 8])[0])


@pytest.mark.parametrize("how", ["numpy", "data", "inference"])
@pytest.mark.parametrize("maker", MAKERS)
def test_a_table_that_changes_without_a_new_version(how: str, maker: str) -> None:
    q, k, v = qkv(sq=40)
    with torch.inference_mode(how == "inference"):
        mask = MAKERS[maker](causal, None, None, 40, 40, device="cpu", BLOCK_SIZE=8)
        table = mask.full_kv_num_blocks
        compare(flex_attention(q, k, v, block_mask=mask), dense(q, k, v, mask_mod=causal)[0])
        if how == "numpy":
            table.numpy()[:] = 0
        else:
            (table.data if how == "data" else table).fill_(0)
        wanted = dense(q, k, v, mask_mod=lambda b, h, m, n: (m >= n) & (m // 8 == n // 8))[0]
        compare(flex_attention(q, k, v, block_mask=mask), wanted)


def test_a_table_given_to_attention_that_changes_in_inference_mode() -> None:
    q, k, v = qkv(sq=40)
    with torch.inference_mode():
        mask: Any = MAKERS["torchs"](causal, None, None, 40, 40, device="cpu", BLOCK_SIZE=8)
        compare(attn_mlir.attention(q, k, v, mask_mod=mask), dense(q, k, v, mask_mod=causal)[0])
        mask.full_kv_num_blocks.fill_(0)
        with pytest.raises(attn_mlir.ArgumentError, match="not those that its mask_mod keeps"):
            attn_mlir.attention(q, k, v, mask_mod=mask)


def test_the_lse_of_a_row_with_a_nan_is_nan() -> None:
    q, k, v = qkv()
    q[0, 1, 3, 2] = torch.nan
    for score_mod in (None, lambda score, b, h, m, n: score * 2.0):
        for request in (flex.AuxRequest(lse=True), flex.AuxRequest(lse=True, max_scores=True)):
            o, aux = flex_attention(q, k, v, score_mod, return_aux=request)
            assert o.isnan().sum() == 16 and aux.lse.isnan().sum() == 1 and aux.lse[0, 1, 3].isnan()


@pytest.mark.parametrize("maker", ["torchs", "tables"])
@pytest.mark.parametrize("what", ["table", "mask_mod", "lengths", "block size", "list"])
def test_what_is_replaced_between_warm_calls(maker: str, what: str) -> None:
    """Two calls of the same inputs and mask are checked once; what changes between them is seen."""
    q, k, v = qkv(sq=16)
    mask = of_tables(torch.tensor([[[True, False], [True, True]]]), causal)
    if maker == "torchs":
        mask = MAKERS[maker](causal, None, None, 16, 16, device="cpu", BLOCK_SIZE=8)
    if what == "list":
        mask.BLOCK_SIZE = list(mask.BLOCK_SIZE)
    for _ in range(3):
        compare(flex_attention(q, k, v, block_mask=mask), dense(q, k, v, mask_mod=causal)[0])
    if what == "table":
        mask.kv_num_blocks = torch.zeros_like(mask.kv_num_blocks)
        if mask.full_kv_num_blocks is not None:
            mask.full_kv_num_blocks = torch.zeros_like(mask.full_kv_num_blocks)
        assert not flex_attention(q, k, v, block_mask=mask).any()
    elif what == "mask_mod":
        mask.mask_mod = lambda b, h, m, n: n < 4
        full = (lambda m, n: m // 8 > n // 8) if maker == "torchs" else (lambda m, n: m < 0)
        wanted = dense(q, k, v, mask_mod=lambda b, h, m, n: (m // 8 >= n // 8) & (n < 4) | full(m, n))[0]
        compare(flex_attention(q, k, v, block_mask=mask), wanted)
    elif what == "lengths":
        mask.seq_lengths = (16, 24)
        with pytest.raises(attn_mlir.ArgumentError, match=r"got q_len=16 and kv_len=16"):
            flex_attention(q, k, v, block_mask=mask)
    else:
        if what == "list":
            mask.BLOCK_SIZE[0] = 4
        else:
            mask.BLOCK_SIZE = (4, 8)
        with pytest.raises(attn_mlir.ArgumentError, match="lists 2 rows of blocks of 4 queries"):
            flex_attention(q, k, v, block_mask=mask)


def test_a_warm_call_checks_nothing_again(monkeypatch: pytest.MonkeyPatch) -> None:
    q, k, v = qkv(sq=16)
    mask = MAKERS["torchs"](causal, None, None, 16, 16, device="cpu", BLOCK_SIZE=8)
    asked: list[Any] = []
    ask = resolve.mask_function
    monkeypatch.setattr(resolve, "mask_function", lambda *arguments: asked.append(arguments) or ask(*arguments))
    for _ in range(5):
        flex_attention(q, k, v, block_mask=mask)
    assert len(asked) <= 1
    mask.kv_indices += 0  # a new version, and nothing changed
    flex_attention(q, k, v, block_mask=mask)
    assert len(asked) <= 1
    with pytest.raises(attn_mlir.ArgumentError, match="got q_len=15 and kv_len=16"):
        flex_attention(q[:, :, :15].contiguous(), k, v, block_mask=mask)
    with pytest.raises(attn_mlir.ArgumentError, match="Try setting enable_gqa=True"):
        flex_attention(q, k[:, :2].contiguous(), v[:, :2].contiguous(), block_mask=mask)
