"""Attention on an NVIDIA GPU: numbers against the dense formula in float64, and against the CPU."""

from typing import Any

import pytest
import torch

import attn_mlir
from attn_mlir import attention, masks
from attn_mlir.backends.nvidia import driver as nvidia
from gpu_cases import CASES, DTYPES, GPU, Sizes, causal, check, failures, formula, heads, inputs, learning, ours, qkv, results

SIZES = (Sizes(), Sizes(1, 6, 2, 129, 257, 128, 128), Sizes(1, 2, 2, 512, 512), Sizes(1, 2, 1, 333, 77, 128, 64))


@pytest.mark.parametrize("name", ["causal softmax", "relu normalized", "learned slopes"])
def test_the_rule_itself(name: str) -> None:
    """On the CPU, so that it is tested everywhere."""
    check(CASES[name], Sizes(sq=37, skv=53, d=16, dv=24), torch.float16, "cpu")
    zeros, ones = [torch.zeros(3)], [torch.ones(3)]
    assert failures(zeros, ones, ones, 2.0, ["o"]) and not failures(ones, ones, ones, 2.0, ["o"])


class TestNumbers:
    pytestmark = GPU

    @pytest.mark.parametrize("dtype", DTYPES, ids=str)
    @pytest.mark.parametrize("name", CASES)
    def test_against_the_dense_formula(self, name: str, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("ATTN_MLIR_STRICT", "1")
        check(CASES[name], SIZES[list(CASES).index(name) % len(SIZES)], dtype)

    @pytest.mark.parametrize(("d", "dv"), [(16, 16), (32, 64), (80, 96), (100, 36), (192, 128), (128, 256), (256, 256)])
    def test_head_dimensions(self, d: int, dv: int, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("ATTN_MLIR_STRICT", "1" if max(d, dv) <= 128 and d % 8 == dv % 8 == 0 else "0")
        check(CASES["causal softmax"], Sizes(1, 4, 2, 150, 150, d, dv), torch.float16)

    @pytest.mark.parametrize(("sq", "skv"), [(1, 1), (1, 1000), (17, 1), (127, 129), (128, 128), (1000, 64), (2049, 2049)])
    def test_lengths(self, sq: int, skv: int, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("ATTN_MLIR_STRICT", "1")
        for name in ("softmax", "causal softmax"):
            check(CASES[name], Sizes(1, 2, 1, sq, skv), torch.bfloat16)

    @pytest.mark.parametrize("name", ["causal softmax", "learned slopes", "gated", "layer norm"])
    def test_as_on_the_cpu(self, name: str) -> None:
        case, sizes, dtype = CASES[name], Sizes(sq=150, skv=190), torch.float16
        leaves = inputs(case, sizes, dtype)
        here = results(ours(case, sizes), leaves)
        there = [x.cpu() for x in results(ours(case, sizes), [x.cuda() for x in leaves])]
        eager = results(formula(case, sizes), [x.to(dtype) for x in leaves])
        exact = results(formula(case, sizes), [x.double() for x in leaves])
        names = ["o", "dq", "dk", "dv", *case.tensors(sizes)]
        assert not failures(there, eager, exact, case.factor, names) | failures(here, eager, exact, case.factor, names)
        apart = failures(there, eager, [x.double() for x in here], 2 * case.factor, names)
        assert not apart, apart

    def test_lengths_compile_nothing_new(self) -> None:
        run = attn_mlir.Attention(mask_mod=masks.sliding_window(40))
        run(*qkv(s=100))
        run(*qkv(1, 8, 1, 100))  # heads that share keys are packed under windows of few keys: a form of its own
        before = len(nvidia._PROGRAMS)
        for b, hq, hkv, s in ((1, 2, 2, 5), (3, 6, 2, 257), (1, 8, 1, 1000)):
            run(*qkv(b, hq, hkv, s))
        assert len(nvidia._PROGRAMS) == before

    @pytest.mark.parametrize("layout", ["bhsd", "bshd"])
    def test_strides(self, layout: str) -> None:
        case, sizes = CASES["causal softmax"], Sizes(2, 4, 4, 130, 130)
        leaves = [x.cuda() for x in inputs(case, sizes, torch.float16)]
        expected = ours(case, sizes)(*leaves)
        wide = [torch.cat([x, x], -1)[..., : x.shape[-1]] for x in leaves]
        columns = [x.mT.contiguous().mT for x in leaves]
        offset = [torch.cat([x.flatten()[:1], x.flatten()])[1:].view(x.shape) for x in leaves]
        for changed in (wide, columns, offset, [x.transpose(1, 2).contiguous().transpose(1, 2) for x in leaves]):
            given = [x.transpose(1, 2) for x in changed] if layout == "bshd" else changed
            o = attention(given[0], given[1], given[2], mask_mod=causal, layout=layout)
            assert torch.equal(o.transpose(1, 2) if layout == "bshd" else o, expected)

    def test_lse_and_states(self) -> None:
        q, k, v = qkv(s=200)
        o, lse = attention(q, k, v, mask_mod=causal, return_lse=True)
        s = q.double() @ k.double().repeat_interleave(2, 1).mT / 8
        s = s.masked_fill(torch.ones(200, 200, device="cuda").triu(1).bool(), -torch.inf)
        torch.testing.assert_close(lse.double(), s.logsumexp(-1), rtol=1e-4, atol=1e-4)
        assert o.dtype == torch.float16 and lse.dtype == torch.float32

    def test_rows_without_keys(self) -> None:
        q, k, v = learning(qkv(s=150))
        o, lse = attention(q, k, v, mask_mod=lambda b, h, i, j: (i >= j) & (i >= 70), return_lse=True)
        assert not o[:, :, :70].any() and (lse[:, :, :70] == -torch.inf).all() and lse[:, :, 70:].isfinite().all()
        gradients = torch.autograd.grad(o.float().sum(), (q, k, v))
        assert all(g.isfinite().all() for g in gradients) and not gradients[0][:, :, :70].any()

    @pytest.mark.parametrize(("b", "sq", "skv"), [(0, 5, 5), (1, 0, 5), (1, 5, 0)])
    def test_empty(self, b: int, sq: int, skv: int) -> None:
        q, k = heads(b, 2, sq, 64).requires_grad_(), heads(b, 2, skv, 64).requires_grad_()
        o, lse = attention(q, k, k, return_lse=True)
        assert o.shape == q.shape and not o.any() and (lse == -torch.inf).all()
        assert not torch.autograd.grad(o.sum(), q)[0].any()

    def test_a_mask_of_documents(self) -> None:
        ids = torch.tensor([0] * 70 + [1] * 100 + [2] * 30, device="cuda")
        q, k, v = qkv(s=200)
        o = attention(q, k, v, mask_mod=masks.document(ids))
        want = torch.nn.functional.scaled_dot_product_attention(q, k, v, attn_mask=ids[:, None] == ids, enable_gqa=True)
        torch.testing.assert_close(o, want, rtol=1e-2, atol=4e-3)

    @pytest.mark.parametrize("name", ["causal softmax", "learned slopes"])
    def test_tangents(self, name: str) -> None:
        case, sizes = CASES[name], Sizes(1, 4, 2, 140, 140)
        leaves = [x.cuda() for x in inputs(case, sizes, torch.float16)]
        directions = [x.cuda().to(y) for x, y in zip(inputs(case, sizes, torch.float16, seed=3), leaves, strict=True)]

        def jvp(run: Any, dtype: torch.dtype | None) -> list[torch.Tensor]:
            cast = [tuple(x if dtype is None else x.to(dtype) for x in xs) for xs in (leaves, directions)]
            return list(torch.func.jvp(run, *cast))

        got, eager, exact = jvp(ours(case, sizes), None), jvp(formula(case, sizes), torch.float16), jvp(formula(case, sizes), torch.float64)
        wrong = failures(got, eager, exact, 3.0, ["o", "tangent"])
        assert not wrong, wrong

    def test_second_derivatives(self) -> None:
        case, sizes = CASES["causal softmax"], Sizes(1, 2, 2, 100, 100)
        leaves = [x.cuda() for x in inputs(case, sizes, torch.float16)]

        def second(run: Any, dtype: torch.dtype) -> list[torch.Tensor]:
            given = [x.to(dtype).requires_grad_() for x in leaves]
            first = torch.autograd.grad(run(*given).float().square().sum(), given, create_graph=True)
            return list(torch.autograd.grad(torch.stack([g.float().square().sum() for g in first]).sum(), given))

        runs = [(ours(case, sizes), torch.float16), (formula(case, sizes), torch.float16), (formula(case, sizes), torch.float64)]
        got, eager, exact = [second(*run) for run in runs]
        wrong = failures(got, eager, exact, 3.0, ["q", "k", "v"])
        assert not wrong, wrong
