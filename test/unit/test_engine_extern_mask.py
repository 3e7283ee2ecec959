"""Block masks as tensors: with the call or with the engine, alone or together with a mask function."""

import copy
import pickle
from typing import Any

import pytest
import torch

import attn_mlir
import engine_helpers as eh
import engine_programs as ep
from attn_mlir import AttentionEngine, OnlineRetention, OnlineSoftmax, create_block_mask
from attn_mlir.errors import ArgumentError

SIZES: dict[str, Any] = {"infer_mask_block_M": 64, "infer_mask_block_N": 32}
QKV = eh.inputs(b=2, h=4, hkv=2, sq=131, skv=97, d=16)
SHAPE = (3, 4)


def engine(mask: Any = None, online: Any = None, **options: Any) -> AttentionEngine:
    made = OnlineSoftmax() if online is None else online
    return AttentionEngine(ep.meta(), None, ep.scaled, mask, online_func=made, **{"extern_block_mask": True, **SIZES, **options})


def patterns(*shape: int, dtype: torch.dtype = torch.int8, blocks: tuple[int, int] = SHAPE) -> torch.Tensor:
    kept = torch.rand(*shape, *blocks, generator=torch.Generator().manual_seed(sum(shape))) < 0.5
    kept[..., 1, :] = False  # rows without any key
    return kept.to(dtype) * (1 if dtype == torch.bool else -3)


def present(table: torch.Tensor, mask: Any = None, rows: int = 64, columns: int = 32) -> torch.Tensor:
    queries, keys, heads = QKV[0].shape[1], QKV[1].shape[1], QKV[0].shape[2]
    kept = table.bool().repeat_interleave(rows, 2).repeat_interleave(columns, 3)[:, :, :queries, :keys]
    if kept.shape[1] == 2:  # for each head of k and v
        kept = kept.repeat_interleave(heads // 2, 1)
    return kept.broadcast_to(2, heads, queries, keys) & eh.present(QKV, mask)


def reference(inputs: Any, keep: torch.Tensor) -> torch.Tensor:
    s = eh.scores(inputs) * 0.25
    return eh.weighted(inputs, s.masked_fill(~keep, -torch.inf).softmax(-1).nan_to_num(0.0))


@pytest.mark.parametrize(
    ("mask", "shapes", "dtype"),
    [
        (None, [(2, 4), (1, 1), (1, 4), (2, 1), (1, 2)], torch.int8),
        (ep.causal, [(2, 4), (1, 2)], torch.bool),
    ],
    ids=["blocks", "and-causal"],
)
def test_with_the_call(mask: Any, shapes: list[tuple[int, int]], dtype: torch.dtype) -> None:
    mod = engine(mask)
    for shape in shapes:
        table = patterns(*shape, dtype=dtype)
        leaves = [x.clone().requires_grad_() for x in QKV]
        exact = [x.double().requires_grad_() for x in QKV]
        o, known = mod(*leaves, block_mask=table), reference(exact, present(table, mask))
        eh.check(o, known)
        assert torch.equal(mod(*QKV), o)  # later calls use it, too
        made = torch.autograd.grad(o.square().sum(), leaves)
        for x, wanted in zip(made, torch.autograd.grad(known.square().sum(), exact), strict=True):
            eh.check(x, wanted, 5e-5)


def test_row_outputs_of_rows_without_keys() -> None:
    table = patterns(2, 4)
    o, rows = engine()(*QKV, block_mask=table, return_rowscales=True)
    keep = present(table)
    lse = (eh.scores(QKV) * 0.25).masked_fill(~keep, -torch.inf).logsumexp(-1)
    torch.testing.assert_close(rows["lse"].double(), lse, rtol=1e-5, atol=1e-5)
    assert not keep.any(-1).all() and (o.transpose(1, 2)[~keep.any(-1)] == 0).all()


def test_other_row_functions_and_types() -> None:
    table, half = patterns(2, 4), tuple(x.half() for x in QKV)
    mod = AttentionEngine(eh.meta(*half), None, ep.scaled, None, online_func=OnlineRetention(), extern_block_mask=True, **SIZES)
    s = (eh.scores(half) * 0.25).masked_fill(~present(table), 0.0)
    eh.check(mod(*half, block_mask=table), eh.weighted(half, s / s.abs().sum(-1, keepdim=True).clamp(min=1)), 2e-3)


def test_a_tensor_with_the_engine() -> None:
    table = patterns(1, 4)
    for mask in (None, ep.causal):
        mod = engine(mask, extern_block_mask=False, block_mask=table)
        for made in (mod, copy.deepcopy(mod), pickle.loads(pickle.dumps(mod))):
            eh.check(made(*QKV), reference(QKV, present(table, mask)))
        assert mod.state_dict() == {} and [name for name, _ in mod.named_buffers()] == ["block_mask"]
    table[:] = 1  # tensors are read at every call
    eh.check(mod(*QKV), reference(QKV, eh.present(QKV, ep.causal)))
    with pytest.raises(ArgumentError, match="takes no block mask with the call: make it with extern_block_mask=True"):
        mod(*QKV, block_mask=table)


def test_what_create_block_mask_makes_means_its_blocks() -> None:
    """Of a mask that cuts blocks, whole blocks are kept, as in AttentionEngine."""
    made = create_block_mask(ep.causal, None, None, 131, 97, Q_BLOCK_SIZE=64, KV_BLOCK_SIZE=32)
    eh.check(engine()(*QKV, block_mask=made), reference(QKV, present(made.to_dense())))
    eh.check(engine(ep.causal)(*QKV, block_mask=made), reference(QKV, eh.present(QKV, ep.causal)))
    # Every block of 128 x 128 has a key that causality keeps.
    by_default = engine(infer_mask_block_M=128, infer_mask_block_N=128)
    eh.check(by_default(*QKV, block_mask=create_block_mask(ep.causal, 1, 1, 131, 97)), reference(QKV, eh.present(QKV, None)))


def test_inside_torch_compile() -> None:
    mod = engine(ep.causal)
    call = torch.compile(mod, fullgraph=True, backend="aot_eager")
    for table in (patterns(1, 1), patterns(1, 1) == 0):
        leaves = [x.clone().requires_grad_() for x in QKV]
        o = call(*leaves, block_mask=table)
        torch.testing.assert_close(o, mod(*QKV, block_mask=table))
        for x, wanted in zip(*(torch.autograd.grad(f.square().sum(), leaves) for f in (o, mod(*leaves))), strict=True):
            torch.testing.assert_close(x, wanted)


@pytest.mark.parametrize(
    "mask", [ep.causal, lambda b, h, i, j: j - i < attn_mlir.kv_len() - attn_mlir.q_len() + 9], ids=["causal", "sizes"]
)
def test_what_create_block_mask_makes_inside_torch_compile(mask: Any) -> None:
    mod, made = engine(), create_block_mask(mask, 1, 1, 131, 97, Q_BLOCK_SIZE=64, KV_BLOCK_SIZE=32)
    call = torch.compile(lambda q, k, v: mod(q, k, v, block_mask=made), fullgraph=True, backend="aot_eager")
    for _ in range(2):
        torch.testing.assert_close(call(*QKV), mod(*QKV, block_mask=made))


def test_inside_transforms() -> None:
    mod, tables = engine(), torch.stack([patterns(2, 4), patterns(1, 1).broadcast_to(2, 4, 3, 4)])
    for o, table in zip(torch.func.vmap(lambda table: mod(*QKV, block_mask=table))(tables), tables, strict=True):
        eh.check(o, reference(QKV, present(table)))
    with pytest.raises(ArgumentError, match="pass the block mask with the call"):
        mod(*QKV)  # that of a transform is not kept


def test_on_an_emulated_device() -> None:
    table, qkv = patterns(1, 1), [x[:, :, :2] if x is QKV[0] else x[:, :, :1] for x in QKV]
    small = tuple(x[:1].half() for x in qkv)
    mod = AttentionEngine(
        eh.meta(*small), None, ep.scaled, ep.causal, online_func=OnlineSoftmax(), device="hip-emulated", extern_block_mask=True, **SIZES
    )
    eh.check(mod(*small, block_mask=table), reference(small, present(table, ep.causal)[:1, :2]), 2e-3)


@pytest.mark.parametrize(
    ("table", "text"),
    [
        (torch.ones(2, 4, 3, 5), "block_mask has dtype torch.float32: use torch.int8 or torch.bool"),
        (patterns(2, 4, blocks=(3, 5)), "block_mask has 5 blocks of keys, but 97 keys are 4 blocks of 32"),
        (patterns(2, 4, blocks=(2, 4)), "block_mask has 2 blocks of queries, but 131 queries are 3 blocks of 64"),
        (patterns(2, 3), "block_mask has a number of heads of 3, but it is 4 in this call"),
        (patterns(3, 4), "block_mask has a batch size of 3, but it is 2 in this call"),
        (patterns(2, 4)[0], "block_mask must be a tensor .B, H, blocks of queries, blocks of keys., got shape .4, 3, 4."),
        (patterns(2, 4).to("meta"), "block_mask is on meta but q is on cpu"),
        (3, "block_mask is a tensor, or what create_block_mask makes, got int"),
        (create_block_mask(ep.causal, 1, 1, 131, 97), "of 128 x 128 and this AttentionEngine of 64 x 32: make it with infer_mask_block_M"),
        (None, "extern_block_mask=True: pass the block mask with the call"),
    ],
)
def test_wrong_block_masks(table: Any, text: str) -> None:
    mod = engine()
    with pytest.raises(ArgumentError, match=text):
        mod(*QKV, block_mask=table)
    with pytest.raises(ArgumentError, match="pass the block mask with the call"):
        mod(*QKV)  # a wrong one is not kept


@pytest.mark.parametrize("size", [0, 1.5, True])
def test_wrong_block_sizes(size: Any) -> None:
    with pytest.raises(ArgumentError, match=f"infer_mask_block_N is a positive number of positions, got {size}"):
        engine(infer_mask_block_N=size)
