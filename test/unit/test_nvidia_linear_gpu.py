"""Linear attention on an NVIDIA GPU: outputs, states and gradients against the formula in float64."""

from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import pytest
import torch

from attn_mlir import linear_attention
from attn_mlir.api.recurrences import gla, mamba2, retention_linear, simple_gla
from attn_mlir.errors import UnsupportedError

GPU = pytest.mark.gpu
HALF, BRAIN, SINGLE = torch.float16, torch.bfloat16, torch.float32
_BOUND = 4e-3
"""rms(error) / rms(reference) in 16 bits."""
_BOUND_SINGLE = 1.5e-6


def bound(dtype: torch.dtype) -> float:
    """What errors may be with inputs of a dtype."""
    return _BOUND_SINGLE if dtype == SINGLE else _BOUND


@dataclass(frozen=True)
class Shape:
    """Inputs are [B, T, heads, D]; q and k have `key_heads` heads."""

    batch: int
    length: int
    heads: int = 4
    key_heads: int = 4
    key_dim: int = 64
    value_dim: int = 64


def formula(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, g: torch.Tensor, scale: float, state: torch.Tensor | None = None
) -> tuple[torch.Tensor, torch.Tensor]:
    """o and the final state in float64; g is [B, T, H], or [B, T, H, K] with a decay for every channel."""
    q, k, v, g = (x.transpose(1, 2) for x in (q, k, v, g))
    q, k = (x.repeat_interleave(v.shape[1] // x.shape[1], 1) for x in (q, k))
    sums = g.unsqueeze(3).expand(*g.shape, q.shape[3]).cumsum(2) if g.dim() == 3 else g.cumsum(2)
    before = torch.ones(v.shape[2], v.shape[2], dtype=torch.bool, device=v.device).tril()
    if g.dim() == 3:
        one = sums[..., 0]
        weights = (one.unsqueeze(3) - one.unsqueeze(2)).masked_fill(~before, -torch.inf).exp() * (q @ k.transpose(2, 3))
    else:
        apart = (sums.unsqueeze(3) - sums.unsqueeze(2)).masked_fill(~before[:, :, None], -torch.inf).exp()
        weights = torch.einsum("bhtk,bhsk,bhtsk->bhts", q, k, apart)
    o, last = weights @ v, sums[:, :, -1:]
    final = (k * (last - sums).exp()).transpose(2, 3) @ v
    if state is not None:
        o, final = o + (q * sums.exp()) @ state, final + last.transpose(2, 3).exp() * state
    return (scale * o).transpose(1, 2), final


def error(found: torch.Tensor, wanted: torch.Tensor) -> float:
    """rms(found - wanted) / rms(wanted)."""
    return ((found.double() - wanted).norm() / wanted.norm().clamp_min(1e-30)).item()


def leaves_of(shape: Shape, dtype: torch.dtype, gate: float, channels: bool = False, state: bool = False) -> dict[str, torch.Tensor]:
    """Random q, k, v and log decays in [-gate, 0], and an initial state."""
    torch.manual_seed(0)
    rows = (shape.batch, shape.length)
    made = {
        "q": (*rows, shape.key_heads, shape.key_dim),
        "k": (*rows, shape.key_heads, shape.key_dim),
        "v": (*rows, shape.heads, shape.value_dim),
    }
    found = {name: torch.randn(size, device="cuda").to(dtype) for name, size in made.items()}
    found["g"] = -gate * torch.rand(*rows, shape.heads, *([shape.key_dim] if channels else []), device="cuda")
    if state:
        found["state"] = torch.randn(shape.batch, shape.heads, shape.key_dim, shape.value_dim, device="cuda")
    return found


def simple(leaves: dict[str, torch.Tensor], **options: Any) -> tuple[torch.Tensor, Any]:
    """`simple_gla` on these inputs."""
    given: dict[str, Any] = {**leaves, **options}
    return simple_gla(**given)


def poison() -> None:
    """Leaves NaNs in memory that outputs land in next."""
    for size in (1 << 20, 1 << 24, 1 << 28):
        torch.full((size // 4,), torch.nan, device="cuda")


def compare(
    shape: Shape, dtype: torch.dtype, gate: float, channels: bool = False, state: bool = False, segment: int = 0
) -> dict[str, float]:
    """The errors of o, the final state and all gradients, none too large; twice the same bits."""
    leaves = leaves_of(shape, dtype, gate, channels, state)
    here = {name: x.clone().requires_grad_() for name, x in leaves.items()}
    exact = {name: x.double().requires_grad_() for name, x in leaves.items()}
    scale, call = shape.key_dim**-0.5, gla if channels else simple_gla

    def results() -> list[torch.Tensor]:
        poison()
        options: dict[str, Any] = {"initial_state": here.get("state"), "output_final_state": state, "segment_size": segment}
        o, final = call(here["q"], here["k"], here["v"], here["g"], **options)
        given = [o, final] if state else [o]
        return [*given, *torch.autograd.grad(given, list(here.values()), weights[: len(given)])]

    o, final = formula(exact["q"], exact["k"], exact["v"], exact["g"], scale, exact.get("state"))
    weights = [torch.randn(o.shape, device="cuda").to(dtype), torch.randn(final.shape, device="cuda")]
    given = [o, final] if state else [o]
    wanted = [*given, *torch.autograd.grad(given, list(exact.values()), [w.double() for w in weights[: len(given)]])]
    found, again = results(), results()
    names = ["o", *(["final"] if state else []), *[f"d{name}" for name in here]]
    errors = {name: error(x, y) for name, x, y in zip(names, found, wanted, strict=True)}
    assert not {name: value for name, value in errors.items() if not value < bound(dtype)}, errors
    assert all(torch.equal(x, y) for x, y in zip(found, again, strict=True))
    return errors


def as_exact(parts: dict[str, float], whole: dict[str, float], dtype: torch.dtype) -> bool:
    """Whether segments, swept at the same time, lose no more than one scan does."""
    return all(parts[name] < 1.2 * value + bound(dtype) / 40 for name, value in whole.items())


def test_the_formula_is_the_recurrence() -> None:
    """On the CPU, so that it is tested everywhere."""
    torch.manual_seed(0)
    q, k, v = (torch.randn(1, 9, 2, 3, dtype=torch.float64) for _ in range(3))
    for channels in ((), (3,)):
        g, state = -torch.rand(1, 9, 2, *channels, dtype=torch.float64), torch.randn(1, 2, 3, 3, dtype=torch.float64)
        o, final = formula(q, k, v, g, 0.5, state)
        for t in range(9):
            decay = g[:, t].exp().reshape(1, 2, -1, 1)
            state = decay * state + k[:, t].unsqueeze(3) * v[:, t].unsqueeze(2)
            assert torch.allclose(o[:, t], 0.5 * (q[:, t].unsqueeze(2) @ state).squeeze(2))
        assert torch.allclose(final, state)


@GPU
@pytest.mark.parametrize("dtype", [HALF, BRAIN, SINGLE], ids=str)
@pytest.mark.parametrize("length", [1, 17, 63, 127, 500, 1000, 2048])
def test_lengths(length: int, dtype: torch.dtype) -> None:
    compare(Shape(2, length, key_dim=128, value_dim=128), dtype, 0.1)


@GPU
@pytest.mark.parametrize(("gate", "length"), [(1e-3, 300), (1.0, 300), (10.0, 1100)])
@pytest.mark.parametrize("dtype", [HALF, BRAIN, SINGLE], ids=str)
def test_decays(gate: float, length: int, dtype: torch.dtype) -> None:
    compare(Shape(1, length), dtype, gate, state=True)


@GPU
@pytest.mark.parametrize(("key_dim", "value_dim"), [(16, 32), (64, 128), (128, 64), (96, 48), (256, 128), (256, 512)])
def test_dimensions(key_dim: int, value_dim: int) -> None:
    compare(Shape(1, 200, key_dim=key_dim, value_dim=value_dim), HALF, 0.1, state=key_dim != 256)


@GPU
@pytest.mark.parametrize(("key_dim", "value_dim"), [(96, 48), (256, 64)])
def test_dimensions_in_single_precision(key_dim: int, value_dim: int) -> None:
    compare(Shape(1, 200, 2, 1, key_dim, value_dim), SINGLE, 0.1, state=key_dim < 256)


@GPU
@pytest.mark.parametrize(("heads", "key_heads"), [(4, 1), (6, 2)])
def test_groups_of_heads(heads: int, key_heads: int) -> None:
    compare(Shape(2, 150, heads, key_heads), BRAIN, 0.1)


@GPU
@pytest.mark.parametrize(
    ("shape", "dtype", "gate", "state"),
    [
        (Shape(1, 150), BRAIN, 0.01, False),
        (Shape(1, 150), BRAIN, 2.0, True),
        (Shape(2, 200, 4, 2, 128, 128), HALF, 0.1, True),
        (Shape(1, 333, 4, 4, 128, 64), BRAIN, 1.0, False),
        (Shape(1, 65, 2, 1, 64, 192), HALF, 0.1, True),
        (Shape(1, 1100, 2, 2, 64, 192), HALF, 1.0, True),
        (Shape(1, 100, 2, 2, 96, 64), BRAIN, 0.1, False),
        (Shape(1, 150, 2, 2, 128, 64), SINGLE, 0.01, False),
        (Shape(1, 150, 2, 2, 128, 64), SINGLE, 10.0, False),
    ],
    ids=str,
)
def test_decays_of_channels(shape: Shape, dtype: torch.dtype, gate: float, state: bool) -> None:
    compare(shape, dtype, gate, channels=True, state=state)


@GPU
def test_decays_of_channels_as_numbers_of_heads_and_in_16_bits() -> None:
    """[H, K], the same at every position, or rounded as q is."""
    leaves = leaves_of(Shape(1, 200, 4, 4, 128, 128), HALF, 0.1, channels=True)
    q, k, v = (leaves[name].transpose(1, 2) for name in "qkv")
    rates = leaves["g"][0, 0].contiguous()
    every = rates[None, :, None].expand(1, 4, 200, 128).contiguous()
    wanted = linear_attention(q, k, v, every)
    assert error(linear_attention(q, k, v, rates), wanted.double()) < 1e-3
    half = every.to(BRAIN)
    assert error(linear_attention(q, k, v, half), linear_attention(q, k, v, half.float()).double()) < 1e-6


@GPU
def test_mods_with_decays_of_channels() -> None:
    leaves = leaves_of(Shape(1, 200, 4, 4, 128, 128), BRAIN, 0.1, channels=True)
    q, k, v, g = (leaves[name].transpose(1, 2) for name in "qkvg")
    rates = torch.rand(4, device="cuda")
    found = linear_attention(
        q, k, v, g, q_mod=lambda x, b, h, t: x * rates[h], k_mod=lambda x: torch.relu(x), decay_mod=lambda g, b, h, t, d: g * rates[h]
    )
    exact, by_head = {name: x.double() for name, x in leaves.items()}, rates.double()[None, None, :, None]
    wanted, _ = formula(exact["q"] * by_head, exact["k"].relu(), exact["v"], exact["g"] * by_head, 1.0)
    assert error(found, wanted.transpose(1, 2)) < _BOUND


def check_apart(call: Any, leaves: dict[str, torch.Tensor], ends: list[int], spoilt: int, limit: float) -> None:
    """One sequence has nothing but NaNs: results and gradients of the others are what they are alone."""
    offsets, weights = torch.tensor(ends, device="cuda"), torch.randn_like(leaves["v"])

    def results(given: dict[str, torch.Tensor], do: torch.Tensor, **options: Any) -> list[torch.Tensor]:
        here = {name: x.clone().requires_grad_() for name, x in given.items()}
        o = call(**here, **options)[0]
        return [o, *torch.autograd.grad(o, list(here.values()), do)]

    shown = {name: x.clone() for name, x in leaves.items()}
    for x in shown.values():
        x[:, ends[spoilt] : ends[spoilt + 1]] = torch.nan
    found = results(shown, weights, cu_seqlens=offsets)
    for number, (begin, end) in enumerate(pairwise(ends)):
        if number == spoilt or begin == end:
            continue
        alone = results({name: x[:, begin:end] for name, x in leaves.items()}, weights[:, begin:end])
        for x, y in zip(found, alone, strict=True):
            assert error(x[:, begin:end], y.double()) < limit


@GPU
@pytest.mark.parametrize("value_dim", [64, 128])
def test_sequences_side_by_side_with_decays_of_channels(value_dim: int) -> None:
    ends = [0, 64, 101, 101, 165, 400]
    leaves = leaves_of(Shape(1, ends[-1], 2, 2, 128, value_dim), BRAIN, 0.1, channels=True)
    check_apart(gla, leaves, ends, 3, _BOUND)


@GPU
def test_a_decay_of_minus_infinity_forgets() -> None:
    leaves = leaves_of(Shape(1, 200), BRAIN, 0.1)
    leaves["g"][:, 100] = -torch.inf
    found = simple(leaves)[0]
    assert found.isfinite().all()
    later = simple({name: x[:, 100:] for name, x in leaves.items()})[0]
    assert error(found[:, 100:], later.double()) < _BOUND


@GPU
def test_sequences_side_by_side() -> None:
    leaves = leaves_of(Shape(1, 300), BRAIN, 0.1)
    ends = [0, 1, 65, 65, 200, 300]
    o, final = simple(leaves, cu_seqlens=torch.tensor(ends, device="cuda", dtype=torch.int32), output_final_state=True)
    for number, (begin, end) in enumerate(pairwise(ends)):
        if begin == end:
            assert not final[number].any()
            continue
        alone, state = simple({name: x[:, begin:end] for name, x in leaves.items()}, output_final_state=True)
        assert error(o[:, begin:end], alone.double()) < _BOUND
        assert error(final[number], state[0].double()) < _BOUND


@GPU
@pytest.mark.parametrize(("value_dim", "dtype"), [(64, BRAIN), (128, BRAIN), (64, SINGLE)], ids=str)
def test_sequences_side_by_side_do_not_meet(value_dim: int, dtype: torch.dtype) -> None:
    ends = [0, 64, 101, 165, 400]
    check_apart(simple_gla, leaves_of(Shape(1, ends[-1], value_dim=value_dim), dtype, 0.1), ends, 2, bound(dtype))


@GPU
@pytest.mark.parametrize(
    ("shape", "dtype", "gate", "segment"),
    [
        (Shape(1, 1000, 4, 2, 128, 128), HALF, 0.1, 512),
        (Shape(2, 4096, 2, 1, 128, 64), BRAIN, 0.01, 1024),
        (Shape(1, 4096, 2, 2, 64, 128), HALF, 1.0, 512),
        (Shape(1, 16384, 1, 1, 128, 128), BRAIN, 0.001, 2048),
        (Shape(1, 1100, 2, 2, 256, 256), BRAIN, 0.1, 512),
        (Shape(1, 1100, 2, 2, 96, 32), BRAIN, 0.1, 512),
        (Shape(2, 1100, 2, 1, 64, 64), SINGLE, 0.1, 512),
    ],
    ids=str,
)
def test_segments_swept_at_the_same_time(shape: Shape, dtype: torch.dtype, gate: float, segment: int) -> None:
    whole, parts = (compare(shape, dtype, gate, state=True, segment=size) for size in (0, segment))
    assert as_exact(parts, whole, dtype), (whole, parts)


@GPU
def test_segments_with_decays_of_channels() -> None:
    whole, parts = (compare(Shape(1, 1100), HALF, 0.1, channels=True, state=True, segment=size) for size in (0, 512))
    assert as_exact(parts, whole, HALF), (whole, parts)


@GPU
def test_two_calls_through_the_state() -> None:
    leaves = leaves_of(Shape(2, 333), BRAIN, 0.1)
    o, final = simple(leaves, output_final_state=True)
    first, state = simple({name: x[:, :150] for name, x in leaves.items()}, output_final_state=True)
    second, last = simple({name: x[:, 150:] for name, x in leaves.items()}, initial_state=state, output_final_state=True)
    assert error(torch.cat([first, second], 1), o.double()) < _BOUND
    assert error(last, final.double()) < _BOUND


@GPU
@pytest.mark.parametrize(("length", "segment"), [(500, 0), (1300, 512)])
def test_mamba2_and_its_gradients(length: int, segment: int) -> None:
    torch.manual_seed(0)
    given = {
        name: torch.randn(2, length, heads, dim, device="cuda").to(BRAIN)
        for name, heads, dim in (("x", 8, 64), ("B", 1, 128), ("C", 1, 128))
    }
    given["B"], given["dt"], given["A"] = given["B"] / 8, torch.rand(2, length, 8, device="cuda"), -torch.rand(8, device="cuda") - 0.1
    here = {name: x.clone().requires_grad_() for name, x in given.items()}
    exact = {name: x.double().requires_grad_() for name, x in given.items()}
    y = mamba2(here["x"], here["dt"], here["A"], here["B"], here["C"], segment_size=segment)
    v, g = exact["x"] * exact["dt"].unsqueeze(3), exact["dt"] * exact["A"]
    wanted, _ = formula(exact["C"], exact["B"], v, g, 1.0)
    do = torch.randn_like(y)
    assert error(y, wanted) < _BOUND
    found = torch.autograd.grad(y, list(here.values()), do)
    for name, x, r in zip(here, found, torch.autograd.grad(wanted, list(exact.values()), do.double()), strict=True):
        assert error(x, r) < _BOUND, name


@GPU
def test_retention_in_segments() -> None:
    """Its decays are constants: no sum of a segment's decays is read from memory."""
    leaves = leaves_of(Shape(2, 1100, key_dim=128, value_dim=128), BRAIN, 0.1)
    weights, made = torch.randn_like(leaves["v"]), []
    for segment in (0, 512):
        q, k, v = (leaves[name].clone().requires_grad_() for name in "qkv")
        o = retention_linear(q, k, v, segment_size=segment)[0]
        made.append([o, *torch.autograd.grad(o, (q, k, v), weights)])
    rate = torch.log(1 - torch.exp2(-5 - torch.arange(4, device="cuda", dtype=torch.float64)))
    q, k, v = (leaves[name].double().requires_grad_() for name in "qkv")
    o, _ = formula(q, k, v, rate.expand(2, 1100, 4), 128**-0.5)
    wanted = [o, *torch.autograd.grad(o, (q, k, v), weights.double())]
    for whole, part, known in zip(*made, wanted, strict=True):
        assert error(part, known) < min(_BOUND, 1.2 * error(whole, known) + 1e-4)


@GPU
def test_retention_of_both_layouts() -> None:
    leaves = leaves_of(Shape(1, 200), HALF, 0.1)
    o = retention_linear(leaves["q"], leaves["k"], leaves["v"])[0]
    rate = torch.log(1 - torch.exp2(-5 - torch.arange(4, device="cuda", dtype=torch.float64)))
    wanted, _ = formula(leaves["q"].double(), leaves["k"].double(), leaves["v"].double(), rate.expand(1, 200, 4), 0.125)
    assert error(o, wanted) < _BOUND
    q, k, v = (leaves[name].transpose(1, 2).contiguous() for name in "qkv")
    heads = linear_attention(q, k, v, rate.float(), scale=0.125)
    assert error(heads.transpose(1, 2), wanted) < _BOUND


@GPU
def test_double_precision_is_refused() -> None:
    q = torch.randn(1, 8, 2, 16, device="cuda", dtype=torch.float64)
    with pytest.raises(UnsupportedError, match="16-bit and f32 inputs"):
        simple_gla(q, q, q)
