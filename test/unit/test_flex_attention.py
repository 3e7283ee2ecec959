"""`flex_attention`: FlexAttention's results, errors and options, eager and under torch.compile."""

import functools
import inspect
import itertools
import warnings
from typing import Any

import pytest
import torch
from torch._dynamo.testing import CompileCounterWithBackend
from torch.nn.attention import flex_attention as torch_flex

import attn_mlir
from attn_mlir import flex
from attn_mlir.flex import AuxOutput, AuxRequest, attention, create_block_mask, noop_mask
from attn_mlir.integrations import pytorch
from flex_dense import compare, compare_all, dense, qkv

flex_attention: Any = flex.flex_attention
compiled: Any = functools.partial(torch.compile, fullgraph=True, backend="aot_eager")


def causal(b: Any, h: Any, q_idx: Any, kv_idx: Any) -> Any:
    return q_idx >= kv_idx


def relative(score: Any, b: Any, h: Any, q_idx: Any, kv_idx: Any) -> Any:
    return score + (q_idx - kv_idx)


def test_names_and_signatures() -> None:
    assert attn_mlir.flex_attention is flex_attention and attn_mlir.create_block_mask is not create_block_mask
    assert set(torch_flex.__all__) <= set(flex.__all__)
    for name in ("flex_attention", "create_block_mask", "create_mask", "noop_mask", "and_masks", "or_masks"):
        mine, theirs = (inspect.signature(getattr(module, name)).parameters for module in (flex, torch_flex))
        assert [(p.name, p.default, p.kind) for p in mine.values()] == [(p.name, p.default, p.kind) for p in theirs.values()]


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_auxiliary_outputs(dtype: torch.dtype) -> None:
    q, k, v = qkv(dtype=dtype, requires_grad=True)
    mask = create_block_mask(lambda b, h, q_idx, kv_idx: (q_idx >= kv_idx) & (q_idx != 5), None, None, 37, 37)
    wanted, wanted_lse, greatest = dense(*(x.detach() for x in (q, k, v)), mask_mod=mask.mask_mod)
    tolerance = 2e-2 if dtype == torch.bfloat16 else 2e-5
    for call in (flex_attention, compiled(flex_attention)):
        o, aux = call(q, k, v, block_mask=mask, return_aux=AuxRequest(lse=True, max_scores=True))
        assert type(aux).__name__ == "AuxOutput"
        for result, expected in ((o, wanted), (aux.lse, wanted_lse), (aux.max_scores, greatest)):
            compare(result, expected, tolerance)
        kept = torch.float64 if dtype == torch.float64 else torch.float32
        assert (o.dtype, aux.lse.dtype, aux.max_scores.dtype) == (dtype, kept, kept)
        assert aux.lse.requires_grad and not aux.max_scores.requires_grad
        assert aux.lse[0, 0, 5] == aux.max_scores[0, 0, 5] == -torch.inf
        if dtype == torch.bfloat16:
            return
        (grad,) = torch.autograd.grad(o.sum() + aux.lse[:, :, 6:].sum(), (q,))
        assert grad.isfinite().all() and (grad[:, :, 5] == 0).all()
        with torch.no_grad():
            _, none = call(q, k, v, block_mask=mask, return_aux=AuxRequest())
            assert none == AuxOutput(None, None)
    with torch.no_grad():
        for asked in (AuxRequest(lse=True), AuxRequest(max_scores=True)):
            _, only = flex_attention(q, k, v, block_mask=mask, return_aux=asked)
            for wanted_one, name in zip(asked, ("lse", "max_scores"), strict=True):
                found = getattr(only, name)
                assert found is None if not wanted_one else torch.equal(found, getattr(aux, name))


def test_return_lse() -> None:
    q, k, v = qkv()
    attention._WARNINGS_SHOWN.clear()
    with pytest.warns(FutureWarning, match="return_lse is deprecated"):
        _, lse = flex_attention(q, k, v, return_lse=True)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        flex_attention(q, k, v, return_lse=True)
    compare(lse, dense(q, k, v)[1])
    with pytest.raises(ValueError, match="Cannot specify both return_lse and return_aux"):
        flex_attention(q, k, v, return_lse=True, return_aux=AuxRequest(lse=True))


def test_parts_of_a_row_are_merged_by_their_lse() -> None:
    """What is near and what is far, each with its lse, give the whole, and its gradients; rows that see nothing far among them."""
    q, k, v = qkv(sq=96, requires_grad=True)
    parts = [lambda b, h, m, n: (m >= n) & (m - n <= 20), lambda b, h, m, n: (m >= n) & (m - n > 20)]
    results = [
        flex_attention(q, k, v, block_mask=create_block_mask(part, None, None, 96, 96), return_aux=AuxRequest(lse=True)) for part in parts
    ]
    (near, near_lse), (far, far_lse) = ((o, aux.lse) for o, aux in results)
    both = torch.stack([near_lse, far_lse]).softmax(0)[..., None]
    o = near * both[0] + far * both[1]
    wanted = dense(q, k, v, mask_mod=causal)[0]
    compare(o, wanted)
    upstream = torch.randn_like(o)
    grads = torch.autograd.grad(o, (q, k, v), upstream)
    for mine, theirs in zip(grads, torch.autograd.grad(wanted, (q, k, v), upstream.double()), strict=True):
        compare(mine, theirs, 5e-5)


def test_grouped_heads_scale_and_one_batch_of_keys() -> None:
    mask = create_block_mask(causal, 3, 1, 37, 53)
    q, k, v = qkv(b=3, h=8, hkv=2, sq=37, skv=53, bkv=1)
    call = functools.partial(flex_attention, block_mask=mask, enable_gqa=True, scale=0.3)
    compare_all(call, q, k, v, mask_mod=causal, scale=0.3)
    with torch.no_grad():
        compare(compiled(call, dynamic=True)(q, k, v), dense(q, k, v, mask_mod=causal, scale=0.3)[0])
    inputs = qkv(h=12, hkv=2, sq=1, skv=53)
    compare(flex_attention(*inputs, enable_gqa=True), dense(*inputs)[0])


ERRORS = {
    "same embedding dimension but got E=16 and E=8": (ValueError, {"k": (2, 4, 9, 8)}),
    "same number of heads but got Hq=4 and Hkv=2. Try setting enable_gqa=True": (ValueError, {"k": (2, 2, 9, 16), "v": (2, 2, 9, 16)}),
    "multiple of kv heads for GQA but got Hq=4 and Hkv=3": (ValueError, {"k": (2, 3, 9, 16), "v": (2, 3, 9, 16), "enable_gqa": True}),
    "or non-none block_mask, but got block_mask=None, Bq=2, and Bkv=1": (ValueError, {"k": (1, 4, 9, 16), "v": (1, 4, 9, 16)}),
    "but got Bq=2, Bkv=1, B_block_mask=1": (
        ValueError,
        {"k": (1, 4, 9, 16), "v": (1, 4, 9, 16), "block_mask": create_block_mask(causal, None, None, 9, 9)},
    ),
    "but got Bq=2, Bkv=3, B_block_mask=3": (
        ValueError,
        {"k": (3, 4, 9, 16), "v": (3, 4, 9, 16), "block_mask": create_block_mask(causal, 3, None, 9, 9)},
    ),
    "but got q_len=9 and kv_len=9. As the block mask was created for a larger length than you're using it for, you can either 1. create a "
    "new block mask with the correct length, or 2. 'adjust' the existing block mask to the correct length by calling "
    "block_mask._adjust(q_len, kv_len). This essentially 'crops' the block mask to the upper left corner, which does not work for all "
    "mask_mods!": (ValueError, {"block_mask": create_block_mask(causal, None, None, 12, 9)}),
    "NYI: query, key, and value must be 4D tensors": (NotImplementedError, {"q": (4, 9, 16), "k": (4, 9, 16), "v": (4, 9, 16)}),
    "to all be  at least 2 dimensional, but got query.dim: 1": (ValueError, {"q": (16,)}),
    "same device type, but got query.device: cpu, key.device: meta": (ValueError, {"k": torch.empty(2, 4, 9, 16, device="meta")}),
    "BACKEND cannot be combined with legacy FORCE_USE_FLEX_ATTENTION": (
        RuntimeError,
        {"kernel_options": {"BACKEND": "TRITON", "FORCE_USE_FLEX_ATTENTION": True}},
    ),
    "same embedding dimension but got E=16 and E=3": (ValueError, {"q": (9, 16), "k": (9, 3), "v": (9, 16)}),
    "Bq and Bkv must broadcast. Got Bq=3 and Bkv=2": (
        RuntimeError,
        {"q": (3, 4, 9, 16), "block_mask": create_block_mask(causal, 3, None, 9, 9)},
    ),
    "OUTPUT_LOGSUMEXP must not be in kernel_options": (AssertionError, {"kernel_options": {"OUTPUT_LOGSUMEXP": True}}),
    "Returning max scores is not supported with BACKEND='FLASH'": (
        NotImplementedError,
        {"kernel_options": {"BACKEND": "FLASH"}, "return_aux": AuxRequest(max_scores=True)},
    ),
    "Invalid BACKEND value 'INVALID'": (ValueError, {"kernel_options": {"BACKEND": "INVALID"}}),
}


@pytest.mark.parametrize("told", ERRORS)
def test_errors_are_torchs(told: str) -> None:
    kind, given = ERRORS[told]
    arguments: dict[str, Any] = dict(given)
    inputs = []
    for name in "qkv":
        shape = arguments.pop(name, (2, 4, 9, 16))
        inputs.append(shape if isinstance(shape, torch.Tensor) else torch.randn(shape))
    with pytest.raises(kind) as mine:
        flex_attention(*inputs, **arguments)
    with pytest.raises(kind) as theirs:
        torch_flex.flex_attention(*inputs, **arguments)
    assert told in str(mine.value) and told in str(theirs.value)


def test_nested_tensors_are_refused() -> None:
    nested = torch.nested.nested_tensor([torch.randn(4, 9, 16), torch.randn(4, 5, 16)], layout=torch.jagged)
    with pytest.raises(NotImplementedError, match="flex_attention does not support NestedTensor inputs"):
        flex_attention(nested, nested, nested)


def test_kernel_options_change_nothing() -> None:
    q, k, v = qkv()
    o = flex_attention(q, k, v)
    for options in ({"BLOCK_M": 64, "BLOCK_N": 64}, {"BACKEND": "TRITON_DECODE"}, {"USE_TMA": True, "fwd_num_warps": 8}, {}):
        assert torch.equal(flex_attention(q, k, v, kernel_options=options), o)
        assert torch.equal(compiled(flex_attention)(q, k, v, kernel_options=options), o)


def test_keys_of_another_dtype() -> None:
    q, k, v = qkv(sq=8, skv=53)
    low = [x.bfloat16().requires_grad_() for x in (k, v)]
    o = flex_attention(q, *low)
    assert o.dtype == torch.float32
    compare(o, dense(q, *low)[0])
    o.sum().backward()
    assert all(x.grad is not None and x.grad.dtype == torch.bfloat16 for x in low)
    scales = [x.abs().amax((-2, -1)) / 448.0 for x in (k, v)]
    eighth = [(x / s[..., None, None]).to(torch.float8_e4m3fn) for x, s in zip((k, v), scales, strict=True)]
    o = flex_attention(q, *eighth, score_mod=lambda score, b, h, m, n: score * scales[0][b, h]) * scales[1][..., None, None]
    error = (o - dense(q, k, v)[0]).norm() / o.norm()
    assert error < 0.1


ORDERS = {"bhsd": (0, 1, 2, 3), "bshd": (0, 2, 1, 3), "sbhd": (1, 2, 0, 3)}


@pytest.mark.parametrize("order", ORDERS)
def test_orders_of_memory(order: str) -> None:
    """o has that of query, and so have gradients; any strides of key and value are read."""
    made = [torch.randn([(2, 4, 37, 16)["bhsd".index(letter)] for letter in order]) for _ in range(3)]
    q, k, v = (x.permute(ORDERS[order]).requires_grad_() for x in made)
    for call in (flex_attention, compiled(flex_attention)):
        o = call(q, k, v)
        assert o.stride() == q.stride() and torch.equal(o, flex_attention(*(x.detach().contiguous() for x in (q, k, v))))
        for leaf, grad in zip((q, k, v), torch.autograd.grad(o.square().sum(), (q, k, v)), strict=True):
            assert grad.stride() == leaf.stride()


def test_odd_strides() -> None:
    """Columns that do not lie side by side, offsets, rows that have more memory than they need, shared dimensions."""
    q, k, v = qkv()
    o = flex_attention(q, k, v)
    assert torch.equal(flex_attention(*(x.mT.contiguous().mT for x in (q, k, v))), o)
    memory = torch.randn(3, 2 * 4 * 60 * 20)
    strides = [((2400, 600, 17, 1), 5), ((68, 17, 272, 1), 3), ((1, 17, 150, 1), 7)]
    views = [torch.as_strided(row, (2, 4, 37, 16), *place) for row, place in zip(memory, strides, strict=True)]
    compare(flex_attention(*views), dense(*views)[0])


def test_every_order_of_memory() -> None:
    """The output has query's, as torch's has, whatever it is; columns lie side by side."""
    _, k, v = qkv()
    for order in itertools.permutations(range(4)):
        inverse = [order.index(i) for i in range(4)]
        q = torch.randn([(2, 4, 37, 16)[i] for i in order]).permute(inverse)
        outer = [i for i in order if i < 3]
        wanted = dense(q, k, v)[0].permute(*outer, 3).contiguous().permute([*[outer.index(i) for i in range(3)], 3])
        o = flex_attention(q, k, v)
        assert o.stride() == wanted.stride()
        compare(o, wanted)
    q = torch.randn(4, 2, 37, 16).transpose(0, 1)
    assert compiled(flex_attention)(q, k, v).stride() == q.stride()


def test_autocast() -> None:
    """It casts as torch's does, and not float64."""
    q, k, v = qkv()
    for dtype, kept in ((torch.float32, torch.bfloat16), (torch.float16, torch.bfloat16), (torch.float64, torch.float64)):
        with torch.autocast("cpu", torch.bfloat16):
            o = flex_attention(*(x.to(dtype) for x in (q, k, v)))
            assert o.dtype == torch_flex.flex_attention(*(x.to(dtype) for x in (q, k, v))).dtype == kept
        compare(o, dense(q, k, v)[0], 2e-2)


def test_one_batch_of_values() -> None:
    q, k, v = qkv()
    compare(flex_attention(q, k, v[:1]), dense(q, k, v[:1])[0])


def test_no_queries_and_no_keys() -> None:
    """torch refuses them."""
    q, k, v = qkv(sq=0, skv=5)
    assert flex_attention(q, k, v).shape == (2, 4, 0, 16)
    q, k, v = qkv(sq=5, skv=0)
    o, aux = flex_attention(q, k, v, relative, return_aux=AuxRequest(lse=True, max_scores=True))
    assert (o == 0).all() and (aux.lse == -torch.inf).all() and (aux.max_scores == -torch.inf).all()
    o, aux = flex_attention(q, k, v, block_mask=create_block_mask(causal, None, None, 5, 0), return_aux=AuxRequest(lse=True))
    assert (o == 0).all() and (aux.lse == -torch.inf).all()


@pytest.mark.parametrize("call", [flex_attention, compiled(flex_attention)], ids=["eager", "compiled"])
def test_gradcheck(call: Any) -> None:
    table = torch.rand(2, dtype=torch.float64)
    q, k, v = qkv(b=1, h=2, sq=7, d=4, dtype=torch.float64, requires_grad=True)

    def function(q: Any, k: Any, v: Any) -> Any:
        o, aux = call(q, k, v, lambda score, b, h, m, n: torch.sin(score) * table[h], return_aux=AuxRequest(lse=True))
        return o, aux.lse

    assert torch.autograd.gradcheck(function, (q, k, v))


def test_lengths_that_change_compile_nothing() -> None:
    """The mask, the captured tensor and the batch change with the length; one graph serves all, forward and backward."""
    counter = CompileCounterWithBackend("eager")

    def call(q: Any, k: Any, v: Any, mask: Any, bias: Any) -> Any:
        return flex_attention(q, k, v, lambda score, b, h, m, n: score + bias[m], mask)

    graph = torch.compile(call, fullgraph=True, dynamic=True, backend=counter)
    for batch, length in ((2, 37), (4, 53), (3, 130), (5, 256)):
        q, k, v = qkv(b=batch, sq=length, requires_grad=True)
        bias = torch.randn(length, requires_grad=True)
        mask = create_block_mask(causal, batch, None, length, length)
        o, wanted = graph(q, k, v, mask, bias), dense(q, k, v, lambda score, b, h, m, n, bias=bias: score + bias[m], causal)[0]
        compare(o, wanted)
        for mine, theirs in zip(torch.autograd.grad(o.sum(), (q, bias)), torch.autograd.grad(wanted.sum(), (q, bias)), strict=True):
            compare(mine, theirs, 5e-5)
    assert counter.frame_count == 1


def test_the_mask_is_made_in_the_graph() -> None:
    """Of lengths that the graph leaves open, in Python's arithmetic; of captured tensors; with functools.partial."""
    counter = CompileCounterWithBackend("eager")

    def padding(b: Any, h: Any, q_idx: Any, kv_idx: Any, lengths: Any) -> Any:
        return kv_idx < lengths[b]

    def run(q: Any, k: Any, v: Any, lengths: Any) -> Any:
        limit = (q.shape[2] // 32 + k.shape[2] // 32) * 16
        mask = create_block_mask(lambda b, h, q_idx, kv_idx: q_idx < limit, q.shape[0], q.shape[1], q.shape[2], k.shape[2], device=q.device)
        padded = create_block_mask(functools.partial(padding, lengths=lengths), q.shape[0], None, q.shape[2], k.shape[2], device=q.device)
        return flex_attention(q, k, v, block_mask=mask) + flex_attention(q.sin(), k, v, block_mask=padded).cos()

    graph = torch.compile(run, fullgraph=True, dynamic=True, backend=counter)
    for sq, skv in ((192, 128), (160, 96), (64, 70)):
        q, k, v = qkv(b=2, h=2, sq=sq, skv=skv)
        lengths = torch.tensor([5, skv])
        compare(graph(q, k, v, lengths), run(q, k, v, lengths).double())
        limit = (sq // 32 + skv // 32) * 16
        wanted = dense(q, k, v, mask_mod=lambda b, h, m, n, limit=limit: m < limit)[0]
        padded = dense(q.sin(), k, v, mask_mod=functools.partial(padding, lengths=lengths))[0]
        compare(run(q, k, v, lengths), wanted + padded.cos())
    assert counter.frame_count == 1


def test_modules_of_several_calls() -> None:
    """What models do: a bias that is computed, buffers, several masks and score functions in one graph, transposed projections."""

    class Model(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.qkv = torch.nn.Linear(32, 96)
            self.register_buffer("positions", torch.randn(7, 8))

        def forward(self, x: Any, mask: Any, other: Any) -> Any:
            q, k, v = self.qkv(x).view(*x.shape[:2], 3, 4, 8).permute(2, 0, 3, 1, 4)
            bias = torch.einsum("bhqd,kd->bhqk", q, self.positions)

            def score_mod(score: Any, b: Any, h: Any, q_idx: Any, kv_idx: Any) -> Any:
                return score + bias[b, h, q_idx, kv_idx % 7]

            first = flex_attention(q, k, v, score_mod, mask)
            return flex_attention(first, k, v, relative, other).transpose(1, 2).flatten(2)

    model = Model()
    x = torch.randn(2, 48, 32, requires_grad=True)
    masks = [create_block_mask(causal, 1, None, 48, 48), create_block_mask(lambda b, h, m, n: (m - n).abs() < 9, None, None, 48, 48)]
    results = []
    for call in (model, torch.compile(model, fullgraph=True, backend="aot_eager")):
        o = call(x, *masks)
        results.append((o, *torch.autograd.grad(o.square().mean(), (x, model.qkv.weight))))
    for mine, theirs in zip(*results, strict=True):
        compare(mine, theirs.detach().double(), 1e-4)


def test_install() -> None:
    q, k, v = qkv(sq=20)
    before = torch_flex.flex_attention, torch_flex.create_block_mask
    try:
        with pytorch.install():
            assert torch_flex.flex_attention is flex_attention and torch_flex.create_block_mask is create_block_mask
            mask = torch_flex.create_block_mask(causal, None, None, 20, 20)
            assert isinstance(mask, torch_flex.BlockMask) and isinstance(mask, flex.BlockMask)
            o = torch.nn.attention.flex_attention.flex_attention(q, k, v, block_mask=mask)
            compare(o, dense(q, k, v, mask_mod=causal)[0])
            pytorch.install()
        assert (torch_flex.flex_attention, torch_flex.create_block_mask) == before
        globals()["theirs"] = torch_flex.flex_attention
        pytorch.install([__name__])
        assert globals()["theirs"] is flex_attention
        with pytest.raises(attn_mlir.ArgumentError, match="is not imported"):
            pytorch.install(["no.such.module"])
    finally:
        pytorch.uninstall()
    assert globals().pop("theirs") is before[0]


def test_torch_takes_our_masks() -> None:
    q, k, v = qkv(h=2, sq=40)
    mask = create_block_mask(causal, None, None, 40, 40, BLOCK_SIZE=16)
    compare(torch_flex.flex_attention(q, k, v, block_mask=mask), flex_attention(q, k, v, block_mask=mask).double())


def test_empty_masks_of_torch() -> None:
    q, k, v = qkv()
    for mask in (torch_flex._create_empty_block_mask(q, k), create_block_mask(noop_mask, None, None, 37, 37)):
        compare(flex_attention(q, k, v, block_mask=mask), dense(q, k, v)[0])
