"""Gradients through the native API, against PyTorch's own in float64: rows, masks, captured tensors, layouts, strides."""

from collections.abc import Callable
from typing import Any

import pytest
import torch

from api_helpers import assert_near, inputs, reference
from attn_mlir import Attention, UnsupportedError, attention, masks, mods, rows

SIZES: dict[str, Any] = {"b": 2, "h": 4, "hkv": 2, "sq": 21, "skv": 35, "d": 8, "dv": 12}


def dense_row(weights: Callable[[torch.Tensor], torch.Tensor]) -> Callable[..., torch.Tensor]:
    """A row of whole tensors without masked keys, from weights that are 0 for a score of -inf."""
    return lambda s, keep: torch.nan_to_num(weights(s.masked_fill(~keep, -torch.inf)), 0.0)


ROWS: dict[str, tuple[Callable[..., Any], Callable[..., torch.Tensor]]] = {
    "softmax": (rows.softmax, dense_row(lambda s: s.softmax(-1))),
    "softmax1": (rows.softmax1, dense_row(lambda s: torch.cat([s, torch.zeros_like(s[..., :1])], -1).softmax(-1)[..., :-1])),
    "sigmoid": (rows.sigmoid, dense_row(torch.sigmoid)),
    "relu_squared": (rows.relu_squared, dense_row(lambda s: s.relu().square())),
}
MASKS: dict[str, Any] = {
    "none": None,
    "causal": masks.causal("bottom_right"),
    "window": masks.sliding_window(3, 2),
    "late": lambda b, h, q_idx, kv_idx: kv_idx < q_idx - 4,  # the first rows see nothing
}
DENSE_MASKS: dict[str, Any] = {**MASKS, "causal": lambda b, h, q_idx, kv_idx: q_idx + (SIZES["skv"] - SIZES["sq"]) >= kv_idx}
DENSE_MASKS["window"] = lambda b, h, q_idx, kv_idx: (q_idx - kv_idx <= 3) & (kv_idx - q_idx <= 2)


def leaves(*tensors: torch.Tensor) -> list[Any]:
    return [tensor.detach().clone().requires_grad_() for tensor in tensors]


def gradients(o: torch.Tensor, tensors: list[torch.Tensor]) -> list[torch.Tensor]:
    """Gradients for a fixed gradient of o."""
    upstream = torch.randn(o.shape, generator=torch.Generator().manual_seed(3), dtype=torch.float64)
    return list(torch.autograd.grad(o, tensors, upstream.to(o.dtype)))


@pytest.mark.parametrize("mask", MASKS)
@pytest.mark.parametrize("row", ROWS)
def test_rows_and_masks(row: str, mask: str) -> None:
    function, dense = ROWS[row]
    qkv = leaves(*inputs(**SIZES))
    got = gradients(attention(*qkv, row=function, mask_mod=MASKS[mask]), qkv)
    expected = gradients(reference(*qkv, weights=dense, mask_mod=DENSE_MASKS[mask])[0], qkv)
    for gradient, wanted in zip(got, expected, strict=True):
        assert_near(gradient, wanted)


def test_captured_tensors() -> None:
    """Per head, per row and position, of another dtype, broadcast, without dimensions."""
    q, k, v = inputs(**SIZES)
    slopes, bias, cap = torch.rand(4), torch.randn(1, 1, 21, 35), torch.tensor(3.0, dtype=torch.float64)
    gain = torch.rand(2, dtype=torch.bfloat16)
    tensors = leaves(q, k, v, slopes, bias, cap, gain)

    def run(attend: Callable[..., torch.Tensor], q: Any, k: Any, v: Any, slopes: Any, bias: Any, cap: Any, gain: Any) -> torch.Tensor:
        wide = bias.expand(2, 4, 21, 35)

        def score_mod(s: Any, b: Any, h: Any, i: Any, j: Any) -> Any:
            return (s + slopes[h] * (j - i) + wide[b, h, i, j] * gain[b]) / cap

        return attend(q, k, v, score_mod=score_mod)

    got = gradients(run(attention, *tensors), tensors)
    expected = gradients(run(lambda *x, **options: reference(*x, **options)[0], *tensors), tensors)
    for tensor, gradient, wanted in zip(tensors, got, expected, strict=True):
        assert gradient.dtype == tensor.dtype
        assert_near(gradient, wanted, 1e-2 if tensor.dtype == torch.bfloat16 else 2e-5)


def test_a_sink_gets_a_gradient() -> None:
    q, k, v, sink = leaves(*inputs(**SIZES), torch.tensor([0.3, -1.0, 0.0, 2.0]))

    def weights(s: torch.Tensor, keep: torch.Tensor) -> torch.Tensor:
        column = sink.double()[:, None, None].expand(*s.shape[:3], 1)
        return torch.cat([s, column], -1).softmax(-1)[..., :-1]

    tensors = [q, k, v, sink]
    got = gradients(attention(q, k, v, row=rows.softmax_sink(sink)), tensors)
    for gradient, wanted in zip(got, gradients(reference(q, k, v, weights=weights)[0], tensors), strict=True):
        assert_near(gradient, wanted)


def test_row_outputs_have_gradients() -> None:
    q, k, v = leaves(*inputs(**SIZES))

    def loss(o: torch.Tensor, lse: torch.Tensor) -> torch.Tensor:
        return o.double().square().sum() + lse.double().sin().sum()

    mask_mod = masks.causal("bottom_right")
    o, lse = attention(q, k, v, mask_mod=mask_mod, return_lse=True)
    dense = reference(q, k, v, mask_mod=DENSE_MASKS["causal"])
    for got, wanted in zip(*(torch.autograd.grad(loss(*pair), [q, k, v]) for pair in ((o, lse), dense)), strict=True):
        assert_near(got, wanted)
    # Only lse: v has no part in it.
    got = torch.autograd.grad(attention(q, k, v, return_lse=True)[1].sum(), [q, k, v])
    assert_near(got[0], torch.autograd.grad(reference(q, k, v)[1].sum(), [q])[0])
    assert not got[2].any()


def test_what_needs_no_gradient_gets_none() -> None:
    q, k, v = inputs(**SIZES)
    slopes = torch.rand(4)
    mod = mods.alibi(slopes)
    assert not attention(q, k, v, score_mod=mod).requires_grad
    k.requires_grad_()
    o = attention(q, k, v, score_mod=mod)
    o.sum().backward()
    assert q.grad is None and v.grad is None and slopes.grad is None
    assert k.grad is not None
    with torch.no_grad():
        assert not attention(q, k, v).requires_grad
    with torch.inference_mode():
        assert not attention(q, k, v).requires_grad


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float64])
def test_dtypes(dtype: torch.dtype) -> None:
    qkv = leaves(*inputs(**SIZES, dtype=dtype))
    got = gradients(attention(*qkv, mask_mod=masks.causal()), qkv)
    expected = gradients(reference(*qkv, mask_mod=masks.causal())[0], qkv)
    for tensor, gradient, wanted in zip(qkv, got, expected, strict=True):
        assert gradient.dtype == tensor.dtype
        assert_near(gradient, wanted, {torch.bfloat16: 3e-2, torch.float16: 5e-3, torch.float64: 1e-12}[dtype])


@pytest.mark.parametrize("layout", ["bhsd", "bshd"])
def test_layouts_and_strides(layout: str) -> None:
    """Gradients have the shape of the inputs, whatever their strides and that of the gradient of o."""
    q, k, v = (tensor.transpose(1, 2) if layout == "bshd" else tensor for tensor in inputs(**SIZES))
    q = q[..., ::2].repeat_interleave(2, -1)[..., ::2].detach().requires_grad_()  # columns two apart
    k = k[..., ::2].detach().requires_grad_()
    v = v.detach().flip(0).requires_grad_()

    def dense(*qkv: torch.Tensor) -> torch.Tensor:
        q, k, v = (tensor.transpose(1, 2) if layout == "bshd" else tensor for tensor in qkv)
        o = reference(q, k, v)[0]
        return o.transpose(1, 2) if layout == "bshd" else o

    tensors = [q, k, v]
    for upstream in (lambda o: o.sum(), lambda o: o.transpose(0, 3).square()[::2].sum(), lambda o: o[:, :, 3].sum()):
        got = torch.autograd.grad(upstream(attention(q, k, v, layout=layout)), tensors)
        for gradient, wanted in zip(got, torch.autograd.grad(upstream(dense(q, k, v)), tensors), strict=True):
            assert_near(gradient, wanted)


def test_one_tensor_may_be_several_arguments() -> None:
    (x,) = leaves(inputs(hkv=4, sq=20, skv=20, dv=16)[0])
    got = gradients(attention(x, x, x, score_mod=lambda s, b, h, i, j: s + x[b, h, i, 0]), [x])
    expected = gradients(reference(x, x, x, score_mod=lambda s, b, h, i, j: s + x[b, h, i, 0])[0], [x])
    assert_near(got[0], expected[0])


def test_empty_problems() -> None:
    for sizes in ({"sq": 0}, {"skv": 0}, {"b": 0}):
        q, k, v = leaves(*inputs(**{**SIZES, **sizes}))
        o, lse = attention(q, k, v, return_lse=True)
        (o.sum() + lse.sum()).backward()
        assert q.grad is not None and k.grad is not None and v.grad is not None
        assert not any(tensor.grad.any() for tensor in (q, k, v))  # type: ignore[union-attr]
        assert (lse == -torch.inf).all()


def test_what_is_masked_never_reaches_gradients() -> None:
    """NaN in the scores of absent keys, and fully masked rows."""
    bias = torch.randn(32, 32)
    bias[:, 30:] = torch.nan
    tensors = leaves(*inputs(hkv=4, sq=32, skv=32), bias)
    q, k, v, bias = tensors
    o = attention(q, k, v, score_mod=lambda s, b, h, i, j: s + bias[i, j], mask_mod=lambda b, h, i, j: (j < 30) & (i > 3))
    got = gradients(o, tensors)
    assert all(gradient.isfinite().all() for gradient in got)
    assert not got[0][:, :, :4].any() and not got[3][:4].any() and not got[3][:, 30:].any()


def test_the_object() -> None:
    q, k, v = leaves(*inputs(**SIZES))
    layer = Attention(mask_mod=masks.causal(), row=rows.softmax1, deterministic=True)
    expected = gradients(attention(q, k, v, mask_mod=masks.causal(), row=rows.softmax1), [q, k, v])
    for got, wanted in zip(gradients(layer(q, k, v), [q, k, v]), expected, strict=True):
        assert torch.equal(got, wanted)


def test_second_derivatives() -> None:
    (q, k, v), mask = leaves(*inputs(b=1, h=2, hkv=1, sq=6, skv=7, d=4, dv=4, dtype=torch.float64)), masks.causal()
    upstream, direction = torch.randn(1, 2, 6, 4).double(), torch.randn_like(q)

    def second(o: torch.Tensor) -> list[torch.Tensor]:
        (first,) = torch.autograd.grad(o, [q], upstream, create_graph=True)
        return list(torch.autograd.grad((first * direction).sum(), [q, k, v]))

    for got, wanted in zip(second(attention(q, k, v, mask_mod=mask)), second(reference(q, k, v, mask_mod=mask)[0]), strict=True):
        assert_near(got, wanted, 1e-10)


def test_third_derivatives_are_refused() -> None:
    q, k, v = leaves(*inputs(b=1, h=1, hkv=1, sq=3, skv=3, d=4, dv=4, dtype=torch.float64))
    (first,) = torch.autograd.grad(attention(q, k, v).sum(), [q], create_graph=True)
    (second,) = torch.autograd.grad(first.square().sum(), [q], create_graph=True)
    with pytest.raises(UnsupportedError, match="derivatives of attention up to the second"):
        torch.autograd.grad(second.sum(), [q])


def test_gradients_are_the_same_for_any_number_of_threads() -> None:
    """Also where several programs add to the same elements: tables shared by heads, batch and positions; chunks of keys."""
    table, gain = torch.randn(9), torch.rand(())
    q, k, v = inputs(b=2, h=4, hkv=1, sq=70, skv=700, d=16, dv=16)
    tensors = leaves(q, k, v, table, gain)

    def run() -> list[torch.Tensor]:
        q, k, v, table, gain = tensors

        def score_mod(s: Any, b: Any, h: Any, i: Any, j: Any) -> Any:
            return s * gain + table[(i + j) % 9]

        return gradients(attention(q, k, v, score_mod=score_mod), tensors)

    threads = torch.get_num_threads()
    try:
        torch.set_num_threads(1)
        expected = run()
        for count in (2, 3, 8):
            torch.set_num_threads(count)
            for got, wanted in zip(run(), expected, strict=True):
                assert torch.equal(got, wanted)
    finally:
        torch.set_num_threads(threads)


def test_a_backward_needs_no_memory_for_all_pairs(tmp_path: Any) -> None:
    """32768 queries and keys: all pairs would be 4 GiB, in one head."""
    import os
    import subprocess
    import sys
    from pathlib import Path

    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).resolve().parents[2] / "python")}
    code = """
import resource, torch
from attn_mlir import attention, masks
torch.set_num_threads(2)
q, k, v = (torch.randn(1, 1, size, 32, requires_grad=True) for size in (200, 200, 200))
attention(q, k, v, mask_mod=masks.sliding_window(64)).sum().backward()
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
q, k, v = (torch.randn(1, 1, 32768, 32, requires_grad=True) for _ in range(3))
attention(q, k, v, mask_mod=masks.sliding_window(64)).sum().backward()
print((resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) // 1024)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, env=environment)
    assert int(done.stdout) < 300  # MiB; the nine tensors of q's shape that there are take 36


def test_the_order_of_dimensions_does_not_matter_to_second_derivatives() -> None:
    def both(layout: str) -> list[torch.Tensor]:
        given = leaves(*[tensor.double().transpose(1, 2) for tensor in inputs(**SIZES)])
        views = given if layout == "bshd" else [tensor.transpose(1, 2) for tensor in given]
        o, lse = attention(*views, mask_mod=masks.causal("bottom_right"), layout=layout, return_lse=True)
        o = o if layout == "bshd" else o.transpose(1, 2)
        first = torch.autograd.grad(o.square().sum() + lse.sum(), given, create_graph=True)
        return [o, lse, *first, *torch.autograd.grad(torch.stack([x.square().sum() for x in first]).sum(), given)]

    for got, wanted in zip(both("bshd"), both("bhsd"), strict=True):
        torch.testing.assert_close(got, wanted, rtol=1e-12, atol=1e-12)
