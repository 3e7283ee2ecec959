"""Attentions that run on a GPU, the dense formula of each, and the rule by which results in 16 bits are compared with it."""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

from attn_mlir import attention, mods, rows
from attn_mlir.errors import UnsupportedError
from dense_rows import dense, with_torch

DTYPES = (torch.float16, torch.bfloat16)
GPU = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")]
Three = tuple[Tensor, Tensor, Tensor]


@dataclasses.dataclass(frozen=True)
class Sizes:
    """Batch, query heads, key heads, queries, keys, columns of q and of v."""

    b: int = 2
    hq: int = 4
    hkv: int = 2
    sq: int = 200
    skv: int = 330
    d: int = 64
    dv: int = 64


@dataclasses.dataclass(frozen=True)
class Case:
    """`make(t)` gives row, score_mod and mask_mod, of tensors `t.name` that need gradients; `tensors` gives their shapes."""

    make: Callable[[Any], Mapping[str, Any]]
    tensors: Callable[[Sizes], Mapping[str, tuple[int, ...]]] = lambda s: {}
    factor: float = 2.0
    """How many times the error of the dense formula is allowed."""
    eager: torch.dtype | None = None
    """The precision of that formula, where it gives NaN in that of the inputs."""


def causal(b: Any, h: Any, q: Any, k: Any) -> Any:
    return q >= k


def window(b: Any, h: Any, q: Any, k: Any) -> Any:
    return (q >= k) & (q - k <= 70)


def plain(row: Callable[..., Any], mask: Callable[..., Any] | None = None, factor: float = 2.0) -> Case:
    return Case(lambda t: {"row": row, "mask_mod": mask}, factor=factor)


def layer_norm(s: Any) -> Any:
    centred = s - s.mean()
    return centred / ((centred * centred).mean() + 1e-3).sqrt()


CASES: dict[str, Case] = {
    "softmax": plain(rows.softmax),
    "causal softmax": plain(rows.softmax, causal),
    "window": plain(rows.softmax, window),
    "every third key": plain(rows.softmax, lambda b, h, q, k: (q - k) % 3 == 0),
    "softmax1": plain(rows.softmax1, causal),
    "sigmoid": plain(rows.sigmoid, causal),
    "relu": plain(rows.relu),
    "relu squared": plain(rows.relu_squared, causal),
    "relu normalized": Case(lambda t: {"row": rows.relu_normalized, "mask_mod": window}, eager=torch.bfloat16),
    "retention": plain(rows.retention, causal),
    "layer norm": plain(layer_norm),
    "softcap": Case(lambda t: {"row": rows.softmax, "score_mod": mods.softcap(5.0), "mask_mod": causal}, factor=3.0),
    "learned slopes": Case(
        lambda t: {"row": rows.softmax, "score_mod": lambda s, b, h, q, k: s + t.x[h] * (k - q), "mask_mod": causal},
        lambda s: {"x": (s.hq,)},
        3.0,
    ),
    "learned bias": Case(
        lambda t: {"row": rows.softmax, "score_mod": lambda s, b, h, q, k: s + t.x[h, q, k]}, lambda s: {"x": (s.hq, s.sq, s.skv)}, 3.0
    ),
    "relative positions": Case(
        lambda t: {"row": rows.softmax, "score_mod": lambda s, b, h, q, k: s + t.x[torch.clamp(q - k, -8, 8) + 8, h], "mask_mod": window},
        lambda s: {"x": (17, s.hq)},
        3.0,
    ),
    "sinks": Case(lambda t: {"row": rows.softmax_sink(t.x), "mask_mod": window}, lambda s: {"x": (s.hq,)}, 3.0),
    "gated": Case(
        lambda t: {"row": rows.sigmoid, "score_mod": lambda s, b, h, q, k: s * torch.sigmoid(t.x[b, q]) + t.y[k], "mask_mod": causal},
        lambda s: {"x": (s.b, s.sq), "y": (s.skv,)},
        3.0,
    ),
}  # fmt: skip


def inputs(case: Case, sizes: Sizes, dtype: torch.dtype, seed: int = 0) -> list[Tensor]:
    """q, k, v and the case's tensors (which are float32), normal numbers on the CPU."""
    generator = torch.Generator().manual_seed(seed)

    def normal(*shape: int) -> Tensor:
        return torch.randn(shape, generator=generator)

    s = sizes
    heads = [normal(s.b, s.hq, s.sq, s.d), normal(s.b, s.hkv, s.skv, s.d), normal(s.b, s.hkv, s.skv, s.dv)]
    return [*(x.to(dtype) for x in heads), *(0.3 * normal(*shape) for shape in case.tensors(sizes).values())]


def results(run: Callable[..., Tensor], leaves: Sequence[Tensor]) -> list[Tensor]:
    """The output of `run` on the leaves, then the gradients of all leaves for a fixed normal gradient of the output."""
    leaves = [x.detach().requires_grad_() for x in leaves]
    try:
        o = run(*leaves)
        upstream = torch.randn(o.shape, generator=torch.Generator().manual_seed(5)).to(o)
        return [o.detach(), *torch.autograd.grad(o, leaves, upstream)]
    except UnsupportedError as error:
        if "TileLang" in str(error):
            pytest.skip("a kernel of this attention goes through TileLang, which is not installed")
        raise


def functions(case: Case, sizes: Sizes, tensors: Sequence[Tensor]) -> dict[str, Any]:
    """Row, score_mod and mask_mod of a case, of its tensors."""
    return dict(case.make(SimpleNamespace(**dict(zip(case.tensors(sizes), tensors, strict=True)))))


def ours(case: Case, sizes: Sizes, **options: Any) -> Callable[..., Tensor]:
    """The attention of a case as a function of q, k, v and its tensors."""
    return lambda q, k, v, *tensors: attention(q, k, v, **functions(case, sizes, tensors), **options)


def formula(case: Case, sizes: Sizes) -> Callable[..., Tensor]:
    """The same by the dense formula, in the precision of its arguments."""

    def run(q: Tensor, k: Tensor, v: Tensor, *tensors: Tensor) -> Tensor:
        made = functions(case, sizes, tensors)
        made["row"] = with_torch(made["row"])
        made = {name: function for name, function in made.items() if function is not None}
        if made.get("score_mod") is not None and getattr(made["score_mod"], "__module__", "").startswith("attn_mlir"):
            made["score_mod"] = lambda s, b, h, i, j: 5.0 * torch.tanh(s / 5.0)  # of `mods.softcap`, which only traces
        with torch.device(q.device), torch.overrides.BaseTorchFunctionMode():
            return dense(made, q, k, v)[0]

    return run


def failures(
    got: Sequence[Tensor], eager: Sequence[Tensor], exact: Sequence[Tensor], factor: float, names: Sequence[str]
) -> dict[str, str]:
    """What breaks the rule: the error may be `factor` times that of the dense formula in the same precision, and the output's rounding."""
    found = {}
    for name, mine, theirs, want in zip(names, got, eager, exact, strict=True):
        error, allowed = ((x.double() - want.double()).abs().max().item() for x in (mine, theirs))
        allowed = factor * allowed + torch.finfo(mine.dtype).eps * want.abs().max().item() + 1e-6
        if not error <= allowed:
            found[name] = f"error {error:.3g}, allowed {allowed:.3g}, largest {want.abs().max().item():.3g}"
    return found


def one_large_score(sizes: Sizes, seed: int) -> list[Tensor]:
    """q, k, v in f16: a key whose score is 10.4 above that of all others, and whose value differs from theirs.

    Its weight in a softmax is near 1, that of a thousand others together 0.03, of each far below 2^-14.
    """
    generator, s = torch.Generator().manual_seed(seed), sizes
    q, k, v = (
        torch.randn(shape, generator=generator) for shape in ((s.b, s.hq, s.sq, s.d), (s.b, s.hkv, s.skv, s.d), (s.b, s.hkv, s.skv, s.dv))
    )
    q, k, v, place = 0.3 * q, 0.3 * k, 1 + 0.1 * v, 97 * seed
    q[..., 0], k[..., 0] = 8, 0
    k[:, :, place, 0], v[:, :, place] = 10.4 * s.d**0.5 / 8, -1
    return [q.half(), k.half(), v.half()]


def beyond_rounding(got: Tensor, exact: Tensor) -> float:
    """The largest error past the one that rounding the exact number to the type of the result may have, by the largest number."""
    error = (got.double() - exact).abs() - exact.abs() * torch.finfo(got.dtype).eps / 2
    return float(error.max() / exact.abs().max())


def check(case: Case, sizes: Sizes, dtype: torch.dtype, device: str = "cuda", seed: int = 0, **options: Any) -> None:
    """Compares output and gradients on a device with the dense formula in float64."""
    leaves = [x.to(device) for x in inputs(case, sizes, dtype, seed)]
    got = results(ours(case, sizes, **options), leaves)
    eager = results(formula(case, sizes), [x.to(case.eager or dtype) for x in leaves])
    exact = results(formula(case, sizes), [x.double() for x in leaves])
    wrong = failures(got, eager, exact, case.factor, ["o", "dq", "dk", "dv", *(f"d{name}" for name in case.tensors(sizes))])
    assert not wrong, wrong


def heads(*shape: int, dtype: torch.dtype = torch.float16, seed: int = 0) -> Tensor:
    """A normal tensor on the GPU."""
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to("cuda", dtype)


def qkv(b: int = 2, hq: int = 4, hkv: int = 2, s: int = 300, d: int = 64) -> Three:
    """Random q, k and v in f16."""
    return heads(b, hq, s, d), heads(b, hkv, s, d, seed=1), heads(b, hkv, s, d, seed=2)


def learning(tensors: Three) -> Three:
    """The tensors themselves, which need gradients from now on."""
    for tensor in tensors:
        tensor.requires_grad_()
    return tensors
