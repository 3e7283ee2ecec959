"""BlockMask, create_block_mask and create_mask: the same tables, texts and errors as torch's, without evaluating what need not be."""

import time
import warnings
from typing import Any

import pytest
import torch
from torch.nn.attention import flex_attention as torch_flex
from torch.nn.attention.experimental._paged_attention import PagedAttention

from attn_mlir import ArgumentError, Attention, attention, flex
from attn_mlir.flex import and_masks, create_mask, noop_mask, or_masks
from flex_dense import compare, compare_all, dense, everywhere, qkv

BlockMask: Any = flex.BlockMask
TorchBlockMask: Any = torch_flex.BlockMask
create_block_mask: Any = flex.create_block_mask
flex_attention: Any = flex.flex_attention
NAMES = [
    f"{full}{side}_{what}"
    for full in ("", "full_")
    for side, what in (("kv", "num_blocks"), ("kv", "indices"), ("q", "num_blocks"), ("q", "indices"))
]
OFFSET = torch.tensor([0, 40, 3, 100])
DOCUMENT = torch.repeat_interleave(torch.arange(9), torch.tensor([7, 300, 1, 260, 90, 128, 214, 500, 36]))


def causal(b: Any, h: Any, q_idx: Any, kv_idx: Any) -> Any:
    return q_idx >= kv_idx


def shifted(b: Any, h: Any, q_idx: Any, kv_idx: Any) -> Any:
    return q_idx + OFFSET[b] * (h + 1) >= kv_idx


def documents(b: Any, h: Any, q_idx: Any, kv_idx: Any) -> Any:
    return (DOCUMENT[q_idx] == DOCUMENT[kv_idx]) & (q_idx >= kv_idx)


def by_floats(b: Any, h: Any, q_idx: Any, kv_idx: Any) -> Any:
    return q_idx >= kv_idx / 2


def untraceable(b: Any, h: Any, q_idx: Any, kv_idx: Any) -> Any:
    return torch.stack([q_idx, kv_idx]).argmin() == 1


MASKS = [
    causal,
    shifted,
    documents,
    by_floats,
    untraceable,
    noop_mask,
    and_masks(causal, documents),
    or_masks(shifted, documents),
    or_masks(),
]


def equal(mine: Any, theirs: Any, names: list[str] = NAMES) -> None:
    for name in names:
        a, b = getattr(mine, name), getattr(theirs, name)
        assert (a is None) == (b is None), name
        assert a is None or (a.dtype == b.dtype and torch.equal(a, b)), name


@pytest.mark.parametrize("mask", MASKS, ids=lambda mask: mask.__name__)
@pytest.mark.parametrize(
    "sizes", [(4, 2, 100, 130, (32, 16)), (None, None, 1300, 1100, 128), (4, 1, 1, 700, 64)], ids=["small", "large", "one query"]
)
def test_tables_are_torchs(mask: Any, sizes: tuple[Any, ...]) -> None:
    *lengths, block = sizes
    mine = create_block_mask(mask, *lengths, device="cpu", BLOCK_SIZE=block)
    theirs = torch_flex.create_block_mask(mask, *lengths, device="cpu", BLOCK_SIZE=block)
    assert (mine.shape, mine.BLOCK_SIZE, mine.seq_lengths, mine.numel()) == (
        theirs.shape,
        theirs.BLOCK_SIZE,
        theirs.seq_lengths,
        theirs.numel(),
    )
    assert mine.sparsity() == pytest.approx(theirs.sparsity(), abs=1e-9)
    assert (str(mine), repr(mine)) == (str(theirs), repr(theirs))
    assert torch.equal(mine.to_dense(), theirs.to_dense())
    equal(mine, theirs)
    assert all(type(a) is type(b) for a, b in zip(mine.as_tuple(), theirs.as_tuple(), strict=True))


def test_a_million_positions() -> None:
    """Making and using the mask evaluates nothing; its picture takes the analysis, and the blocks on the diagonal."""
    calls = []

    def window(b: Any, h: Any, q_idx: Any, kv_idx: Any) -> Any:
        calls.append(type(q_idx).__name__)
        return (q_idx >= kv_idx) & (q_idx - kv_idx <= 4096)

    begin = time.perf_counter()
    mask = create_block_mask(window, None, None, 2**20, 2**20)
    assert time.perf_counter() - begin < 0.01 and not calls
    assert mask.shape == (1, 1, 2**20, 2**20) and mask.numel() == 2**40
    coarse = create_block_mask(window, None, None, 2**20, 2**20, BLOCK_SIZE=8192)
    assert coarse.kv_num_blocks.sum() == 128 + 127 and coarse.full_kv_num_blocks.sum() == 0
    assert coarse.sparsity() == pytest.approx(100 * (1 - 255 / 128**2))


def test_attributes_and_slices() -> None:
    mine, theirs = (module.create_block_mask(shifted, 4, 2, 512, 512, device="cpu", BLOCK_SIZE=64) for module in (flex, torch_flex))
    index = torch.tensor([1], dtype=torch.int32)
    for i in (
        0,
        (0, 1),
        (-1, -2),
        (slice(0, 2), slice(1, 2)),
        (slice(0, 2), slice(1, 2), index),
        (slice(None), slice(None), index),
        (1, 0),
    ):
        a, b = mine[i], theirs[i]
        assert isinstance(a, BlockMask) and a.shape == b.shape and a.sparsity() == b.sparsity()
        equal(a, b)
    q, k, v = qkv(b=1, h=1, sq=64, skv=512)
    for one in (mine, theirs):
        with pytest.raises(RuntimeError, match="Cannot use mask_mod from a sliced BlockMask"):
            flex_attention(q, k, v, block_mask=one[0, 0, 0])
        with pytest.raises(RuntimeError, match="Cannot use mask_mod from a sliced BlockMask"):
            torch.compile(flex_attention, backend="eager")(q, k, v, block_mask=one[0, 0, 0])
        torch._dynamo.reset()  # it leaves alone what has raised an error


def test_a_slice_with_a_mask_of_its_own() -> None:
    """Decoding as gpt-fast does it: the row of blocks of the position, and the mask function moved to it."""
    whole = create_block_mask(causal, 4, None, 512, 512)
    row = whole[:, :, 1]
    position = torch.tensor(130)
    row.mask_mod = lambda b, h, q_idx, kv_idx: whole.mask_mod(b, h, q_idx + position, kv_idx)
    row.seq_lengths = (1, row.seq_lengths[1])
    q, k, v = qkv(b=4, h=8, sq=1, skv=512)
    wanted = dense(q, k, v, mask_mod=row.mask_mod)[0]
    compare(flex_attention(q, k, v, block_mask=row), wanted)
    compare(torch.compile(flex_attention, backend="eager", fullgraph=True)(q, k, v, block_mask=row), wanted)


def test_from_kv_blocks() -> None:
    counts, indices = torch.tensor([[[1]]], dtype=torch.int32), torch.tensor([[[[1, -1]]]], dtype=torch.int32)
    full = torch.tensor([[[1]]], dtype=torch.int32), torch.tensor([[[[0, -1]]]], dtype=torch.int32)
    for given in (
        (counts, indices),
        (counts, indices, *full),
        (torch.tensor([[[2]]], dtype=torch.int32), torch.tensor([[[[0, 1]]]], dtype=torch.int32)),
    ):
        mine, theirs = BlockMask.from_kv_blocks(*given), TorchBlockMask.from_kv_blocks(*given)
        assert type(mine) is BlockMask and mine.BLOCK_SIZE == (128, 128) and mine.shape == theirs.shape
        equal(mine, theirs)
        without = BlockMask.from_kv_blocks(*given, compute_q_blocks=False, BLOCK_SIZE=(64, 64))
        assert without.q_num_blocks is without.full_q_indices is without[0].q_indices is without.to("cpu").q_indices is None
        assert without.BLOCK_SIZE == (64, 64)
    with pytest.raises(RuntimeError, match="at least 2 dimensions"):
        BlockMask.from_kv_blocks(counts[0, 0], indices[0, 0, 0])
    with pytest.raises(AssertionError):
        BlockMask.from_kv_blocks(counts, indices, full[0], None)
    for missing in ("full_kv_indices", "full_q_indices"):
        tables = dict.fromkeys(NAMES, None) | {
            "kv_num_blocks": counts,
            "kv_indices": indices,
            missing.replace("indices", "num_blocks"): counts,
        }
        with pytest.raises(AssertionError, match="must be both provided or omitted"):
            BlockMask(seq_lengths=(1, 1), **tables)  # type: ignore[arg-type]


@pytest.mark.parametrize("by", [(1, 1), (2, 1), (1, 4), (2, 4)])
def test_tables_without_a_mask_function(by: tuple[int, int]) -> None:
    """They are the mask: for any batch or head, by batch, by head; of partial and full blocks; also without tables by columns."""
    pattern = torch.rand(*by, 3, 5) < 0.5
    pattern[..., 0] = True
    counts, indices = pattern.sum(-1, dtype=torch.int32), torch.argsort(pattern.int(), dim=-1, descending=True, stable=True).int()

    def listed(b: Any, h: Any, q_idx: Any, kv_idx: Any) -> Any:
        return pattern[b if by[0] > 1 else 0, h if by[1] > 1 else 0, q_idx // 16, kv_idx // 32]

    for make in (BlockMask, torch_flex.BlockMask):
        mask = make.from_kv_blocks(counts, indices, BLOCK_SIZE=(16, 32), seq_lengths=(40, 150), compute_q_blocks=False)
        compare_all(lambda q, k, v, mask=mask: flex_attention(q, k, v, block_mask=mask), *qkv(sq=40, skv=150), mask_mod=listed)


def test_tables_with_a_mask_function_that_says_more() -> None:
    """As torch has it: full blocks are kept whole, partial ones as mask_mod says, others not at all, whatever mask_mod says."""
    counts, indices = torch.tensor([[[1, 1, 2]]]), torch.tensor([[[[0, 2, 1], [1, 0, 2], [0, 2, 1]]]])
    full, full_indices = torch.tensor([[[1, 0, 0]]]), torch.tensor([[[[2, 0, 1], [0, 1, 2], [0, 1, 2]]]])

    def kept(b: Any, h: Any, q_idx: Any, kv_idx: Any) -> Any:
        i, j = q_idx // 16, kv_idx // 16
        partial = ((i == 0) & (j == 0)) | ((i == 1) & (j == 1)) | ((i == 2) & (j != 1))
        return (partial & (q_idx >= kv_idx)) | ((i == 0) & (j == 2))

    q, k, v = qkv(sq=48)
    wanted = dense(q, k, v, mask_mod=kept)[0]
    for make in (BlockMask, torch_flex.BlockMask):
        mask = make.from_kv_blocks(counts, indices, full, full_indices, BLOCK_SIZE=16, mask_mod=causal)
        compare(flex_attention(q, k, v, block_mask=mask), wanted)
        compare(torch.compile(flex_attention, backend="eager", fullgraph=True)(q, k, v, block_mask=mask), wanted)
        mask.kv_num_blocks = mask.kv_num_blocks.clone()
        compare(flex_attention(q, k, v, block_mask=mask), wanted)
        mask.kv_num_blocks.copy_(torch.tensor([[[1, 1, 0]]]))  # in place: noticed, too
        changed = dense(q, k, v, mask_mod=lambda b, h, m, n: kept(b, h, m, n) & (m < 32))[0]
        compare(flex_attention(q, k, v, block_mask=mask), changed)


@pytest.mark.parametrize("full", [False, True], ids=["left out", "full"])
def test_tables_that_differ_from_their_function_in_a_few_positions(full: bool) -> None:
    """The corners and the middle of every block say the same; other positions do not, and the tables decide."""

    def some(b: Any, h: Any, q_idx: Any, kv_idx: Any) -> Any:
        inside = (kv_idx % 128 == 7) & (q_idx % 128 == 5)
        return ~inside if full else inside | (kv_idx < 128)

    counts, indices = torch.tensor([[[1, 1]]]), torch.tensor([[[[0, 1], [0, 1]]]])
    every: Any = (torch.tensor([[[1, 1]]]), torch.tensor([[[[1, 0], [1, 0]]]])) if full else ()
    q, k, v = qkv(b=1, h=1, sq=256)

    def kept(b: Any, h: Any, q_idx: Any, kv_idx: Any) -> Any:
        return (kv_idx >= 128) | some(b, h, q_idx, kv_idx) if full else kv_idx < 128

    for make in (BlockMask, torch_flex.BlockMask):
        mask = make.from_kv_blocks(counts, indices, *every, mask_mod=some)
        compare(flex_attention(q, k, v, block_mask=mask), dense(q, k, v, mask_mod=kept)[0])
        with pytest.raises(ArgumentError, match="not those that its mask_mod keeps"):
            attention(q, k, v, mask_mod=mask)


def test_a_table_that_is_changed_in_place() -> None:
    q, k, v = qkv(b=1, sq=64)
    mask = create_block_mask(causal, 1, 1, 64, 64, BLOCK_SIZE=16)
    mask.full_kv_num_blocks.zero_()
    assert not mask.symbolic and mask.to_dense().sum() == 4
    compare(flex_attention(q, k, v, block_mask=mask), dense(q, k, v, mask_mod=lambda b, h, m, n: (m >= n) & (m // 16 == n // 16))[0])


def test_tables_of_fewer_rows_than_queries_are_refused() -> None:
    counts, indices = torch.ones(1, 1, 2, dtype=torch.int32), torch.zeros(1, 1, 2, 2, dtype=torch.int32)
    mask = BlockMask.from_kv_blocks(counts, indices, BLOCK_SIZE=16, seq_lengths=(40, 32))
    with pytest.raises(ArgumentError, match="block_mask lists 2 rows of blocks of 16 queries"):
        flex_attention(*qkv(sq=40, skv=32), block_mask=mask)


def test_another_function_or_table_in_a_mask() -> None:
    """A mask whose function is replaced keeps the blocks of the old one, as torch's does; likewise one whose tables are."""
    q, k, v = qkv(b=1, sq=64)
    mask = create_block_mask(causal, 1, 1, 64, 64, BLOCK_SIZE=16)
    mask.mask_mod = lambda b, h, q_idx, kv_idx: q_idx >= kv_idx + 2
    compare(flex_attention(q, k, v, block_mask=mask), dense(q, k, v, mask_mod=lambda b, h, m, n: (m >= n + 2) | (m // 16 > n // 16))[0])
    mask = create_block_mask(causal, 1, 1, 64, 64, BLOCK_SIZE=16)
    mask.full_kv_num_blocks = torch.zeros_like(mask.full_kv_num_blocks)
    assert not mask.symbolic and mask.sparsity() == 75.0 and mask.to_dense().sum() == 4
    compare(flex_attention(q, k, v, block_mask=mask), dense(q, k, v, mask_mod=lambda b, h, m, n: (m >= n) & (m // 16 == n // 16))[0])


def test_devices_and_lengths() -> None:
    mask = create_block_mask(causal, 1, 1, 512, 512, device="cpu")
    there = mask.to("meta")
    assert (there.device.type, mask.device.type) == ("meta", "cpu")
    tables = mask[:].to("meta")
    assert tables.kv_indices.is_meta and tables.q_num_blocks.is_meta
    q, k, v = qkv(b=1, sq=512)
    for one in (there, tables):
        one.mask_mod = causal
        with pytest.raises(RuntimeError, match="Expect q/k/v and block_mask to be on the same device but got cpu and meta"):
            flex_attention(q, k, v, block_mask=one)
    cut = mask._adjust(37, 45)
    assert cut.shape == (1, 1, 37, 45)
    q, k, v = qkv(sq=37, skv=45)
    compare(flex_attention(q, k, v, block_mask=cut), dense(q, k, v, mask_mod=causal)[0])
    for lengths, told in (
        ((2048, 2048), "smaller length"),
        ((512, 1024), "smaller length"),
        ((500, 512), "larger length"),
        ((1, 1), "larger length"),
    ):
        q, k, v = qkv(b=1, h=1, sq=lengths[0], skv=lengths[1], d=4)
        with pytest.raises(ValueError, match=rf"block_mask was created for block_mask.shape=\(1, 1, 512, 512\) but got.*{told}"):
            flex_attention(q, k, v, block_mask=mask)
    by_batch = create_block_mask(shifted, 3, 2, 37, 45)
    with pytest.raises(ValueError, match=r"block_mask was created for block_mask.shape=\(3, 2, 37, 45\) but got B=2 and Hq=4"):
        flex_attention(*qkv(sq=37, skv=45), block_mask=by_batch)


def test_trees() -> None:
    mask = create_block_mask(documents, 2, 4, 512, 512)
    leaves, context = mask._flatten()
    again = BlockMask._unflatten(leaves, context)
    with_keys, _ = mask._flatten_with_keys()
    assert len(with_keys) == len(leaves) and all(isinstance(key, torch.utils._pytree.GetAttrKey) for key, _ in with_keys)
    assert (again.shape, again.sparsity(), again.BLOCK_SIZE) == (mask.shape, mask.sparsity(), mask.BLOCK_SIZE)
    equal(again, mask, BlockMask._TENSOR_ATTRS)
    for name in BlockMask._TENSOR_ATTRS + BlockMask._CONTEXT_ATTRS:
        assert hasattr(again, name)


def test_create_mask() -> None:
    for function in (causal, shifted, documents):
        assert torch.equal(create_mask(function, 4, 2, 30, 41, "cpu"), everywhere(function, (4, 2, 30, 41)).bool())
    mask = create_mask(lambda s, b, h, q, kv: torch.where(q >= kv, s, -torch.inf), None, 2, 5, 7)
    assert torch.equal(mask, torch.ones(1, 2, 5, 7).tril().bool())


def test_errors_of_making_one() -> None:
    with pytest.raises(AssertionError, match="create-block_mask requires a mask_mod function! Got"):
        create_block_mask(lambda s, b, h, q, kv: s, 1, 1, 8, 8)
    with pytest.raises(AssertionError, match="Expected 4 or 5 positional args, got 3"):
        create_mask(lambda b, h, q: b, 1, 1, 8, 8)
    for combine in (and_masks, or_masks):
        with pytest.raises(RuntimeError, match="All inputs should be callable mask_mods"):
            combine(causal, 3)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="dq_kv_order must be a bool"):
        create_block_mask(causal, 1, 1, 8, 8, dq_kv_order=None)  # type: ignore[arg-type]
    with pytest.raises(ArgumentError, match="BLOCK_SIZE must be positive"):
        create_block_mask(causal, 1, 1, 8, 8, BLOCK_SIZE=0)
    with pytest.warns(DeprecationWarning, match="_compile=True has no effect"):
        create_block_mask(causal, 1, 1, 8, 8, _compile=True)


def test_full_blocks_among_the_partial_ones_and_write_orders() -> None:
    mine, theirs = (
        module.create_block_mask(causal, 1, 1, 256, 256, device="cpu", BLOCK_SIZE=64, separate_full_blocks=False)
        for module in (flex, torch_flex)
    )
    equal(mine, theirs)
    assert repr(mine) == repr(theirs)
    mine, theirs = (
        module.create_block_mask(causal, 1, 1, 256, 256, device="cpu", BLOCK_SIZE=64, compute_dq_write_order=True)
        for module in (flex, torch_flex)
    )
    equal(mine, theirs, ["dq_write_order", "dq_write_order_full"])
    mine, theirs = mine[:, :, 1:3], theirs[:, :, 1:3]
    equal(mine, theirs, ["dq_write_order", "dq_write_order_full"])
    assert mine.dq_kv_order_spt is theirs.dq_kv_order_spt is True


def test_made_inside_of_torch_compile() -> None:
    """Lengths that change compile nothing again; what functions bind by functools.partial is followed."""
    import functools

    compiled = torch.compile(create_block_mask, fullgraph=True, backend="eager", dynamic=True)

    def window(b: Any, h: Any, q_idx: Any, kv_idx: Any, size: Any) -> Any:
        return (q_idx - kv_idx).abs() < size

    for mask, length in ((causal, 512), (documents, 300), (functools.partial(window, size=torch.tensor(5)), 64)):
        mine = compiled(mask, None, None, length, length, device="cpu")
        assert isinstance(mine, BlockMask) and mine.shape == (1, 1, length, length)
        equal(mine, torch_flex.create_block_mask(mask, None, None, length, length, device="cpu"))


def test_attention_takes_it_too() -> None:
    """Without evaluating anything: its blocks are those of its function."""
    mask = create_block_mask(causal, None, None, 37, 45)
    q, k, v = qkv(sq=37, skv=45)
    wanted = dense(q, k, v, mask_mod=causal)[0]
    compare(attention(q, k, v, mask_mod=mask), wanted)
    compare(Attention(mask_mod=mask)(q, k, v), wanted)
    compare(torch.compile(lambda q: attention(q, k, v, mask_mod=mask), backend="eager", fullgraph=True)(q), wanted)
    assert mask._classes is None  # type: ignore[attr-defined]
    with pytest.raises(ArgumentError, match="made for a length of 37, but it is 36 in this call"):
        attention(q[:, :, :36], k, v, mask_mod=mask)


def test_paged_attention() -> None:
    """torch's PagedAttention: mods rewritten through a page table, a table of physical blocks, keys in one batch."""
    pages, size, batch, heads, length = 32, 16, 4, 4, 64
    cache = PagedAttention(pages, size, batch, device="cpu")
    for wanted in ([10, 64, 5, 20], [64, 64, 30, 30], [64, 64, 64, 64]):
        for b in range(batch):
            cache.reserve(torch.tensor(b), torch.tensor(wanted[b]))
    q, k, v = qkv(b=batch, h=heads, sq=length)
    k_cache, v_cache = (torch.zeros(1, heads, pages * size, 16) for _ in range(2))
    everyone = torch.arange(batch, dtype=torch.int32)
    cache.assign(everyone, torch.arange(length, dtype=torch.int32).expand(batch, -1), k, v, k_cache, v_cache)
    lengths = torch.full((batch,), length)

    def relative(score: Any, b: Any, h: Any, q_idx: Any, kv_idx: Any) -> Any:
        return score + (q_idx - kv_idx)

    logical = create_block_mask(causal, batch, 1, length, length, BLOCK_SIZE=size)
    wanted = dense(q, k, v, relative, causal)[0]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        physical = cache.convert_logical_block_mask(logical, kv_len=lengths)
        mod = cache.get_score_mod(relative, kv_len=lengths)
    assert isinstance(physical, torch_flex.BlockMask) and physical.full_kv_num_blocks is not None
    compare(flex_attention(q, k_cache, v_cache, mod, physical), wanted)
    compare(torch.compile(flex_attention, backend="eager", fullgraph=True)(q, k_cache, v_cache, mod, physical), wanted)


def test_masks_are_on_the_cpu_where_there_is_no_accelerator(monkeypatch: pytest.MonkeyPatch) -> None:
    """A build of torch for CUDA names its accelerator on machines without a GPU, too."""
    monkeypatch.setattr(torch.accelerator, "current_accelerator", lambda *_: torch.device("cuda"))
    monkeypatch.setattr(torch.accelerator, "is_available", lambda: False)
    assert create_block_mask(causal, None, None, 200, 200).device.type == "cpu"
    assert create_mask(causal, None, None, 3, 3).device.type == "cpu"
