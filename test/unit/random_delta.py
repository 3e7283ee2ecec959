"""Random delta rules called through the API, and again with gradients, against their recurrence in float64.

One number makes one rule: heads, forms of the decay and of what is erased, keys that are erased and removed, where the state is read,
mods with captured tensors, states, sequences, layout, and whether sequences are cut into segments, of 64 positions here.
"""

from dataclasses import dataclass
from typing import Any
from unittest import mock

import numpy as np
import torch
from torch import Tensor

from attn_mlir import linear_attention
from attn_mlir.api import linear_inputs
from delta_reference import delta_reference, unit
from gradient_checks import gradients_of, normal_like
from linear_reference import changed
from random_attentions import Draw
from random_calls import too_large
from random_linear import COMPUTED, READS, expression, randn

B, H, K, V = 2, 4, 5, 3
_LENGTHS = (1, 7, 17, 65, 130)
SEGMENT = 64
"""The shortest segment that whole chunks have; users' segments have more."""
MODS = ("q_mod", "k_mod", "v_mod", "decay_mod", "erase_mod")


@dataclass(frozen=True)
class DeltaCase:
    """A delta rule: what `linear_attention` is given, its mods by name, and the tensors that they may read."""

    text: str
    given: dict[str, Tensor]
    mods: dict[str, Any]
    tensors: dict[str, Tensor]
    read_before: bool
    bounds: list[int] | None
    layout: str
    segment: int


def random_delta(draw: Draw) -> DeltaCase:
    """States stay small: keys have length 1 and mods make them no longer, what is erased lies between 0 and 1."""
    length = _LENGTHS[draw(len(_LENGTHS))]
    bounds = [[0, length // 2, length // 2, length], [0, 1, length], None, None][draw(4)]
    batch = 1 if bounds else B
    shapes = {"none": (), "heads": (H,), "rates": (H, K), "steps": (batch, H, length), "channels": (batch, H, length, K)}
    decay, erase = list(shapes)[draw(5)], list(shapes)[draw(5)]
    given = {name: unit(randn(seed, batch, (1, 2, H)[draw(3)], length, K)) for seed, name in enumerate(("q", "k"), 1)}
    given["v"] = randn(3, batch, H, length, V)
    if decay != "none":
        given["decay"] = -randn(4, *shapes[decay]).abs()
    if erase != "none":
        given["erase"] = torch.sigmoid(randn(6, *shapes[erase]))
    if draw(2):
        given["initial_state"] = randn(5, len(bounds) - 1 if bounds else batch, H, K, V)
    keys = draw(3)
    if keys:
        given["erase_key"] = unit(given["k"].repeat_interleave(H // given["k"].shape[1], 1) + 0.5 * randn(7, batch, H, length, K))
    if keys == 2:
        given["removed_key"] = unit(given["erase_key"] + 0.5 * randn(8, batch, H, length, K))
    sizes = {"heads": (H,), "steps": (batch, H, length), "table": (length,), "number": (), "wide": (H, K)}
    tensors = {name: randn(41 + i, *shape).requires_grad_() for i, (name, shape) in enumerate(sizes.items())}
    texts, mods = [f"length {length}, decay {decay}, erase {erase}, bounds {bounds}, {', '.join(given)}"], {}
    for name in MODS:
        if draw(2) or (name == "erase_mod" and erase == "none"):
            mods[name], text = _mod(name, draw, tensors)
            texts.append(f"{name}: {text}")
    read_before, layout = bool(draw(2)), ("bhsd", "bshd")[draw(2)]
    segment = (0, SEGMENT)[draw(2)]
    texts.append(f"read before the update: {read_before}, {layout}, segments of {segment}")
    leaves = {name: x.detach().requires_grad_() for name, x in given.items()}
    return DeltaCase("\n".join(texts), leaves, mods, tensors, read_before, bounds, layout, segment)


def _mod(name: str, draw: Draw, tensors: dict[str, Tensor]) -> tuple[Any, str]:
    """A mod of the input called `name`, and how it reads."""
    change, text = expression(draw, tensors, READS | COMPUTED, 2)
    match name:
        case "v_mod":
            return lambda x, b, h, t: change(x, b, h, t), text
        case "decay_mod":
            return lambda x, b, h, t: -0.5 * torch.log(1.0 + change(x, b, h, t) ** 2), f"-log(1 + ({text}) ** 2) / 2"
        case "erase_mod":
            return lambda x, b, h, t: torch.sigmoid(change(x, b, h, t)), f"sigmoid({text})"
    return lambda x, b, h, t, d: x * torch.tanh(change(x, b, h, t) + tensors["wide"][h, d]), f"x * tanh({text} + wide[h, d])"


def delta_errors(number: int) -> tuple[str, dict[str, float]]:
    """What the delta rule of this number is, and what of it is wrong by how much; nothing where all is right."""
    rng = np.random.default_rng(number)
    case = random_delta(lambda count: int(rng.integers(count)))
    with torch.no_grad():
        found = too_large("first", ("o", "state"), _called(case), _wanted(case))
    got, want = _called(case), _wanted(case)
    names, leaves = [*case.given, *case.tensors], [*case.given.values(), *case.tensors.values()]
    seeds = normal_like(want, 17)
    given, wanted = gradients_of(got, leaves, seeds), gradients_of(want, leaves, seeds)
    return case.text, found | too_large("gradients", [f"d{name}" for name in names], given, wanted)


def _called(case: DeltaCase) -> list[Tensor]:
    turned = case.layout == "bshd"
    of_positions = {name for name in case.given if name not in ("decay", "erase", "initial_state")}
    of_positions |= {name for name in ("decay", "erase") if name in case.given and case.given[name].dim() >= 3}
    given = {name: x.transpose(1, 2) if turned and name in of_positions else x for name, x in case.given.items()}
    offsets = None if case.bounds is None else torch.tensor(case.bounds, dtype=torch.int32)
    options: dict[str, Any] = {**given, **case.mods, "read_before_update": case.read_before, "layout": case.layout}
    with mock.patch.object(linear_inputs, "UNIT", SEGMENT):
        o, state = linear_attention(**options, cu_seqlens=offsets, output_final_state=True, segment_size=case.segment)
    return [o.transpose(1, 2) if turned else o, state]


def _wanted(case: DeltaCase) -> tuple[Tensor, Tensor]:
    x, mods, (batch, heads, length) = case.given, case.mods, case.given["v"].shape[:3]
    q, k = (y.repeat_interleave(heads // y.shape[1], 1) for y in (x["q"], x["k"]))
    q, k, v = changed(mods.get("q_mod"), q), changed(mods.get("k_mod"), k), changed(mods.get("v_mod"), x["v"])
    g = _spread(x.get("decay"), (batch, heads, length), 0.0)
    g = changed(mods.get("decay_mod"), g)
    beta = changed(mods.get("erase_mod"), _spread(x.get("erase"), (batch, heads, length), 1.0))
    e = x.get("erase_key", k) * (beta.unsqueeze(3) if beta.dim() == 3 else beta)
    removed = x.get("removed_key", k)
    return delta_reference(q, k, v, g, e, removed, x.get("initial_state"), 1.0, case.read_before, case.bounds)


def _spread(x: Tensor | None, sizes: tuple[int, int, int], otherwise: float) -> Tensor:
    """A decay or a share by position: [B, H, T], or with channels [B, H, T, K]."""
    if x is None:
        return torch.full(sizes, otherwise, dtype=torch.float64)
    return x if x.dim() > 2 else x.view(1, sizes[1], 1, *x.shape[1:]).expand(*sizes, *x.shape[1:])
