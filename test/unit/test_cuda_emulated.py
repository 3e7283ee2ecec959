"""`device="cuda-emulated"`: scheduled kernels for Hopper through the public API, run by the evaluator; the reference is float64."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

import attn_mlir
from attn_mlir import ArgumentError, AttentionEngine, OnlineSoftmax, UnsupportedError, attention, masks, meta_tensor, rows
from attn_mlir.backends.nvidia.emulation import driver
from attn_mlir.backends.nvidia.emulation import kernel as emulation
from attn_mlir.reference.warp import Fault

DEVICE, AMPERE = "cuda-emulated", "cuda-emulated-sm80"
CAUSAL = masks.causal()


def tensors(*shapes: tuple[int, ...], dtype: torch.dtype = torch.float16) -> list[torch.Tensor]:
    return [torch.randn(shape).to(dtype) for shape in shapes]


def check(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, atol: float = 4e-3, device: str = DEVICE, **options: Any) -> None:
    """Compares with float64 on the CPU, relative to the largest element."""
    got = attention(q, k, v, device=device, **options)
    wanted = attention(q.double(), k.double(), v.double(), device="cpu", **options)
    results = list(zip(got, wanted, strict=True)) if isinstance(got, tuple) else [(got, wanted)]
    for mine, theirs in results:
        assert mine.dtype == q.dtype or mine.dtype == torch.float32
        torch.testing.assert_close(mine.double(), theirs.double(), rtol=0, atol=atol * max(1.0, float(theirs.abs().max())))


@pytest.mark.parametrize("device", [DEVICE, AMPERE])
@pytest.mark.parametrize("length", [1, 17, 127])
def test_causal_lengths(length: int, device: str) -> None:
    q, k, v = tensors(*[(1, 2, length, 64)] * 3)
    check(q, k, v, mask_mod=CAUSAL, device=device)


@pytest.mark.parametrize("device", [DEVICE, AMPERE])
def test_grouped_heads_batches_and_fewer_keys_than_queries(device: str) -> None:
    q, k, v = tensors((2, 4, 200, 64), (2, 2, 40, 64), (2, 2, 40, 64))
    check(q, k, v, mask_mod=CAUSAL, return_lse=True, device=device)


@pytest.mark.parametrize("device", [DEVICE, AMPERE])
def test_wider_rows_in_bf16(device: str) -> None:
    q, k, v = tensors(*[(1, 1, 150, 128)] * 3, dtype=torch.bfloat16)
    check(q, k, v, atol=2e-2, device=device)


def test_a_thousand_positions_on_ampere() -> None:
    q, k, v = tensors(*[(1, 1, 1000, 64)] * 3)
    check(q, k, v, mask_mod=CAUSAL, device=AMPERE)


def test_rows_that_fill_shared_memory_on_ampere() -> None:
    """Blocks of 64 queries and 32 keys."""
    q, k, v = tensors(*[(1, 1, 70, 256)] * 3)
    check(q, k, v, mask_mod=CAUSAL, device=AMPERE)


def test_layouts_and_strides() -> None:
    q, k, v = (x.transpose(1, 2) for x in tensors(*[(1, 2, 40, 64)] * 3))
    o = attention(q, k, v, mask_mod=CAUSAL, layout="bshd", device=DEVICE)
    q, k, v = (x.transpose(1, 2) for x in (q, k, v))
    assert torch.equal(o.transpose(1, 2), attention(q, k, v, mask_mod=CAUSAL, device=DEVICE))


@pytest.mark.parametrize("device", [DEVICE, AMPERE])
@pytest.mark.parametrize("form", ["element", "scalar", "mask"])
def test_a_captured_number_without_a_position_is_read_once(form: str, device: str) -> None:
    """Where the whole kernel sees it, before there are roles."""
    q, k, v = tensors(*[(1, 2, 40, 64)] * 3)
    vector, scalar, seen = torch.tensor([1.7]), torch.tensor(1.7), torch.tensor(30)
    mods: dict[str, dict[str, Any]] = {
        "element": {"score_mod": lambda s, b, h, i, j: s * vector[0]},
        "scalar": {"score_mod": lambda s, b, h, i, j: s * scalar},
        "mask": {"mask_mod": lambda b, h, i, j: j < seen},
    }
    check(q, k, v, device=device, **mods[form])


def with_vector(values: torch.Tensor) -> Callable[..., Any]:
    def score_mod(s: Any, b: Any, h: Any, i: Any, j: Any) -> Any:
        return s + values[j]

    return score_mod


def test_captured_vector() -> None:
    values = torch.randn(150)
    q, k, v = tensors(*[(1, 2, 150, 64)] * 3)
    o = attention(q, k, v, score_mod=with_vector(values), device=DEVICE)
    wanted = ((q.double() @ k.double().mT / 8 + values.double()).softmax(-1) @ v.double()).to(o.dtype)
    torch.testing.assert_close(o, wanted, rtol=0, atol=4e-3)


def test_sigmoid_rows() -> None:
    q, k, v = tensors(*[(1, 1, 150, 64)] * 3)
    check(q, k, v, mask_mod=CAUSAL, row=rows.sigmoid)


@pytest.mark.parametrize("device", [DEVICE, AMPERE])
def test_documents(device: str) -> None:
    """A mask over captured document numbers: which blocks are read follows from the tensor."""
    document = torch.tensor([0] * 70 + [1] * 90 + [2] * 40, dtype=torch.int32)

    def mask(b: Any, h: Any, i: Any, j: Any) -> Any:
        return (document[i] == document[j]) & (i >= j)

    q, k, v = tensors(*[(1, 2, 200, 64)] * 3)
    check(q, k, v, mask_mod=mask, device=device)


@pytest.mark.parametrize("device", [DEVICE, AMPERE])
def test_dropout_has_the_bits_of_the_cpu(device: str) -> None:
    q, k, v = tensors(*[(1, 2, 70, 64)] * 3)
    check(q, k, v, mask_mod=CAUSAL, dropout_p=0.3, dropout_seed=(5, 3), device=device)


@pytest.mark.parametrize("device", [DEVICE, AMPERE])
def test_fully_masked_rows_give_zeros_and_masked_nan_does_not_count(device: str) -> None:
    """Rows below 20 see nothing; keys from 60 on are masked and NaN."""
    q, k, v = tensors(*[(1, 1, 90, 64)] * 3)

    def some(b: Any, h: Any, i: Any, j: Any) -> Any:
        return (j < 60) & (i >= 20)

    wanted = attention(q.double(), k.double(), v.double(), mask_mod=some, device="cpu")
    k[:, :, 60:] = torch.nan
    o = attention(q, k, v, mask_mod=some, device=device)
    assert (o[:, :, :20] == 0).all()
    torch.testing.assert_close(o.double(), wanted, rtol=0, atol=4e-3)


@pytest.mark.parametrize("device", [DEVICE, AMPERE])
def test_extreme_scores(device: str) -> None:
    q, k, v = tensors(*[(1, 1, 140, 64)] * 3)
    check(q * 100, k * 20, v, mask_mod=CAUSAL, device=device)


def test_engine() -> None:
    metas = tuple(meta_tensor("B", 2, "S", 64, dtype=torch.float16) for _ in range(3))
    q, k, v = tensors(*[(1, 33, 2, 64)] * 3)
    made = [AttentionEngine(metas, mask_mod=CAUSAL, online_func=OnlineSoftmax(), device=name)(q, k, v) for name in (DEVICE, "cpu")]
    torch.testing.assert_close(*made, rtol=0, atol=4e-3)


def test_compile() -> None:
    def call(q: torch.Tensor) -> torch.Tensor:
        return attention(q, q, q, mask_mod=CAUSAL, device=DEVICE) + 1

    (q,) = tensors((1, 2, 17, 64))
    with torch.no_grad():
        assert torch.equal(torch.compile(call, fullgraph=True, backend="aot_eager")(q), call(q))


@pytest.mark.parametrize(("shape", "options", "message"), [
    ((1, 1, 17, 36), {}, "rows of a multiple of 8 up to 256 elements fit swizzled tiles"),
    ((1, 1, 17, 64), {"key_mod": lambda x, *_: x * 2}, "computes a tile of other rows"),
], ids=["narrow", "keys that are computed"])  # fmt: skip
def test_what_is_not_formed_is_named(shape: tuple[int, ...], options: dict[str, Any], message: str) -> None:
    q, k, v = tensors(*[shape] * 3)
    with pytest.raises(UnsupportedError, match=message):
        attention(q, k, v, device=DEVICE, **options)


def test_report_shows_the_kernel_of_its_chip(tmp_path: Path) -> None:
    path = tmp_path / "report.html"
    attn_mlir.Attention(mask_mod=CAUSAL).report(path, device=AMPERE, dtype=torch.float16, binaries=False)
    text = path.read_text()
    assert "passes of the warp dialect for sm_80" in text and "warp.copy_lanes_async" in text and "warp.mbarrier" not in text


@pytest.mark.parametrize("length", [17, 130])
def test_linear_attention(length: int) -> None:
    q, k, v = tensors(*[(1, 1, length, 64)] * 3)
    wanted, _ = attn_mlir.retention_linear(q.double(), k.double(), v.double())
    found, _ = attn_mlir.retention_linear(q, k, v, device=DEVICE)
    assert (found.double() - wanted).norm() <= 2e-3 * wanted.norm()


def test_tensors_of_other_devices_are_refused() -> None:
    q, k, v = (tensor.to("meta") for tensor in tensors(*[(1, 1, 5, 64)] * 3))
    with pytest.raises(ArgumentError, match="meta"):
        attention(q, k, v, device=DEVICE)


@pytest.mark.parametrize("lost", ["warp.wait", "warp.arrive", "warp.named_arrive"])
def test_a_fault_of_a_kernel_reaches_the_caller(lost: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A kernel that lacks an op raises what is wrong, in a program of its own."""
    form = emulation.form

    def broken(function: Any) -> Any:
        text, code = form(function)
        lines = text.splitlines()
        place = [n for n, line in enumerate(lines) if f'"{lost}"(' in line][-1]
        return "\n".join(lines[:place] + lines[place + 1 :]), code

    monkeypatch.setattr(driver, "form", broken)
    q, k, v = tensors(*[(1, 1, 400, 64)] * 3)
    with pytest.raises(Fault, match=r"read before full|deadlock|overwritten"):
        attention(q, k, v, mask_mod=masks.sliding_window(200 + len(lost)), device=DEVICE)


@pytest.mark.parametrize("device", [DEVICE, AMPERE])
def test_gradients_under_a_mask_that_no_key_passes(device: str) -> None:
    q, k, v = (x.requires_grad_() for x in tensors((1, 2, 70, 64), (1, 2, 90, 64), (1, 2, 90, 64)))
    o, lse = attention(q, k, v, mask_mod=lambda b, h, q_idx, kv_idx: kv_idx < 0, return_lse=True, device=device)
    assert not o.any()
    assert (lse == -torch.inf).all()
    assert not any(x.any() for x in torch.autograd.grad(o.sum(), (q, k, v)))


@pytest.mark.parametrize("device", [DEVICE, AMPERE])
def test_gradients_of_weights_that_depend_on_positions_alone(device: str) -> None:
    """Keys are not loaded where no gradient needs them."""
    table = torch.randn(2, 200)
    q, k, v = (x.requires_grad_() for x in tensors((1, 2, 70, 64), (1, 2, 90, 64), (1, 2, 90, 64)))

    def gradients(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, **options: Any) -> tuple[torch.Tensor, ...]:
        o = attention(q, k, v, score_mod=lambda s, b, h, i, j: table[h, i - j + 90], **options)
        return torch.autograd.grad(o.sum(), (q, k, v))

    wanted = gradients(q.double(), k.double(), v.double())
    for mine, theirs in zip(gradients(q, k, v, device=device), wanted, strict=True):
        torch.testing.assert_close(mine.double(), theirs, rtol=0, atol=4e-3)


def test_tables_are_not_read_behind_the_last_key_where_two_ranges_are_seen() -> None:
    """Whole blocks of all keys end elsewhere than those that are counted from the first key that a tile sees."""
    seen = torch.rand(130) < 0.5
    q, k, v = (torch.randn(1, heads, length, 64).half() for heads, length in ((2, 64), (1, 130), (1, 130)))
    options: dict[str, Any] = {"mask_mod": lambda b, h, i, j: seen[j] & ((j >= 70) | (j - i > 3))}
    got = attention(q, k, v, device="cuda-emulated", **options)
    wanted = attention(q.double(), k.double(), v.double(), **options)
    assert float((got.double() - wanted).norm()) <= 2e-3 * float(wanted.norm())
