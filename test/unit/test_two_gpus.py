"""Two NVIDIA GPUs: every form of a call on the one that is not current, first there or first here, both at once, and graphs on each.

What a form computes is known from the CPU's own draws, so results on two devices have to agree."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import torch

from attn_mlir import (
    append_kv,
    attention,
    attention_varlen,
    gated_delta_rule,
    gla,
    kda,
    linear_attention,
    linear_attention_step,
    masks,
    merge,
    mods,
    plan_varlen,
    rows,
)

Tensor = torch.Tensor
Form = Callable[[Any], list[Tensor]]
pytestmark = [pytest.mark.gpu, pytest.mark.skipif(torch.cuda.device_count() < 2, reason="fewer than two GPUs")]


def drawn(device: Any, *shapes: tuple[int, ...], dtype: torch.dtype = torch.float16) -> list[Tensor]:
    """Normal numbers, the same on each device; with gradients."""
    generator = torch.Generator().manual_seed(3)
    return [torch.randn(*shape, generator=generator).to(dtype).to(device).requires_grad_() for shape in shapes]


def with_gradients(o: Tensor, *given: Tensor) -> list[Tensor]:
    """o and the gradients of all that is given."""
    weights = torch.randn(o.shape, generator=torch.Generator().manual_seed(4)).to(o)
    return [o, *torch.autograd.grad((o * weights).sum(), given)]


def offsets(device: Any, *lengths: int) -> Tensor:
    return torch.tensor([0, *lengths]).cumsum(0).int().to(device)


def of_attention(dim: int = 64, **options: Any) -> Form:
    def form(device: Any) -> list[Tensor]:
        q, k, v = drawn(device, (2, 4, 200, dim), (2, 2, 330, dim), (2, 2, 330, dim))
        return with_gradients(attention(q, k, v, **options), q, k, v)

    return form


def captured(device: Any) -> list[Tensor]:
    q, k, v, bias, slopes = drawn(device, (2, 4, 200, 64), (2, 2, 330, 64), (2, 2, 330, 64), (4, 200, 330), (4,))
    slopes = slopes.detach().float().requires_grad_()
    o = attention(q, k, v, score_mod=lambda s, b, h, i, j: s + bias[h, i, j] + slopes[h] * (j - i) / 64, mask_mod=masks.causal())
    return with_gradients(o, q, k, v, bias, slopes)


def tangents(device: Any) -> list[Tensor]:
    q, k, v = drawn(device, (1, 2, 130, 64), (1, 2, 130, 64), (1, 2, 130, 64))
    return list(torch.func.jvp(lambda q: attention(q, k, v, mask_mod=masks.causal()), (q.detach(),), (k.detach(),)))


def packed(device: Any) -> list[Tensor]:
    q, k, v = drawn(device, (150, 4, 64), (401, 2, 64), (401, 2, 64))
    queries, keys = offsets(device, 17, 0, 133), offsets(device, 100, 1, 300)
    return with_gradients(attention_varlen(q, k, v, queries, keys, mask_mod=masks.causal("bottom_right")), q, k, v)


def decoding(device: Any) -> list[Tensor]:
    q, k, v = (x.detach() for x in drawn(device, (3, 8, 64), (40, 16, 2, 64), (40, 16, 2, 64)))
    table, used = torch.arange(39).view(3, 13).int().to(device), torch.tensor([200, 1, 77]).int().to(device)
    with torch.no_grad():
        o = attention_varlen(q, k, v, offsets(device, 1, 1, 1), seqused_k=used, block_table=table, num_splits=3)
    k, v = (x.flatten(0, 1)[None].transpose(1, 2) for x in (k, v))
    return [o, attention(q[None].transpose(1, 2)[:, :, :1], k, v)]


def planned(device: Any) -> list[Tensor]:
    q, k, v = (x.detach() for x in drawn(device, (150, 4, 64), (401, 2, 64), (401, 2, 64)))
    plan = plan_varlen(
        offsets(device, 17, 0, 133), offsets(device, 100, 1, 300), q_heads=4, kv_heads=2, head_dim=64, dtype=q.dtype, device=device
    )
    return [plan.run(q, k, v)]


def appended(device: Any) -> list[Tensor]:
    cache, values, k, v, q = (x.detach() for x in drawn(device, *[(3, 40, 2, 64)] * 2, *[(3, 3, 2, 64)] * 2, (3, 3, 4, 64)))
    cos, sin = (x.detach().float() for x in drawn(device, (64, 32), (64, 32)))
    turned = append_kv(cache, values, k, v, torch.tensor([0, 5, 15]).int().to(device), q=q, rotary_cos=cos, rotary_sin=sin)
    assert turned is not None
    return [cache, values, turned]


def partials(device: Any) -> list[Tensor]:
    q, k, v = drawn(device, (2, 4, 20, 64), (2, 2, 330, 64), (2, 2, 330, 64), dtype=torch.bfloat16)
    parts = [attention(q, k[:, :, cut], v[:, :, cut], return_partial=True) for cut in (slice(0, 130), slice(130, 330))]
    return with_gradients(merge(*parts).finalize(), q, k, v)


def listed(device: Any) -> list[Tensor]:
    q, k, v = drawn(device, (1, 16, 64, 64), (1, 1, 640, 64), (1, 1, 640, 64))
    index = torch.stack([torch.randperm(640, generator=torch.Generator().manual_seed(i))[:96] for i in range(64)])[None, None].int()
    return with_gradients(attention(q, k, v, key_index=index.to(device), key_block=(1, 1)), q, k, v)


def eight_bits(device: Any) -> list[Tensor]:
    q, k, v = (x.detach().to(torch.float8_e4m3fn) for x in drawn(device, (2, 4, 200, 128), (2, 2, 330, 128), (2, 2, 330, 128)))
    scale = torch.full((2,), 0.5, device=device)
    wide = q.to(torch.float16)
    return [attention(q, k, v, k_descale=scale, v_descale=scale), attention(wide, k, v, k_descale=scale), attention(wide[:, :, :1], k, v)]


def dropped(device: Any) -> list[Tensor]:
    q, k, v = drawn(device, (2, 4, 200, 64), (2, 2, 330, 64), (2, 2, 330, 64))
    seed = torch.tensor([7, 9], dtype=torch.int64, device=device)
    return with_gradients(attention(q, k, v, dropout_p=0.3, dropout_seed=seed), q, k, v)


def linear(device: Any) -> list[Tensor]:
    q, k, v, decay = drawn(device, (2, 4, 200, 64), (2, 4, 200, 64), (2, 4, 200, 64), (2, 4, 200))
    o, state = linear_attention(q, k, v, -decay.abs(), output_final_state=True)
    return [*with_gradients(o, q, k, v, decay), state]


def steps(device: Any) -> list[Tensor]:
    q, k, v, decay = (x.detach() for x in drawn(device, *[(2, 4, 1, 64)] * 3, (2, 4, 1)))
    o, state = linear_attention_step(q, k, v, -decay.abs())
    return [o, *linear_attention_step(q, k, v, -decay.abs(), state)]


def of_delta(function: Callable[..., Any], channels: bool, erase: bool = True) -> Form:
    def form(device: Any) -> list[Tensor]:
        q, k, v, g, beta = drawn(
            device, *[(2, 200, 4, 64)] * 3, (2, 200, 4, 64) if channels else (2, 200, 4), (2, 200, 4), dtype=torch.bfloat16
        )
        more = (beta.sigmoid(),) if erase else ()
        o, _ = function(torch.nn.functional.normalize(q, dim=-1), torch.nn.functional.normalize(k, dim=-1), v, -g.abs().float(), *more)
        return with_gradients(o, q, k, v, g, *((beta,) if erase else ()))

    return form


# Gradients may be sums by atomics, so that all are compared to rounding.
FORMS: dict[str, Form] = {
    "causal": of_attention(mask_mod=masks.causal()),
    "full, 128": of_attention(128),
    "wide": of_attention(256),
    "deterministic": of_attention(deterministic=True, mask_mod=masks.causal()),
    "window": of_attention(mask_mod=masks.sliding_window(50)),
    "softcap": of_attention(score_mod=mods.softcap(20.0)),
    "sigmoid": of_attention(row=rows.sigmoid),
    "captured": captured,
    "tangents": tangents,
    "packed": packed,
    "decoding": decoding,
    "planned": planned,
    "appended": appended,
    "partials": partials,
    "listed": listed,
    "eight bits": eight_bits,
    "dropout": dropped,
    "linear": linear,
    "steps": steps,
    "gated linear": of_delta(gla, True, erase=False),
    "gated delta": of_delta(gated_delta_rule, False),
    "channels' delta": of_delta(kda, True),
}


def one_key_each(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    index = torch.arange(200, dtype=torch.int32, device=q.device).view(1, 1, 200, 1)
    return attention(q, k, v, key_index=index, key_block=(1, 1))


def unit_keys(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    q, k, v = (x.transpose(1, 2)[:, :200, :2].bfloat16() for x in (q, k, v))
    return gated_delta_rule(q, k, v, use_qk_l2norm_in_kernel=True)[0]


# Calls of q [1, 4, 200, 64] and k, v [1, 2, 330, 64] in graphs.
CALLS: dict[str, Callable[[Tensor, Tensor, Tensor], Tensor]] = {
    "causal": lambda q, k, v: attention(q, k, v, mask_mod=masks.causal()),
    "decoding": lambda q, k, v: attention(q[:, :, :1], k, v),
    "sigmoid": lambda q, k, v: attention(q, k, v, row=rows.sigmoid),
    "listed": one_key_each,
    "linear": lambda q, k, v: linear_attention(q[:, :2], k[:, :, :200], v[:, :, :200]),
    "gated delta": unit_keys,
    "eight bits": lambda q, k, v: attention(q, k.to(torch.float8_e4m3fn), v.to(torch.float8_e4m3fn)),
}


def compare(made: list[Tensor], wanted: list[Tensor], index: int) -> None:
    assert len(made) == len(wanted)
    for x, want in zip(made, wanted, strict=True):
        assert x.device.index == index
        got, want = x.detach().cpu().double(), want.detach().cpu().double()
        assert got.isfinite().all()
        torch.testing.assert_close(got, want, atol=float(8e-3 * want.abs().max().clamp_min(1)), rtol=0)


@pytest.mark.parametrize("first", [1, 0])
@pytest.mark.parametrize("name", list(FORMS))
def test_the_other_device(name: str, first: int) -> None:
    """The current device is 0 all along, and stays so; with `first`, kernels are met on device 1 before device 0."""
    torch.cuda.set_device(0)
    made = {index: FORMS[name](torch.device("cuda", index)) for index in (first, 1 - first)}
    assert torch.cuda.current_device() == 0
    for x in range(2):
        torch.cuda.synchronize(x)
    compare(made[0], made[0], 0)
    compare(made[1], made[0], 1)
    with torch.cuda.device(1):
        compare(FORMS[name](torch.device("cuda", 0)), made[0], 0)
        assert torch.cuda.current_device() == 1


@pytest.mark.parametrize("name", [name for name in FORMS if name != "tangents"])  # torch's levels of tangents are the process's
def test_both_at_once(name: str) -> None:
    """A thread a device, several calls each, on streams of their own."""
    wanted = FORMS[name](torch.device("cuda", 0))

    def calls(index: int) -> list[Tensor]:
        with torch.cuda.stream(torch.cuda.Stream(index)):
            made = [FORMS[name](torch.device("cuda", index)) for _ in range(4)]
            torch.cuda.current_stream(index).synchronize()
        return made[-1]

    with ThreadPoolExecutor(4) as pool:
        for index, made in zip((0, 1, 1, 0), pool.map(calls, (0, 1, 1, 0)), strict=True):
            compare(made, wanted, index)


@pytest.mark.parametrize("name", list(CALLS))
def test_graphs_of_each(name: str) -> None:
    """A graph is captured on device 1 after one on device 0, and each is replayed there."""
    graphs = []
    for device in range(2):
        with torch.cuda.device(device):
            q, k, v = (x.detach() for x in drawn(torch.device("cuda", device), (1, 4, 200, 64), (1, 2, 330, 64), (1, 2, 330, 64)))
            call = CALLS[name]
            with torch.no_grad():
                want = call(q, k, v).clone()
                torch.cuda.synchronize()
                graph = torch.cuda.CUDAGraph()
                with torch.cuda.graph(graph, stream=torch.cuda.Stream()):  # torch's own stream of graphs is one device's
                    o = call(q, k, v)
            graphs.append((graph, o, want, (q, k, v)))  # the next capture gives back what nobody holds
    torch.cuda.set_device(0)
    for graph, o, want, _ in graphs:
        with torch.cuda.device(o.device):
            o.zero_()
            graph.replay()
            torch.cuda.synchronize()
        compare([o], [want], o.device.index)
