"""kv_shared=True: latent attention, whose keys are values and more columns for positions."""

import warnings
from typing import Any

import pytest
import torch

import engine_helpers as eh
from attn_mlir import AttentionEngine, CustomIO, Identity, OnlineSoftmax, meta_tensor
from attn_mlir.errors import ArgumentError, PerformanceWarning, UnsupportedError

B, H, S = 2, 6, 70


def meta(latent: int, rope: int, dtype: torch.dtype = torch.float32, queries: int = 1) -> tuple[Any, ...]:
    dims = ((H, queries, latent + rope), (1, S, latent + rope), (1, S, latent))
    return tuple(meta_tensor(B, h, s, d, dtype=dtype) for h, s, d in dims)


def engine(latent: int, rope: int, custom: CustomIO | None = None, **options: Any) -> AttentionEngine:
    def score_mod(score: Any, custom_fwd_inputs: Any, b: Any, h: Any, q_idx: Any, kv_idx: Any) -> Any:
        score = score * (latent + rope) ** -0.5
        return score + custom_fwd_inputs.input_tensors["bias"] * kv_idx if custom else score

    made = {"online_func": OnlineSoftmax(), **options}
    return AttentionEngine(meta(latent, rope, made.pop("dtype", torch.float32)), custom, score_mod, kv_shared=True, **made)


def inputs(latent: int, rope: int, dtype: torch.dtype = torch.float32) -> list[torch.Tensor]:
    """q, q_pe, KV and k_pe."""
    generator = torch.Generator().manual_seed(0)
    shapes = ((B, 1, H, latent), (B, 1, H, rope), (B, S, 1, latent), (B, S, 1, rope))
    return [torch.randn(*shape, generator=generator).to(dtype) for shape in shapes]


def reference(q: Any, q_pe: Any, kv: Any, k_pe: Any, bias: Any = 0.0) -> tuple[torch.Tensor, torch.Tensor]:
    """o and lse."""
    q, k = torch.cat((q, q_pe), -1), torch.cat((kv, k_pe), -1)
    s = torch.einsum("bqhd,bkd->bhqk", q, k[:, :, 0]) * q.shape[-1] ** -0.5 + bias * torch.arange(S)
    return torch.einsum("bhqk,bkd->bqhd", s.softmax(-1), kv[:, :, 0]), s.logsumexp(-1)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
def test_the_sizes_of_deepseek(dtype: torch.dtype) -> None:
    given = inputs(512, 64, dtype)
    mod = engine(512, 64, dtype=dtype)
    known, lse = reference(*(x.double() for x in given))
    tolerance = 2e-5 if dtype == torch.float32 else 2e-3
    cache = torch.cat(given[2:], -1)
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # nothing is copied
        eh.check(mod(*given[:2], cache[..., :512], cache[..., 512:]), known, tolerance)
        o, rows = mod(torch.cat(given[:2], -1), cache.reshape(B * 7, 10, 1, 576))
    eh.check(o, known, tolerance)
    torch.testing.assert_close(rows.double(), lse, rtol=1e-4, atol=1e-4)


def test_gradients_and_custom_inputs() -> None:
    leaves, bias = [x.requires_grad_() for x in inputs(32, 8)], torch.randn(H, 1, 1) * 0.1
    mod = engine(32, 8, CustomIO({"bias": ("heads",)}))
    exact = [x.detach().double().requires_grad_() for x in leaves]
    o, known = mod(*leaves, bias.flatten()), reference(*exact, bias=bias.double())[0]
    eh.check(o, known)
    wanted = torch.autograd.grad(known.square().sum(), exact)
    for x, y in zip(torch.autograd.grad(o.square().sum(), leaves), wanted, strict=True):
        eh.check(x, y)
    compiled = torch.compile(mod, fullgraph=True, backend="aot_eager")
    torch.testing.assert_close(compiled(*leaves, bias.flatten()), o)


def test_copies_are_told() -> None:
    mod, given = engine(32, 8), inputs(32, 8)
    with pytest.warns(PerformanceWarning, match="copies kv and k_pe into one tensor.* kv, k_pe = cache.*:32.*32:"):
        eh.check(mod(*given), reference(*(x.double() for x in given))[0])
    cache = torch.cat(given[2:], -1)
    for apart in (cache[:, :, :, 8:], cache[..., :32].clone()):  # beside something else
        with pytest.warns(PerformanceWarning, match="copies"):
            eh.check(mod(*given[:2], apart, cache[..., 32:]), reference(given[0], given[1], apart, cache[..., 32:])[0].double())


def test_mistakes() -> None:
    q, q_pe, kv, k_pe = inputs(32, 8)
    mod = engine(32, 8)
    cases = [
        ((q, q_pe, kv), "the call passes 3 tensors: kv_shared=True takes .q, q_pe, kv, k_pe, .custom."),
        ((q, q_pe, kv, k_pe[:, :9]), "k_pe has shape .2, 9, 1, 8. but kv has .2, 70, 1, 32.: only the last size may differ"),
        ((q, q_pe.half(), kv, k_pe), "q_pe is torch.float16 on cpu but q is torch.float32 on cpu"),
        ((q[..., :20], q_pe, kv, k_pe), "head dimensions are q 20, q_pe 8, kv 32, k_pe 8; q and kv must have that of v in qkv_meta, 32"),
        ((q, q_pe, kv[0], k_pe), "kv must have 4 dimensions"),
        ((q, 3, kv, k_pe), "q_pe must be a torch.Tensor, got int"),
        ((torch.cat((q, q_pe), -1), torch.zeros(3, 10, 1, 40)), "kv_cache has 3 pages, which 2 batches cannot share evenly"),
        ((q, torch.zeros(2, 10, 1, 8)), "kv_cache has head dimension 8, less than the 32 of v"),
    ]
    for arguments, text in cases:
        with pytest.raises(ArgumentError, match=text):
            mod(*arguments)
    with pytest.raises(ArgumentError, match=r"returns .o, lse., but Identity has no row output `lse`"):
        engine(32, 8, online_func=Identity())(torch.cat((q, q_pe), -1), torch.zeros(B * 7, 10, 1, 40))


def test_devices_say_what_they_cannot() -> None:
    given = inputs(512, 64, torch.float16)
    cache = torch.cat(given[2:], -1)
    mod = engine(512, 64, dtype=torch.float16, device="cuda-emulated")
    with pytest.raises(UnsupportedError, match="q has head dimension 576, and kernels for NVIDIA GPUs take up to 256"):
        mod(*given[:2], cache[..., :512], cache[..., 512:])


def test_other_layouts_are_refused() -> None:
    with pytest.raises(ArgumentError, match=r"kv_shared=True takes layout=.bshd., got 'bhsd'"):
        engine(32, 8, layout="bhsd")
