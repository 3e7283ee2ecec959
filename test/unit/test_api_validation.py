"""Wrong arguments are refused with a message that names the argument; odd ones work."""

import functools
import math
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

import attn_mlir
from api_helpers import inputs
from attn_mlir import ArgumentError, Attention, TraceError, UnsupportedError, attention, masks, mods, rows

Q, K, V = inputs(sq=9, skv=11)
COMPLEX: Any = torch.tensor(1j)


def _quantized() -> torch.Tensor:
    return torch.quantize_per_tensor(Q, 0.1, 0, torch.qint8)


def _nested(layout: torch.layout) -> torch.Tensor:
    return torch.nested.nested_tensor([torch.zeros(n, 3, 4) for n in (2, 3)], layout=layout)


BAD: dict[str, tuple[Callable[[], Any], str]] = {
    "type": (lambda: attention(Q.numpy(), K, V), "q must be a torch.Tensor, got ndarray"),  # type: ignore[arg-type]
    "none": (lambda: attention(Q, None, V), "k must be a torch.Tensor, got NoneType"),  # type: ignore[arg-type]
    "rank": (lambda: attention(Q, K, V[0]), r"v must have 4 dimensions, \[batch, head, position, dim\], got shape \[2, 11, 24\]"),
    "rank bshd": (lambda: attention(Q[0], K, V, layout="bshd"), r"q must have 4 dimensions, \[batch, position, head, dim\]"),
    "dtype": (lambda: attention(Q.long(), K.long(), V.long()), "q has dtype torch.int64: use float32"),
    "integer": (lambda: attention(Q.int(), K, V), "q has dtype torch.int32"),
    "mixed dtypes": (lambda: attention(Q, K.half(), V), "k has dtype torch.float16 but q has torch.float32"),
    "batch": (lambda: attention(Q, K[:1], V), "k has batch size 1 but q has 2"),
    "value batch": (lambda: attention(Q, K, V[:1]), "v has batch size 1 but q has 2"),
    "heads": (lambda: attention(Q[:, :3], K, V), "q has 3 heads, which is no multiple of the 2 heads of k and v"),
    "no heads": (lambda: attention(Q, K[:, :0], V[:, :0]), "no multiple of the 0 heads"),
    "value heads": (lambda: attention(Q, K, V[:, :1]), "v has 1 heads but k has 2"),
    "lengths": (lambda: attention(Q, K, V[:, :, :5]), "v has 5 positions but k has 11"),
    "dims": (lambda: attention(Q, K[..., :8], V), "k has head dimension 8 but q has 16"),
    "dim 0": (lambda: attention(Q[..., :0], K[..., :0], V), "q has head dimension 0; it must be 1 to 1024"),
    "dim 1025": (lambda: attention(Q, K, torch.zeros(2, 2, 11, 1025)), "v has head dimension 1025; it must be 1 to 1024"),
    "huge": (lambda: attention(Q, K[:, :, :1].expand(-1, -1, 2**31, -1), V), "k has a dimension of 2147483648 elements"),
    "sparse": (lambda: attention(Q.to_sparse(), K, V), "q must be a plain strided tensor"),
    "meta": (lambda: attention(Q.to("meta"), K, V), "q is on the meta device"),
    "layout": (lambda: attention(Q, K, V, layout="bhds"), 'layout is "bhsd"'),
    "layout of the object": (lambda: Attention(layout="bhds"), 'layout is "bhsd"'),
    "scale type": (lambda: attention(Q, K, V, scale="x"), "scale must be a number or None, got str"),  # type: ignore[arg-type]
    "scale bool": (lambda: attention(Q, K, V, scale=True), "scale must be a number or None, got bool"),
    "scale nan": (lambda: attention(Q, K, V, scale=math.nan), "scale must be finite"),
    "scale shape": (lambda: attention(Q, K, V, scale=torch.ones(2, 2)), r"scale must be a number or None, got Tensor of shape \[2, 2\]"),  # type: ignore[arg-type]
    "scale huge": (lambda: attention(Q, K, V, scale=10**400), "scale must be finite"),
    "scale complex": (lambda: attention(Q, K, V, scale=COMPLEX), "scale must be a number or None, got Tensor of dtype torch.complex64"),
    "scale condition": (lambda: attention(Q, K, V, scale=np.bool_(True)), "scale must be a number or None, got bool"),  # type: ignore[arg-type]
    "scale without data": (lambda: attention(Q, K, V, scale=torch.ones((), device="meta")), "scale must be a number or None"),  # type: ignore[arg-type]
    "layout list": (lambda: attention(Q, K, V, layout=["bhsd"]), 'layout is "bhsd"'),  # type: ignore[arg-type]
    "layout list of the object": (lambda: Attention(layout=["bhsd"]), 'layout is "bhsd"'),  # type: ignore[arg-type]
    "device": (lambda: attention(Q, K, V, device=0), 'device takes a name such as "cpu" or a torch.device, got int'),  # type: ignore[arg-type]
    "device of the object": (lambda: Attention(device=0), 'device takes a name such as "cpu" or a torch.device, got int'),  # type: ignore[arg-type]
    "quantized": (lambda: attention(_quantized(), K, V), r"q is a quantized tensor: use q.dequantize\(\)"),
    "nested": (lambda: attention(_nested(torch.strided), K, V), "q is a nested tensor: pad it"),
    "jagged": (lambda: attention(Q, _nested(torch.jagged), V), "k is a nested tensor: pad it"),
    "short ids": (lambda: attention(Q, K, V, mask_mod=masks.document(torch.zeros(5).int())), "captured tensor `document_ids` has size 5"),
    "row": (lambda: attention(Q, K, V, row=None), "row must be a function from a row of scores to its weights"),  # type: ignore[arg-type]
    "score_mod": (lambda: attention(Q, K, V, score_mod=3), "score_mod must be a function, got int"),  # type: ignore[arg-type]
    "mask_mod": (lambda: attention(Q, K, V, mask_mod=torch.ones(2)), "mask_mod must be a function, got Tensor"),  # type: ignore[arg-type]
    "align": (lambda: masks.causal("left"), "align is"),  # type: ignore[arg-type]
    "document": (lambda: masks.document([1, 2]), "ids must be an integer tensor"),  # type: ignore[arg-type]
    "no masks": (lambda: masks.and_(), "and_ takes one or more mask functions"),
    "dilation": (lambda: masks.dilated(0), "step must be at least 1"),
    "slopes": (lambda: mods.alibi(0.5), "slopes must be a tensor"),  # type: ignore[arg-type]
    "bias": (lambda: mods.additive_bias(torch.zeros(1, 1, 1, 1, 1)), "at most 4 dimensions"),
    "sink": (lambda: rows.softmax_sink(torch.zeros(2, 2)), "sink must be"),
    "sigmoid bias": (lambda: rows.biased_sigmoid(torch.zeros(2, 2)), "bias must be"),
    "heads of slopes": (lambda: mods.alibi_slopes(0), "heads must be at least 1"),
}


@pytest.mark.parametrize("name", BAD)
def test_refused(name: str) -> None:
    call, message = BAD[name]
    with pytest.raises(ArgumentError, match=message):
        call()


def test_captured_tensor_that_is_too_small() -> None:
    slopes = torch.ones(3)
    with pytest.raises(ArgumentError, match="`slopes` has size 3 in dimension 0, but `head` indexes it with 0 to 3"):
        attention(Q, K, V, score_mod=lambda score, b, head, q_idx, kv_idx: score + slopes[head])
    bias = torch.ones(2, 9, 10)
    with pytest.raises(ArgumentError, match="`bias` has size 10 in dimension 2, but `kv_idx` indexes it with 0 to 10"):
        attention(Q, K, V, score_mod=lambda score, b, h, q_idx, kv_idx: score + bias[b, q_idx, kv_idx])
    gain = torch.ones(2)
    attention(Q, K, V, key_mod=lambda x, b, h, kv_idx, d: x * gain[h])
    with pytest.raises(ArgumentError, match="`gain` has size 2"):
        attention(Q, K, V, query_mod=lambda x, b, h, q_idx, d: x * gain[h])


def test_captured_tensor_on_another_device() -> None:
    slopes = torch.ones(4, device="meta")
    with pytest.raises(ArgumentError, match="captured tensor `slopes` is on meta but q is on cpu"):
        attention(Q, K, V, score_mod=lambda score, b, h, q_idx, kv_idx: score + slopes[h])


def test_division_by_a_captured_zero() -> None:
    for block in (3, 0):
        mask_mod = lambda b, h, q_idx, kv_idx, block=block: q_idx // block >= kv_idx // block  # noqa: E731
        if block:
            attention(Q, K, V, mask_mod=mask_mod)
        else:
            with pytest.raises((ArgumentError, TraceError), match="0"):
                attention(Q, K, V, mask_mod=mask_mod)


def test_a_scale_that_requires_a_gradient_is_refused() -> None:
    scale: Any = torch.tensor(0.5, requires_grad=True)
    with pytest.raises(UnsupportedError, match=r"scale requires a gradient, but it is taken as a number: .*multiply in score_mod"):
        attention(Q, K, V, scale=scale)
    with torch.no_grad():
        assert torch.equal(attention(Q, K, V, scale=scale), attention(Q, K, V, scale=0.5))


def test_a_device_may_be_a_torch_device() -> None:
    expected = attention(Q, K, V)
    for device in (torch.device("cpu"), "cpu", torch.device("cpu", 0), "cpu:0"):
        assert torch.equal(attention(Q, K, V, device=device), expected)
        layer = Attention(device=device)
        assert torch.equal(layer(Q, K, V), expected)
        assert layer.stages()


def test_captured_dtypes_that_are_not_there_are_named() -> None:
    for dtype in (torch.complex64, torch.uint16, torch.float8_e4m3fn):
        table = torch.zeros(4).to(dtype)
        number = torch.zeros(()).to(dtype)
        for score_mod, name in (
            (lambda s, b, h, i, j, table=table: s + table[h], "table"),
            (lambda s, b, h, i, j, number=number: s * number, "number"),
            (lambda s, b, h, i, j, number=number: number * s, "number"),
        ):
            with pytest.raises(TraceError, match=f"`{name}` has dtype {dtype}"):
                attention(Q, K, V, score_mod=score_mod)
    for array in (np.array([1, "a"], dtype=object), np.array(["a"])):
        with pytest.raises(ArgumentError, match="`array` has dtype"):
            attention(Q, K, V, score_mod=lambda s, b, h, i, j, array=array: s + array[h])


def test_arrays_of_any_strides() -> None:
    slopes = np.arange(4.0)[::-1]
    expected = attention(Q, K, V, score_mod=mods.additive_bias(torch.arange(3, -1, -1).float()[:, None, None]))
    assert torch.equal(attention(Q, K, V, score_mod=lambda s, b, h, i, j: s + slopes[h]), expected)


def test_cached_functions_cannot_be_traced() -> None:
    @functools.lru_cache
    def mask(b: Any, h: Any, q_idx: Any, kv_idx: Any) -> Any:
        return q_idx >= kv_idx

    with pytest.raises(TraceError, match=r"mask_mod `mask`: a function cached with functools\.lru_cache.*cannot be traced"):
        attention(Q, K, V, mask_mod=mask)
    with pytest.raises(TraceError, match=r"functions cached with functools\.lru_cache cannot be traced"):
        attention(Q, K, V, mask_mod=lambda *position: mask(*position))


def test_unknown_device() -> None:
    with pytest.raises(UnsupportedError, match="device 'abacus'"):
        attention(Q, K, V, device="abacus")


def test_mistakes_in_functions_show_when_the_object_is_made() -> None:
    with pytest.raises(TraceError, match="mask_mod"):
        Attention(mask_mod=lambda b, h, q_idx, kv_idx: q_idx >= kv_idx and kv_idx > 2)


def test_numpy_scale_and_subclasses() -> None:
    expected = attention(Q, K, V, scale=0.3)
    assert torch.equal(attention(Q, K, V, scale=np.float32(0.3)), expected)  # type: ignore[arg-type]
    assert torch.equal(attention(torch.nn.Parameter(Q, requires_grad=False), K, V, scale=0.3), expected)


def test_a_call_is_found_again_quickly() -> None:
    """The work before the kernel: checks, keys, captured values."""
    from attn_mlir.api import options as module

    q, k, v = torch.empty(0, 4, 9, 16), torch.empty(0, 2, 11, 16), torch.empty(0, 2, 11, 24)
    mask_mod, score_mod = masks.causal(), mods.alibi(mods.alibi_slopes(4))
    before = len(module._CACHE._entries)
    attention(q, k, v, mask_mod=mask_mod, score_mod=score_mod)
    best = math.inf
    for _ in range(50):
        start = time.perf_counter()
        attention(q, k, v, mask_mod=mask_mod, score_mod=score_mod)
        best = min(best, time.perf_counter() - start)
    assert len(module._CACHE._entries) <= before + 1
    assert best < 200e-6  # about 20 us on a quiet machine


def test_the_package_imports_without_torch() -> None:
    import subprocess
    import sys

    code = "import sys, attn_mlir; assert 'torch' not in sys.modules; attn_mlir.attention; assert 'torch' in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)
    assert len(set(attn_mlir.__all__)) == len(attn_mlir.__all__) > 50
    everything: dict[str, Any] = {}
    exec("from attn_mlir import *", everything)
    for name in attn_mlir.__all__:
        assert everything[name] is getattr(attn_mlir, name) is not None
        assert name in dir(attn_mlir)
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        attn_mlir.nothing  # noqa: B018
