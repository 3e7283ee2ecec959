"""LinearAttentionEngine: AttentionEngine's programs for linear attention, their gradients, and mistakes in them."""

import re
from typing import Any

import pytest
import torch

from attn_mlir import CustomIO, LinearAttentionEngine, meta_tensor
from attn_mlir.errors import ArgumentError, TraceError, UnsupportedError
from linear_reference import check_errors, error, reference

B, H, T, D, DV = 2, 4, 70, 16, 8
TOLERANCE = 1e-6
NAMED = CustomIO({"A": (1, "heads"), "dt": ("batch", "heads", "seq_len")})
NUMBERS = CustomIO({"A": (1, H), "dt": (B, H, T)})


def decay_mod(decay: Any, custom_io: Any) -> Any:
    return decay * custom_io.input_tensors["A"]


def times_dt(x: Any, custom_io: Any) -> Any:
    return x * custom_io.input_tensors["dt"]


def meta(hq: int = 1, hk: int = 1, length: int | str = T, dtype: torch.dtype = torch.float32) -> tuple[Any, ...]:
    return (
        meta_tensor(B, hq, length, D, dtype=dtype), meta_tensor(B, hk, length, D, dtype=dtype), meta_tensor(B, H, length, DV, dtype=dtype),
    )  # fmt: skip


def inputs(hq: int = 1, hk: int = 1, t: int = T) -> list[torch.Tensor]:
    """q, k, v, dt as decay, A and dt once more."""
    generator = torch.Generator().manual_seed(0)
    shapes = ((B, hq, t, D), (B, hk, t, D), (B, H, t, DV), (B, H, t), (1, H))
    q, k, v, dt, a = (torch.randn(*shape, generator=generator) for shape in shapes)
    return [q, k, v, dt.sigmoid(), -a.abs(), dt.sigmoid()]


def expected(q: Any, k: Any, v: Any, decay: Any, a: Any, dt: Any, which: str) -> torch.Tensor:
    options: dict[str, Any] = {which: lambda x, b, h, t: x * dt[b, h, t]}
    return reference(q, k, v, decay * a[0, :, None], **options)[0]


@pytest.mark.parametrize("custom", [NAMED, NUMBERS], ids=["names", "numbers"])
@pytest.mark.parametrize("which", ["v_mod", "k_mod"])
def test_mamba2_and_its_gradients(which: str, custom: CustomIO) -> None:
    mods: dict[str, Any] = {which: times_dt}
    mod = LinearAttentionEngine(meta(), decay_mod=decay_mod, custom_io=custom, tune=False, tune_filename="mamba2", tune_bwd=False, **mods)
    mine = [x.requires_grad_() for x in inputs()]
    theirs = [x.detach().double().requires_grad_() for x in mine]
    o, known = mod(*mine), expected(*theirs, which=which)
    assert o.shape == (B, H, T, DV)
    assert error(o, known) < TOLERANCE
    # Over several draws: dA is a sum over pairs of positions, and in one draw of a hundred it is by chance a tenth of what it usually is.
    weights = torch.randn(8, *o.shape)
    found = (torch.autograd.grad(o, mine, weight, retain_graph=True) for weight in weights)
    wanted = (torch.autograd.grad(known, theirs, weight.double(), retain_graph=True) for weight in weights)
    draws = zip(("q", "k", "v", "decay", "A", "dt"), zip(*found, strict=True), zip(*wanted, strict=True), strict=True)
    check_errors({f"d {name}": error(torch.stack(x), torch.stack(y)) for name, x, y in draws})


def test_retention_with_the_logarithm_in_the_mod() -> None:
    scale = D**-0.5
    mod = LinearAttentionEngine(meta(H, H), q_mod=lambda q, custom_io: q * scale, decay_mod=lambda decay, custom_io: decay.log())
    q, k, v, *_ = inputs(H, H)
    gamma = (1 - torch.exp2(-5.0 - torch.arange(H))).view(1, H, 1).expand(B, H, T)
    assert error(mod(q, k, v, gamma), reference(q, k, v, gamma.log(), None)[0]) < TOLERANCE


def test_functions_with_positions_and_channels() -> None:
    mod = LinearAttentionEngine(
        meta(),
        decay_mod=lambda g, custom_io, b, h, t, d: g * custom_io.input_tensors["A"] - 0.01 * d,
        v_mod=lambda v, b, h, t: v * (t % 3),
        custom_io=CustomIO({"A": (1, "heads")}),
    )
    q, k, v, dt, a, _ = inputs()
    known = reference(
        q, k, v, dt, decay_mod=lambda g, b, h, t, d: g * a[0][h] - 0.01 * d, v_mod=lambda x, b, h, t: x * (t % 3)
    )  # fmt: skip
    assert error(mod(q, k, v, dt, a), known[0]) < TOLERANCE


def test_custom_inputs_with_positions_and_no_channel() -> None:
    """Five parameters: the custom inputs and positions, unless the second one is called b."""
    mod = LinearAttentionEngine(
        meta(),
        decay_mod=lambda g, io, b, h, t: g * io.input_tensors["A"] - 0.01 * t,
        v_mod=lambda v, b, h, t, d: v * (d % 3),
        custom_io=CustomIO({"A": (1, "heads")}),
    )
    assert 'channels = "none"' in mod.ir()
    q, k, v, dt, a, _ = inputs()
    known = reference(q, k, v, dt, decay_mod=lambda g, b, h, t: g * a[0][h] - 0.01 * t, v_mod=lambda x, b, h, t, d: x * (d % 3))
    assert error(mod(q, k, v, dt, a), known[0]) < TOLERANCE


def test_lengths_that_differ() -> None:
    mod = LinearAttentionEngine(meta(length="T"), decay_mod=decay_mod, v_mod=times_dt, custom_io=NAMED)
    for t in (1, 33):
        x = inputs(t=t)
        assert error(mod(*x), expected(*x, which="v_mod")) < TOLERANCE


def test_compiled_by_torch() -> None:
    mod = LinearAttentionEngine(meta(), decay_mod=decay_mod, v_mod=times_dt, custom_io=NAMED)
    mine, theirs = [x.requires_grad_() for x in inputs()], [x.requires_grad_() for x in inputs()]
    o, known = torch.compile(mod, fullgraph=True, backend="aot_eager")(*mine), mod(*theirs)
    assert torch.equal(o, known)
    o.square().sum().backward()
    known.square().sum().backward()
    for x, y in zip(mine, theirs, strict=True):
        assert x.grad is not None and y.grad is not None and torch.equal(x.grad, y.grad)


def test_inspection() -> None:
    mod = LinearAttentionEngine(meta(), decay_mod=decay_mod, v_mod=times_dt, custom_io=NAMED)
    assert "attn.linear_attention" in mod.ir()
    assert '"attn.chunk"' in mod.stages()["attn-chunk-rewrite"]
    assert "chunk_decay" in mod.explain()


@pytest.mark.parametrize(
    ("options", "kind", "text"),
    [
        ({"tune_filename": 3}, ArgumentError, "tune_filename is a path, got 3"),
        ({"custom_io": {}}, ArgumentError, "custom_io must be a CustomIO, got dict"),
        ({"v_mod": lambda v, custom_io: v * custom_io.input_tensors["w"]}, TraceError, "raised KeyError: 'w'"),
        ({"device": "tpu-9"}, UnsupportedError, "device 'tpu-9': no backend serves it"),
        ({"qkv_meta": (meta()[0], meta()[1], meta_tensor(B, H, 9, DV))}, ArgumentError, "qkv_meta: v has dtype torch.float16"),
        ({"qkv_meta": meta(3)}, ArgumentError, "qkv_meta: v has 4 heads, which is no multiple of the 3 heads of q"),
        ({"custom_io": CustomIO({"w": (7,)}), "v_mod": lambda v, c: v * c.input_tensors["w"]}, TraceError, "`w` has the dimension 7"),
    ],
)
def test_mistakes_at_construction(options: dict[str, Any], kind: type[Exception], text: str) -> None:
    with pytest.raises(kind, match=re.escape(text)):
        LinearAttentionEngine(**{"qkv_meta": meta(), **options})


def test_mistakes_in_a_call() -> None:
    mod = LinearAttentionEngine(meta(), decay_mod=decay_mod, v_mod=times_dt, custom_io=NUMBERS)
    q, k, v, decay, a, dt = inputs()

    def refused(text: str, *given: Any) -> None:
        with pytest.raises(ArgumentError, match=re.escape(text)):
            mod(*given)

    refused("the call passes 1 custom inputs after q, k, v and decay, but custom_io names 2: A, dt", q, k, v, decay, a)
    refused("decay must be a tensor [B, H, T]", q, k, v, None, a, dt)
    refused("decay must be a tensor [B, H, T]", q, k, v, a[0], a, dt)
    refused("the custom input `A` has size 3 in dimension 1", q, k, v, decay, a[:, :3], dt)
    refused("qkv_meta is in the order [B, H, S, D], the tensors of a call are [B, H, T, D], too", *inputs(t=9))
    refused("q, k and v have dtype torch.float16, but qkv_meta says torch.float32", *(x.half() for x in inputs()))
