"""AttentionEngine: results against the dense computation."""

from collections.abc import Callable
from typing import Any

import pytest
import torch

import attn_mlir
import engine_helpers as eh
from attn_mlir import AttentionEngine, CustomIO, Identity, OnlineFunc, OnlineRetention, SymbolScalar, Var, create_block_mask, meta_tensor
from attn_mlir.backends.cpu.driver import compile_count
from attn_mlir.errors import ArgumentError

SCALE = 0.2


def scaled(score: Any, custom_fwd_inputs: Any, b: Any, h: Any, q_idx: Any, kv_idx: Any) -> Any:
    return score * SCALE


def causal(b: Any, h: Any, q_idx: Any, kv_idx: Any) -> Any:
    return q_idx >= kv_idx


def window(b: Any, h: Any, q_idx: Any, kv_idx: Any) -> Any:
    return (q_idx >= kv_idx) & (q_idx < kv_idx + 16)


@pytest.mark.parametrize("mask", [None, causal, window])
@pytest.mark.parametrize(
    "shape",
    [
        {},
        {"b": 1, "h": 6, "hkv": 2, "sq": 33, "skv": 130, "dv": 48},
        {"sq": 129, "skv": 65, "h": 2, "d": 7, "dv": 5},
        {"sq": 1, "skv": 200, "hkv": 1},
    ],
    ids=["square", "gqa", "odd", "decode"],
)
def test_softmax(mask: Any, shape: dict[str, int]) -> None:
    qkv = eh.inputs(**shape)
    o, rows = eh.engine(qkv, score_mod=scaled, mask_mod=mask)(*qkv, return_rowscales=True)
    s = eh.scores(qkv) * SCALE
    assert o.is_contiguous()
    eh.check(o, eh.softmax(qkv, s, mask))
    lse = s.masked_fill(~eh.present(qkv, mask), -torch.inf).logsumexp(-1)
    assert list(rows) == ["lse"]
    torch.testing.assert_close(rows["lse"], lse.float(), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision(dtype: torch.dtype) -> None:
    qkv = eh.inputs(dtype=dtype)
    o = eh.engine(qkv, score_mod=scaled, mask_mod=causal)(*qkv)
    assert o.dtype == dtype
    eh.check(o, eh.softmax(qkv, eh.scores(qkv) * SCALE, causal), 2.0**-7 if dtype == torch.bfloat16 else 2.0**-10)


def test_the_written_softmax_is_the_derived_one() -> None:
    qkv = eh.inputs()
    derived = attn_mlir.attention(*qkv, mask_mod=causal, scale=SCALE, layout="bshd")
    torch.testing.assert_close(eh.engine(qkv, score_mod=scaled, mask_mod=causal)(*qkv), derived, rtol=1e-5, atol=1e-6)


def test_rows_without_keys() -> None:
    qkv = eh.inputs(sq=40, skv=90)
    mask = lambda b, h, q_idx, kv_idx: (q_idx % 3 != 1) & (kv_idx <= q_idx)  # noqa: E731
    o, rows = eh.engine(qkv, score_mod=scaled, mask_mod=mask)(*qkv, return_rowscales=True)
    eh.check(o, eh.softmax(qkv, eh.scores(qkv) * SCALE, mask))
    assert (o[:, 1::3] == 0).all() and (rows["lse"][:, :, 1::3] == -torch.inf).all()
    assert torch.isfinite(rows["lse"][:, :, 0::3]).all()


@pytest.mark.parametrize("skv", [0, 5])
def test_no_keys_and_no_queries(skv: int) -> None:
    q, k, v = torch.randn(1, 5 - skv, 2, 8), torch.randn(1, skv, 2, 8), torch.randn(1, skv, 2, 8)
    o, rows = eh.engine((q, k, v), score_mod=scaled)(q, k, v, return_rowscales=True)
    assert o.shape == q.shape and (o == 0).all() and (rows["lse"] == -torch.inf).all()


def test_masked_keys_have_no_influence() -> None:
    q, k, v = eh.inputs(b=1, h=2, sq=64, skv=256)
    mod = eh.engine((q, k, v), score_mod=scaled, mask_mod=lambda b, h, q_idx, kv_idx: kv_idx < 64)
    expected = mod(q, k, v)
    k[:, 128:], v[:, 128:] = torch.nan, torch.inf
    assert torch.equal(mod(q, k, v), expected)


def test_a_soft_cap_with_a_mask_leaves_masked_keys_out() -> None:
    qkv = eh.inputs()
    cap = lambda score, _, b, h, q_idx, kv_idx: (score / 2.0).tanh() * 2.0  # noqa: E731
    eh.check(eh.engine(qkv, score_mod=cap, mask_mod=causal)(*qkv), eh.softmax(qkv, (eh.scores(qkv) / 2).tanh() * 2, causal))


def retention_mask(h: int, s: int) -> torch.Tensor:
    decay = (1 - 2.0 ** (-5 - torch.arange(h))).view(h, 1, 1)
    distance = torch.arange(s).view(s, 1) - torch.arange(s)
    return torch.where(distance >= 0, decay ** distance.clamp(0), 0.0)[None]


@pytest.mark.parametrize("mask_value", ["0", "-inf"])
@pytest.mark.parametrize("online", [OnlineRetention, eh.RescaledRetention])
def test_retention(online: Callable[[], OnlineFunc], mask_value: str) -> None:
    q, k, v = eh.inputs(b=1, h=2, sq=150, d=16, dv=24)
    qkv = (q * 0.02, k, v)
    custom = CustomIO({"mask": (1, "heads", "seq_len", "seq_len_kv")})

    def masked(score: Any, custom_fwd_inputs: Any, b: Any, h: Any, q_idx: Any, kv_idx: Any) -> Any:
        return score * custom_fwd_inputs.input_tensors["mask"]

    mask = retention_mask(2, 150)
    mod = eh.engine(qkv, custom, online(), score_mod=masked, block_mask=causal, mask_value=mask_value)
    o, rows = mod(*qkv, mask, return_rowscales=True)
    s = eh.scores(qkv) * mask.double()
    r = s.abs().sum(-1, keepdim=True).clamp(min=1)
    eh.check(o, eh.weighted(qkv, s / r))
    torch.testing.assert_close(rows["r"], r[..., 0].float(), rtol=1e-5, atol=1e-5)
    assert (r > 1).any() and (r == 1).any()


def test_sigmoid_with_a_bias() -> None:
    qkv = eh.inputs(sq=100)

    def sigmoid(score: Any, custom_fwd_inputs: Any, b: Any, h: Any, q_idx: Any, kv_idx: Any) -> Any:
        score = score + custom_fwd_inputs.input_tensors["softmax_bias"]
        return (((score * 0.5).tanh()) + 1) * 0.5

    mod = eh.engine(qkv, CustomIO({"softmax_bias": (1,)}), Identity(), score_mod=sigmoid, mask_mod=causal)
    for bias in (torch.tensor([-3.0]), torch.tensor([0.7])):
        p = (eh.scores(qkv) + bias.double()).sigmoid().masked_fill(~eh.present(qkv, causal), 0.0)
        eh.check(mod(*qkv, bias), eh.weighted(qkv, p))


def test_relu_without_an_online_func() -> None:
    qkv = eh.inputs(d=16)
    mod = AttentionEngine(eh.meta(*qkv), CustomIO({}), score_mod=lambda score, _, b, h, q_idx, kv_idx: (score * SCALE).max(0))
    eh.check(mod(*qkv), eh.weighted(qkv, (eh.scores(qkv) * SCALE).relu()))


def test_mods_of_the_inputs() -> None:
    qkv = eh.inputs(sq=20, d=8)
    custom = CustomIO({"gate": ("batch", "heads_kv", "seq_len_kv"), "w": ("dimqk",)})
    mod = AttentionEngine(
        eh.meta(*qkv),
        custom,
        online_func=Identity(),
        query_mod=lambda q: q * 0.5,
        key_mod=lambda k, custom_fwd_inputs: k * custom_fwd_inputs.input_tensors["w"],
        value_mod=lambda v, custom_fwd_inputs, b, h, kv_idx, d: v * custom_fwd_inputs.input_tensors["gate"] + d,
    )
    gate, w = torch.rand(2, 4, 20), torch.rand(8)
    q, k, v = qkv
    changed = (q * 0.5, k * w, v * gate.transpose(1, 2)[..., None] + torch.arange(8))
    eh.check(mod(*qkv, gate, w), eh.weighted(changed, eh.scores(changed)))


def test_indices_in_every_function() -> None:
    class Positioned(OnlineFunc):
        def __init__(self) -> None:
            super().__init__({"n": SymbolScalar("n", Var("0"))}, {"n": SymbolScalar("n", Var("0")), "at": SymbolScalar("at", Var("0"))})

        @staticmethod
        def online_fwd(scores: Any, online_rowscales: Any, b: Any, h: Any, q_idx: Any) -> Any:
            weights = scores * (h + 1)
            n = online_rowscales["n"] + (scores * 0 + 1).get_reduce("sum")
            return weights, {"n": n}, 1.0

        @staticmethod
        def online_fwd_epilogue(o: Any, online_rowscales: Any, b: Any, h: Any, q_idx: Any) -> Any:
            return o / (1 + q_idx), {"n": online_rowscales["n"], "at": q_idx + 100 * h + 1000 * b}

    qkv = eh.inputs(sq=70, d=8)
    b, h, q_idx, kv_idx = eh.grid(qkv)
    mod = eh.engine(qkv, online_func=Positioned(), score_mod=lambda s, _, b, h, q_idx, kv_idx: s + kv_idx, mask_mod=causal)
    o, rows = mod(*qkv, return_rowscales=True)
    p = ((eh.scores(qkv) + kv_idx) * (h + 1)).masked_fill(~eh.present(qkv, causal), 0.0)
    eh.check(o, eh.weighted(qkv, p / (1 + q_idx)))
    assert torch.equal(rows["n"], eh.present(qkv, causal).sum(-1).float())
    assert torch.equal(rows["at"], (q_idx + 100 * h + 1000 * b)[..., 0].float())


def test_custom_inputs_everywhere_and_indexed() -> None:
    qkv = eh.inputs(sq=50, d=8)
    custom = CustomIO(
        {"slope": ("1", "heads"), "ids": ("batch", "seq_len"), "sink": ("heads",), "table": ("heads", 99), "grow": ("batch", 1, "seq_len")}
    )

    class Sink(OnlineFunc):
        def __init__(self) -> None:
            super().__init__({"l": SymbolScalar("l", Var("0"))}, {}, custom)

        @staticmethod
        def online_fwd(scores: Any, online_rowscales: Any, b: Any, h: Any, q_idx: Any) -> Any:
            weights = torch.exp(scores)
            return weights, {"l": online_rowscales["l"] + weights.get_reduce("sum")}, SymbolScalar("o_scale", Var("1"))

        @staticmethod
        def online_fwd_epilogue(o: Any, online_rowscales: Any, b: Any, h: Any, q_idx: Any) -> Any:
            sink: Any = custom.input_tensors["sink"]
            return o / (online_rowscales["l"] + torch.exp(sink)) * custom.input_tensors["grow"], {}

    def bias(score: Any, custom_fwd_inputs: Any, b: Any, h: Any, q_idx: Any, kv_idx: Any) -> Any:
        given = custom_fwd_inputs.input_tensors
        return 0.1 * score + given["slope"] * (kv_idx - q_idx) - abs(-given["table"][h, kv_idx - q_idx + 49])

    def same(b: Any, h: Any, q_idx: Any, kv_idx: Any) -> Any:
        return custom.input_tensors["ids"] == custom.input_tensors["ids"][b, kv_idx]

    mod = eh.engine(qkv, custom, Sink(), score_mod=bias, mask_mod=same)
    slope, sink, table, grow = torch.rand(1, 4) * 0.1, torch.randn(4), torch.rand(4, 99), torch.rand(2, 1, 50)
    ids = torch.randint(0, 3, (2, 50), dtype=torch.int32).sort(-1).values
    b, h, q_idx, kv_idx = eh.grid(qkv)
    s = 0.1 * eh.scores(qkv) + slope.view(1, 4, 1, 1) * (kv_idx - q_idx) - table[h, kv_idx - q_idx + 49]
    e = s.exp().masked_fill(ids[b, q_idx] != ids[b, kv_idx], 0.0)
    expected = eh.weighted(qkv, e / (e.sum(-1, keepdim=True) + sink.double().exp().view(1, 4, 1, 1)) * grow[..., None])
    eh.check(mod(*qkv, slope, ids, sink, table, grow), expected)


def test_custom_inputs_of_every_kind() -> None:
    qkv = eh.inputs(b=2, sq=30, d=8)
    custom = CustomIO({"keep": ("batch", "seq_len_kv"), "order": ("seq_len_kv",), "bias": ("seq_len",)})
    given = custom.input_tensors
    keep, order, bias = torch.arange(60).view(2, 30) % 7 > 2, torch.randperm(30), torch.randn(30, dtype=torch.float64)
    mod = eh.engine(
        qkv,
        custom,
        score_mod=lambda score, _, b, h, q_idx, kv_idx: score * SCALE + given["bias"][given["order"]],
        mask_mod=lambda b, h, q_idx, kv_idx: given["keep"] & given["keep"][b, q_idx],
    )
    both = keep[:, None, None, :] & keep[:, None, :, None]
    expected = eh.softmax(qkv, eh.scores(qkv) * SCALE + bias[order], lambda *_: both)
    eh.check(mod(*qkv, keep, order, bias), expected)


def test_names_of_sizes_need_no_new_kernel_for_new_sizes() -> None:
    shape = meta_tensor("B", "H", "S", 16, dtype=torch.float32)
    mod = AttentionEngine((shape, shape, shape), CustomIO({}), score_mod=scaled, mask_mod=causal, online_func=attn_mlir.OnlineSoftmax())
    mod(*eh.inputs(sq=3, d=16))
    mod(*eh.inputs(sq=1, d=16))
    count = compile_count()
    for b, h, s in ((1, 2, 77), (3, 1, 128), (2, 5, 1)):
        qkv = eh.inputs(b=b, h=h, sq=s, d=16)
        eh.check(mod(*qkv), eh.softmax(qkv, eh.scores(qkv) * SCALE, causal))
    assert compile_count() == count


def test_captured_numbers_are_read_at_every_call() -> None:
    qkv = eh.inputs(sq=30)
    size, factor = 4, 0.5

    def local(b: Any, h: Any, q_idx: Any, kv_idx: Any) -> Any:
        return abs(q_idx - kv_idx) <= size

    mod = eh.engine(qkv, score_mod=lambda score, _, b, h, q_idx, kv_idx: score * factor, mask_mod=local)
    mod(*qkv)
    count = compile_count()
    size, factor = 11, 0.25
    eh.check(mod(*qkv), eh.softmax(qkv, eh.scores(qkv) * 0.25, local))
    assert compile_count() == count


def test_strided_inputs() -> None:
    q, k, v = (x.transpose(1, 2).contiguous().transpose(1, 2) for x in eh.inputs())
    assert not q.is_contiguous()
    qkv = (q, k, v)
    eh.check(eh.engine(qkv, score_mod=scaled)(*qkv), eh.softmax(qkv, eh.scores(qkv) * SCALE))


def test_a_block_mask_is_its_mask_function() -> None:
    qkv = eh.inputs(sq=200)
    mask = create_block_mask(window, 1, 1, 200, 200, device="cpu")
    mod = eh.engine(qkv, score_mod=scaled, block_mask=mask)
    expected = eh.softmax(qkv, eh.scores(qkv) * SCALE, window)
    eh.check(mod(*qkv), expected)
    eh.check(mod(*qkv, block_mask=mask), expected)


def test_the_program_can_be_read() -> None:
    qkv = eh.inputs()
    mod = eh.engine(qkv, score_mod=scaled, mask_mod=causal)
    text = mod.ir()
    assert '"attn.online"' in text and "%m_new = arith.maximumf" in text and 'outputs = ["lse"]' in text
    assert "tile." in mod.ir("attn-tile") and "llvm.func" in list(mod.stages().values())[-1]
    with pytest.raises(ArgumentError, match=r"stage is one of traced, .*attn-tile.*; got 'tiled'"):
        mod.ir("tiled")
