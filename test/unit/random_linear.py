"""Random linear attentions as Python functions, and their gradients: as derived, and by autograd of the recurrence."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch

from attn_mlir.api.call import linear_arguments
from attn_mlir.api.linear_inputs import check_linear
from attn_mlir.api.options import call_form
from attn_mlir.mlir import ir
from attn_mlir.passes.pipeline import Pipeline
from attn_mlir.reference import evaluate
from attn_mlir.registry import registry
from contexts import loaded_context
from linear_reference import reference
from trace_helpers import as_array

Draw = Callable[[int], int]
"""A number below its argument."""
B, H, T, K, V = 2, 4, 7, 5, 3
MODS = ("q_mod", "k_mod", "v_mod", "decay_mod")

_UNARY: dict[str, Callable[[Any], Any]] = {
    "tanh({})": torch.tanh,
    "silu({})": torch.nn.functional.silu,
    "softplus({})": torch.nn.functional.softplus,
    "exp(tanh({}))": lambda x: torch.exp(torch.tanh(x)),
    "relu({})": torch.relu,
    "0.6 * {}": lambda x: 0.6 * x,
    "{} + 0.3": lambda x: x + 0.3,
}
_BINARY: dict[str, Callable[[Any, Any], Any]] = {
    "{} + {}": lambda x, y: x + y,
    "{} * {}": lambda x, y: x * y,
    "{} / (1 + {} ** 2)": lambda x, y: x / (1.0 + y * y),
    "maximum({}, {})": torch.maximum,
}
READS: dict[str, Callable[..., Any]] = {
    "heads[h]": lambda tensors, b, h, t: tensors["heads"][h],
    "steps[b, h, t]": lambda tensors, b, h, t: tensors["steps"][b, h, t],
    "table[t]": lambda tensors, b, h, t: tensors["table"][t],
    "table[T - 1 - t]": lambda tensors, b, h, t: tensors["table"][tensors["table"].shape[0] - 1 - t],
    "number": lambda tensors, b, h, t: tensors["number"],
}
# Computed of captured tensors by torch, or taken out of them, whenever the mod is called.
COMPUTED: dict[str, Callable[..., Any]] = {
    "heads.exp()[h]": lambda tensors, b, h, t: tensors["heads"].exp()[h],
    "table.mean()": lambda tensors, b, h, t: tensors["table"].mean(),
    "number.item()": lambda tensors, b, h, t: tensors["number"].item(),
    "steps.tanh()[b, h, t]": lambda tensors, b, h, t: tensors["steps"].tanh()[b, h, t],
}


def randn(seed: int, *shape: int) -> torch.Tensor:
    """Normal numbers."""
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


@dataclass(frozen=True)
class LinearCase:
    """A linear attention; `tensors` are what its mods may read."""

    text: str
    mods: tuple[Any, ...]
    tensors: dict[str, torch.Tensor]
    given: dict[str, torch.Tensor] = field(default_factory=dict)
    """q, k, v, and decay and initial_state where there are such."""
    bounds: list[int] | None = None


def random_linear(draw: Draw, length: int = T, computed: bool = False) -> LinearCase:
    """Heads, form of the decay, states, sequences and mods at random; with `computed`, mods read what torch makes of captured tensors."""
    shapes = {"heads": (H,), "steps": (B, H, length), "table": (length,), "number": (), "wide": (H, K)}
    tensors = {name: randn(41 + i, *shape).requires_grad_() for i, (name, shape) in enumerate(shapes.items())}
    bounds = [[0, min(3, length), min(3, length), length], [0, 1, length], None, None][draw(4)]
    batch, decay = 1 if bounds else B, ("none", "heads", "steps", "rates", "channels")[draw(5)]
    sizes = {"heads": (H,), "steps": (batch, H, length), "rates": (H, K), "channels": (batch, H, length, K)}
    given = {name: randn(seed, batch, (1, 2, H)[draw(3)], length, K) for seed, name in enumerate(("q", "k"), 1)}
    given["v"] = randn(3, batch, H, length, V)
    reads = READS | (COMPUTED if computed else {})
    if decay in sizes:
        given["decay"] = -randn(4, *sizes[decay]).abs()
    if draw(2):
        given["initial_state"] = randn(5, len(bounds) - 1 if bounds else batch, H, K, V)
    mods, texts = [], [f"decay {decay}, bounds {bounds}, {', '.join(given)}"]
    for name in MODS:
        mod, text = _mod(name, draw, tensors, reads) if draw(2) else (None, "")
        mods.append(mod)
        texts += [f"{name}: {text}"] if text else []
    channels = decay in ("rates", "channels") or (mods[3] is not None and mods[3].__code__.co_argcount == 5)
    skip, text = (None, "") if channels or not draw(2) else expression(draw, tensors, reads, 2)
    mods.append(None if skip is None else lambda b, h, t: skip(tensors["steps"][b, h, t], b, h, t))
    texts += [f"skip_mod: {text} of x = steps[b, h, t]"] if text else []
    return LinearCase("\n".join(texts), tuple(mods), tensors, {n: x.requires_grad_() for n, x in given.items()}, bounds)


def _mod(name: str, draw: Draw, tensors: dict[str, torch.Tensor], reads: dict[str, Callable[..., Any]]) -> tuple[Any, str]:
    """A mod of the input called `name`, and how it reads. Decays stay negative."""
    change, text = expression(draw, tensors, reads, 2)
    if name == "v_mod" or draw(3):
        if name == "decay_mod":
            return lambda x, b, h, t: -0.5 * torch.log(1.0 + change(x, b, h, t) ** 2), f"-log(1 + ({text}) ** 2) / 2"
        return lambda x, b, h, t: change(x, b, h, t), text
    if name == "decay_mod":
        faded = lambda x, b, h, t, d: -0.5 * torch.log(1.0 + (change(x, b, h, t) + tensors["wide"][h, d]) ** 2)  # noqa: E731
        return faded, f"-log(1 + ({text} + wide[h, d]) ** 2) / 2"
    return lambda x, b, h, t, d: change(x, b, h, t) * tensors["wide"][h, d], f"({text}) * wide[h, d]"


def expression(
    draw: Draw, tensors: dict[str, torch.Tensor], reads: dict[str, Callable[..., Any]], depth: int
) -> tuple[Callable[..., Any], str]:
    """A function of (x, b, h, t), and how it reads."""
    kind = draw(4) if depth else 0
    if kind == 0:
        return (lambda x, b, h, t: x), "x"
    if kind == 1:
        text, function = list(_UNARY.items())[draw(len(_UNARY))]
        inner, name = expression(draw, tensors, reads, depth - 1)
        return (lambda x, b, h, t: function(inner(x, b, h, t))), text.format(name)
    text, combine = list(_BINARY.items())[draw(len(_BINARY))]
    inner, name = expression(draw, tensors, reads, depth - 1)
    read, of = list(reads.items())[draw(len(reads))]
    if combine is torch.maximum and read.endswith(".item()"):  # which takes tensors only; equal numbers share the gradient otherwise here
        return (lambda x, b, h, t: torch.clamp(inner(x, b, h, t), min=of(tensors, b, h, t))), text.format(name, read)
    return (lambda x, b, h, t: combine(inner(x, b, h, t), of(tensors, b, h, t))), text.format(name, read)


def gradients(case: LinearCase, pipeline: str) -> list[tuple[str, float]]:
    """How far each gradient, derived and run through `pipeline`, is from autograd's, relative to its size."""
    x = case.given
    call = check_linear((x["q"], x["k"], x["v"]), x.get("decay"), x.get("initial_state"), _offsets(case), "bhsd")
    entry, scan = call_form(call, 1.0, True, None).find((*case.mods, None), None)
    q, k, captures = linear_arguments(entry.traced, call, entry.captures(scan, 0.0))
    inputs = [q, k, call.v, *captures]
    o, state = reference(**case.given, **dict(zip((*MODS, "skip_mod"), case.mods, strict=True)), cu_seqlens=case.bounds)
    weights = [randn(11, *o.shape), randn(12, *state.shape)]
    wanted = [x for x in inputs if isinstance(x, torch.Tensor) and x.is_floating_point()]
    derived = _derived(entry.traced.text, inputs, weights, pipeline)
    leaves = [x for x in (*case.given.values(), *case.tensors.values()) if x.requires_grad]
    expected = torch.autograd.grad((o * weights[0]).sum() + (state * weights[1]).sum(), leaves, allow_unused=True)
    # What the program takes may be a view of a leaf: autograd brings the derived gradients there.
    views = [x for x in wanted if x.requires_grad]
    pulled = torch.autograd.grad(views, leaves, [torch.from_numpy(np.asarray(g)) for g in derived], allow_unused=True)
    found = zip([*case.given, *case.tensors], pulled, expected, strict=True)
    return [(name, _error(got, want)) for name, got, want in found if want is not None or got is not None]


def _offsets(case: LinearCase) -> torch.Tensor | None:
    return None if case.bounds is None else torch.tensor(case.bounds, dtype=torch.int32)


def _derived(text: str, inputs: Sequence[Any], weights: Sequence[torch.Tensor], pipeline: str) -> list[np.ndarray]:
    context = loaded_context()
    with context:
        module = ir.Module.parse(text)
        Pipeline.parse(pipeline, registry()).run(module)
        given = [as_array(x) for x in inputs]
        results = evaluate(module, given, "attention_fwd")
        return evaluate(module, [*given, *results, *map(as_array, weights)], "attention_bwd")


def _error(got: torch.Tensor | None, wanted: torch.Tensor | None) -> float:
    zero = torch.zeros(())
    got, wanted = (zero if x is None else x for x in (got, wanted))
    return float((got - wanted).abs().max() / wanted.abs().max().clamp(min=1.0))
