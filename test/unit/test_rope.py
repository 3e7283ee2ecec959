"""Mods that read the other channel of a pair, and rotary embeddings made of them, against the same computed before the attention."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch

from api_helpers import assert_near
from attn_mlir import ArgumentError, Attention, InputSpec, TraceError, attention, compile_ahead, masks, mods, partner, rotate_half
from attn_mlir import linear_attention as linear
from attn_mlir.backends.gpu.attributes import SCHEDULE, read
from attn_mlir.backends.gpu.scheduled import scheduled
from attn_mlir.backends.nvidia import pipeline as nvidia_pipeline
from attn_mlir.backends.program import function_named, prepare_derivative
from attn_mlir.frontend.emit import Inputs
from attn_mlir.mlir import ir

B, HQ, HKV, DV = 2, 4, 2, 8
Tensors = list[torch.Tensor]
LENGTHS = [(1, 1), (1, 17), (5, 3), (17, 127), (127, 40)]


def tables(length: int, channels: int, dtype: torch.dtype = torch.float32) -> Tensors:
    angle = torch.arange(length)[:, None] * 100.0 ** -(torch.arange(channels // 2) * 2 / channels)
    return [angle.cos().to(dtype), angle.sin().to(dtype)]


def leaves(sq: int, skv: int, dim: int, channels: int, dtype: torch.dtype = torch.float32, scale: float = 1.0) -> Tensors:
    """q, k, v, cos and sin."""
    shapes = ((B, HQ, sq, dim), (B, HKV, skv, dim), (B, HKV, skv, DV))
    tensors = [(torch.randn(shape) * (scale if n < 2 else 1.0)).to(dtype) for n, shape in enumerate(shapes)]
    score = torch.float64 if dtype == torch.float64 else torch.float32
    return [x.requires_grad_() for x in (*tensors, *tables(max(sq, skv), channels, score))]


def rotated(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor, interleaved: bool = False) -> torch.Tensor:
    """The definition, channel by channel; tables [length, pairs] of the rows of x."""
    pairs = cos.shape[-1]
    channels = list(x.unbind(-1))
    for c in range(pairs):
        i, j = (2 * c, 2 * c + 1) if interleaved else (c, c + pairs)
        a, b = x[..., i], x[..., j]
        channels[i], channels[j] = a * cos[..., c] - b * sin[..., c], b * cos[..., c] + a * sin[..., c]
    return torch.stack(channels, -1)


def dense(tensors: Sequence[Any], interleaved: bool = False, keep: Any = None, plain: str = "") -> torch.Tensor:
    q, k, v, cos, sin = tensors
    rotate = lambda x, name: x if name in plain else rotated(x, cos[: x.shape[2]], sin[: x.shape[2]], interleaved)  # noqa: E731
    q, k = rotate(q, "q"), rotate(k, "k")
    s = q @ k.repeat_interleave(q.shape[1] // k.shape[1], 1).mT * q.shape[-1] ** -0.5
    p = s.softmax(-1) if keep is None else s.masked_fill(~keep, -torch.inf).softmax(-1).nan_to_num(0.0)
    return p @ v.repeat_interleave(q.shape[1] // k.shape[1], 1)


def ours(*tensors: Any, interleaved: bool = False, **options: Any) -> Any:
    q, k, v, cos, sin = tensors
    mod = mods.rope(cos, sin, interleaved)
    return attention(q, k, v, query_mod=mod, key_mod=mod, **options)


def doubled(tensors: Sequence[torch.Tensor]) -> Tensors:
    return [x.detach().double().requires_grad_() for x in tensors]


def with_gradients(o: torch.Tensor, tensors: Tensors) -> Tensors:
    do = torch.randn(o.shape, generator=torch.Generator().manual_seed(4), dtype=torch.float64)
    return [o, *torch.autograd.grad(o, tensors, do.to(o.dtype))]


def compare(found: Tensors, wanted: Tensors, tolerance: float) -> None:
    for x, y in zip(found, wanted, strict=True):
        assert_near(x, y, tolerance)


@pytest.mark.parametrize("interleaved", [False, True])
@pytest.mark.parametrize(("dim", "channels"), [(64, 64), (24, 24), (38, 34), (6, 4)])
def test_dimensions(dim: int, channels: int, interleaved: bool) -> None:
    for sq, skv in LENGTHS:
        given = leaves(sq, skv, dim, channels)
        wanted = with_gradients(dense(other := doubled(given), interleaved), other)
        compare(with_gradients(ours(*given, interleaved=interleaved), given), wanted, 2e-5)
        with torch.no_grad():
            assert_near(ours(*given, interleaved=interleaved), wanted[0], 3e-6)


@pytest.mark.parametrize("interleaved", [False, True])
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float64, 1e-12), (torch.float16, 4e-3), (torch.bfloat16, 3e-2)])
def test_dtypes(dtype: torch.dtype, tolerance: float, interleaved: bool) -> None:
    for sq, skv in ((37, 41), (1, 50)):
        given = leaves(sq, skv, 32, 32, dtype)
        wanted = with_gradients(dense(other := doubled(given), interleaved), other)
        compare(with_gradients(ours(*given, interleaved=interleaved), given), wanted, tolerance)
        with torch.no_grad():
            assert_near(ours(*given, interleaved=interleaved), wanted[0], tolerance)


def test_large_elements() -> None:
    given = leaves(37, 41, 16, 16, torch.float64, scale=1e3)
    compare(with_gradients(ours(*given), given), with_gradients(dense(other := doubled(given)), other), 1e-8)


def test_masks_lse_and_rows_without_keys() -> None:
    for sq in (3, 37):
        given, keep = leaves(sq, 41, 16, 16), torch.arange(sq)[:, None] - 2 > torch.arange(41)
        found = with_gradients(ours(*given, mask_mod=lambda b, h, q_idx, kv_idx: q_idx - 2 > kv_idx), given)
        assert not found[0][:, :, :3].any()
        compare(found, with_gradients(dense(other := doubled(given), keep=keep), other), 2e-5)
        with torch.no_grad():
            o, lse = ours(*given, mask_mod=lambda b, h, q_idx, kv_idx: q_idx - 2 > kv_idx, return_lse=True)
        assert (lse[:, :, :3] == -torch.inf).all()
        assert_near(o, found[0].double(), 1e-6)


@pytest.mark.parametrize("sq", [3, 40])
def test_no_keys(sq: int) -> None:
    given = leaves(sq, 0, 16, 16)
    assert not any(x.isnan().any() or x.any() for x in with_gradients(ours(*given), given))
    with torch.no_grad():
        o, lse = ours(*given, return_lse=True)
    assert not o.any()
    assert (lse == -torch.inf).all()


@pytest.mark.parametrize("which", ["q", "k"])
def test_one_of_both(which: str) -> None:
    given = leaves(37, 41, 16, 16)
    mod: dict[str, Any] = {"query_mod" if which == "q" else "key_mod": mods.rope(given[3], given[4])}
    wanted = with_gradients(dense(other := doubled(given), plain="k" if which == "q" else "q"), other)
    compare(with_gradients(attention(given[0], given[1], given[2], **mod), given), wanted, 2e-5)


@pytest.mark.parametrize("layout", ["bhsd", "bshd", "sbhd"])
def test_layouts(layout: str) -> None:
    order = {"bhsd": (0, 1, 2, 3), "bshd": (0, 2, 1, 3), "sbhd": (2, 0, 1, 3)}[layout]
    back = tuple(order.index(n) for n in range(4))
    for sq in (5, 37):
        given = leaves(sq, 41, 16, 16)
        q, k, v = (x.permute(order).contiguous() for x in given[:3])
        o = ours(q, k, v, *given[3:], layout=layout).permute(back)
        compare(with_gradients(o, given), with_gradients(dense(other := doubled(given)), other), 2e-5)
        with torch.no_grad():
            assert_near(ours(q, k, v, *given[3:], layout=layout).permute(back), dense(other), 3e-6)


def test_written_by_hand() -> None:
    """The rotation in a user's own words, with tables of all channels, as transformers has them."""
    given = leaves(37, 41, 16, 16)

    def mod(x: Any, b: Any, h: Any, idx: Any, d: Any) -> Any:
        return x * cos[idx, d] + rotate_half(x) * sin[idx, d]

    cos, sin = (torch.cat([x, x], -1) for x in given[3:])
    o = attention(given[0], given[1], given[2], query_mod=mod, key_mod=mod)
    compare(with_gradients(o, given), with_gradients(dense(other := doubled(given)), other), 2e-5)


def test_partner_of_what_a_mod_computes() -> None:
    """The partner of an expression is the expression in the other channel: here a gain before the rotation, and a product of both."""
    given, gain = leaves(37, 41, 16, 16), torch.rand(16).requires_grad_()

    def mod(x: Any, b: Any, h: Any, idx: Any, d: Any) -> Any:
        y = torch.tanh(x * gain[d])
        return y * cos[idx, d % 8] + rotate_half(y) * sin[idx, d % 8] + partner(partner(y)) * partner(x)

    q, k, v, cos, sin = given
    found = with_gradients(attention(q, k, v, query_mod=mod), [*given, gain])
    *other, wide = doubled([*given, gain])
    y = torch.tanh(other[0] * wide)
    changed = rotated(y, other[3][:37], other[4][:37]) + y * other[0].roll(8, -1)
    wanted = with_gradients(dense([changed, *other[1:]], plain="qk"), [*other, wide])
    compare(found, wanted, 3e-5)


def test_argument_x_alone() -> None:
    q, k, v, *_ = leaves(20, 30, 16, 16)
    found = with_gradients(attention(q, k, v, query_mod=lambda x: rotate_half(x), key_mod=partner), [q, k, v])
    a, b, c = other = doubled([q, k, v])
    wanted = dense([rotate_half(a), b.roll(8, -1), c, *tables(0, 16)], plain="qk")
    compare(found, with_gradients(wanted, other), 2e-5)


def test_of_tensors() -> None:
    x, (cos, sin) = torch.randn(2, 3, 7, 12), tables(7, 8)
    for interleaved in (False, True):
        c, s = (t.repeat_interleave(2, -1) if interleaved else torch.cat([t, t], -1) for t in (cos, sin))
        turned = x[..., :8] * c + rotate_half(x[..., :8], interleaved) * s
        assert_near(torch.cat([turned, x[..., 8:]], -1), rotated(x.double(), cos, sin, interleaved), 1e-6)
        assert torch.equal(partner(partner(x, interleaved, 8), interleaved, 8), x)
        assert torch.equal(rotate_half(x, interleaved, 8)[..., 8:], torch.zeros(2, 3, 7, 4))


@pytest.mark.parametrize("positions", ["one", "each", "number"])
def test_positions(positions: str) -> None:
    """Decoding with one query at the end, and with few and many queries."""
    for sq in (1, 4, 30):
        q, k, v, cos, sin = given = leaves(sq, 50, 16, 16)
        place = torch.arange(50 - sq, 50) if positions == "one" else torch.stack([torch.arange(sq), torch.arange(50 - sq, 50)])
        at: Any = 50 - sq if positions == "number" else place
        where = torch.arange(50 - sq, 50) if positions == "number" else place
        o = attention(q, k, v, query_mod=mods.rope(cos, sin, positions=at), key_mod=mods.rope(cos, sin))
        a, b, c, wide, other_sin = other = doubled(given)
        turned = [wide[where], other_sin[where]]
        turned = [x if x.dim() == 2 else x[:, None] for x in turned]
        wanted = dense([rotated(a, turned[0], turned[1]), rotated(b, wide, other_sin), c, wide, other_sin], plain="qk")
        compare(with_gradients(o, given), with_gradients(wanted, other), 2e-5)


def test_tables_of_batch_entries() -> None:
    q, k, v, cos, sin = leaves(37, 37, 16, 16)
    cos, sin = (torch.stack([x, x.flip(0)]).detach().requires_grad_() for x in (cos, sin))
    found = with_gradients(ours(q, k, v, cos, sin), given := [q, k, v, cos, sin])
    a, b, c, wide, other_sin = other = doubled(given)
    wanted = dense([rotated(x, wide[:, None], other_sin[:, None]) for x in (a, b)] + [c, wide, other_sin], plain="qk")
    compare(found, with_gradients(wanted, other), 2e-5)


def test_tables_that_change_between_calls() -> None:
    q, k, v, cos, sin = (x.detach() for x in leaves(37, 41, 16, 16))
    mod = mods.rope(cos, sin)
    attend = Attention(query_mod=mod, key_mod=mod)
    assert_near(attend(q, k, v), dense([x.double() for x in (q, k, v, cos, sin)]), 3e-6)
    cos.copy_(torch.randn_like(cos))
    assert_near(attend(q, k, v), dense([x.double() for x in (q, k, v, cos, sin)]), 3e-6)
    halves = torch.cat([cos, cos], -1)
    strided = attention(q, k, v, query_mod=mods.rope(halves[:, :8], sin.T.contiguous().T), key_mod=mods.rope(halves[:, 8:], sin))
    assert_near(strided, attend(q, k, v).double(), 1e-6)


def test_module_and_explanation() -> None:
    cos, sin = (torch.nn.Parameter(x) for x in tables(50, 64))
    attend = Attention(query_mod=mods.rope(cos, sin), key_mod=mods.rope(cos, sin, positions=3), mask_mod=masks.causal())
    assert {id(p) for p in attend.parameters()} == {id(cos), id(sin)}
    assert 'partner = "half"' in attend.ir()
    q, k, v = (torch.randn(1, 2, n, 64) for n in (40, 40, 40))
    attend(q, k, v)
    assert "attn-apply-mods" in attend.stages()


@pytest.mark.parametrize("interleaved", [False, True])
def test_compiled(interleaved: bool) -> None:
    call = torch.compile(lambda *x: ours(*x, interleaved=interleaved), backend="aot_eager", fullgraph=True, dynamic=True)
    for sq, skv, dim, channels in ((37, 41, 16, 16), (5, 60, 16, 16), (37, 41, 16, 8)):
        given = leaves(sq, skv, dim, channels)
        compare(with_gradients(call(*given), given), with_gradients(dense(other := doubled(given), interleaved), other), 2e-5)


def test_compiled_by_hand() -> None:
    def call(q: Any, k: Any, v: Any, cos: Any, sin: Any) -> Any:
        mod = lambda x, b, h, i, d: x * cos[i, d % 8] + rotate_half(x) * sin[i, d % 8]  # noqa: E731
        return attention(q, k, v, query_mod=mod, key_mod=lambda x: partner(x, interleaved=True))

    given = leaves(37, 41, 16, 16)
    found = with_gradients(torch.compile(call, backend="aot_eager", fullgraph=True)(*given), given)
    compare(found, with_gradients(call(*given), given), 1e-6)


def test_rotation_before_the_call_in_a_compiled_function() -> None:
    def call(x: torch.Tensor) -> torch.Tensor:
        return rotate_half(x) + partner(x, interleaved=True)

    x = torch.randn(2, 3, 5, 8)
    assert torch.equal(torch.compile(call, backend="aot_eager", fullgraph=True)(x), call(x))


def test_export() -> None:
    class Block(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            cos, sin = tables(100, 16)
            self.register_buffer("cos", cos)
            self.register_buffer("sin", sin)

        def forward(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
            return ours(q, k, v, self.cos, self.sin)

    block, length = Block(), torch.export.Dim("length", min=2, max=100)
    q, k, v, *_ = (x.detach() for x in leaves(20, 20, 16, 16))
    for strict in (True, False):
        program = torch.export.export(block, (q, k, v), dynamic_shapes=({2: length},) * 3, strict=strict)
        for n in (20, 61):
            q, k, v, *_ = (x.detach() for x in leaves(n, n, 16, 16))
            assert_near(program.module()(q, k, v), block(q, k, v).double(), 1e-6)


def test_tangents_and_vmap() -> None:
    given = [x.detach() for x in leaves(11, 23, 16, 16, torch.float64)]
    changes = [torch.randn_like(x) for x in given]
    for interleaved in (False, True):
        f: Callable[..., Any] = lambda *x, i=interleaved: ours(*x, interleaved=i)  # noqa: E731
        g: Callable[..., Any] = lambda *x, i=interleaved: dense(x, i)  # noqa: E731
        for x, y in zip(torch.func.jvp(f, tuple(given), tuple(changes)), torch.func.jvp(g, tuple(given), tuple(changes)), strict=True):
            assert_near(x, y, 1e-12)
    batch = [torch.stack([x, x * 0.5]) for x in given]
    assert_near(torch.vmap(ours)(*batch), torch.vmap(lambda *x: dense(x))(*batch), 1e-12)


def test_tangent_of_what_a_mod_captures() -> None:
    q, k, v = torch.randn(3, 1, 2, 5, 8, dtype=torch.float64)
    scaled = lambda gain: attention(q, k, v, query_mod=lambda x, b, h, i, d: x * gain[d])  # noqa: E731
    before = lambda gain: attention(q * gain, k, v)  # noqa: E731
    given, change = torch.rand(2, 8, dtype=torch.float64)
    assert_near(torch.func.jvp(scaled, (given,), (change,))[1], torch.func.jvp(before, (given,), (change,))[1], 1e-12)


@pytest.mark.parametrize(("sq", "skv"), [(1, 33), (37, 70)])
@pytest.mark.parametrize("interleaved", [False, True])
def test_amd_emulated(sq: int, skv: int, interleaved: bool) -> None:
    given = leaves(sq, skv, 32, 16, torch.float16)
    found = with_gradients(ours(*given, interleaved=interleaved, mask_mod=masks.causal(align="bottom_right"), device="hip-emulated"), given)
    keep = torch.arange(sq)[:, None] + skv - sq >= torch.arange(skv)
    compare(found, with_gradients(dense(other := doubled(given), interleaved, keep), other), 4e-3)


@pytest.mark.parametrize("function", ["", "fwd", "bwd", "jvp"])
def test_nvidia_kernels(function: str) -> None:
    """Rotations are kernels of their own, and the attention is what it is without a rotation."""
    cos, sin = tables(8, 64)
    mod = mods.rope(cos, sin)
    attend = Attention(query_mod=mod, key_mod=mod)
    attend._last = Inputs("f16", 64, 64)
    text = attend.ir()
    name, prepare = prepare_derivative(function, ("q", "k", "v"), nvidia_pipeline.outline("sm_90a"))
    with ir.Context() as context:
        module, host = scheduled(context, text, name, prepare, {"arch": "sm_90a"}, nvidia_pipeline.KERNEL, "NVIDIA")
        emitters = {step.kernel: read(function_named(module, step.kernel), SCHEDULE)["emitter"] for step in host.steps}
    main = "pairs" if function == "bwd" else "attention"
    assert {kind for kernel, kind in emitters.items() if kernel.endswith(main)} == {"hopper"}
    assert {kind for kernel, kind in emitters.items() if kernel.endswith("elements")} == {"simt"}


def test_ahead_of_time(tmp_path: Path) -> None:
    cos, sin = tables(200, 16)
    mod = mods.rope(cos, sin)
    attend = Attention(query_mod=mod, key_mod=mod)
    library = compile_ahead(attend, InputSpec(head_dim=16, value_dim=8), out=tmp_path / "rope")
    assert Path(library.library).exists()


def _mod(function: Callable[..., Any] | None, dim: int = 16, **options: Any) -> Any:
    q, k, v = (torch.randn(1, 2, 5, n) for n in (dim, dim, 8))
    return attention(q, k, v, **{"query_mod": function, **options})


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: _mod(lambda x: partner(x), dim=15), r"partner\(...\) pairs channels, but there are 15 of them"),
        (lambda: _mod(lambda x: rotate_half(x, channels=18)), r"pairs 18 channels of a head dimension of 16"),
        (lambda: _mod(lambda x: rotate_half(x) + partner(x, interleaved=True)), r"pairs channels in another way than before"),
        (lambda: _mod(None, value_mod=lambda x: partner(x)), r"only query_mod and key_mod have"),
        (lambda: _mod(None, score_mod=lambda s, b, h, i, j: partner(s)), r"only query_mod and key_mod have"),
        (lambda: _mod(lambda x, b, h, i, d: x * partner(torch.ones(4, 2))[0, 0]), r"partner\(...\) of a captured tensor"),
        (
            lambda: linear(torch.ones(1, 2, 5, 16), torch.ones(1, 2, 5, 16), torch.ones(1, 2, 5, 16), q_mod=lambda x: partner(x)),
            r"in linear attention, whose mods see one channel",
        ),
    ],
)
def test_mistakes(call: Callable[[], Any], message: str) -> None:
    with pytest.raises(TraceError, match=message):
        call()


def test_wrong_arguments() -> None:
    cos, sin = tables(5, 16)
    for call, message in (
        (lambda: mods.rope(cos[0], sin[0]), r"cos must be a tensor, \[positions, R / 2\]"),
        (lambda: mods.rope(cos, sin[:, 1:]), r"cos and sin must have one shape, got \[5, 8\] and \[5, 7\]"),
        (lambda: mods.rope(cos, sin, positions=torch.zeros(())), r"positions must be a tensor, \[length\]"),
        (lambda: rotate_half(torch.randn(3, 5)), r"pairs an even number of channels, up to 5, got 5"),
        (lambda: partner(1.0), r"takes a tensor, or x of a query_mod or key_mod"),
        (lambda: _mod(mods.rope(cos[:3], sin[:3])), r"captured tensor .cos. has size 3 in dimension 0"),
        (lambda: _mod(mods.rope(cos, sin), dim=8), r"pairs 16 channels of a head dimension of 8"),
    ):
        with pytest.raises((ArgumentError, TraceError), match=message):
            call()
