"""Random compositions of what a call may be given: layouts of memory, grouped heads, masks, captured tensors, dropout, lists of keys,
lse and its gradient, lengths of 0, on every device that is emulated, against the dense formula, in float64.

One number makes one call: its options, its inputs, the way in which it is made.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor

import attn_mlir
from attn_mlir import attention, attention_varlen, dropout_mask, rows

Draw = Callable[[int], int]
Function = Callable[..., Any]
DEVICES = ("cpu", "cuda-emulated", "cuda-emulated-sm80", "hip-emulated")
TOLERANCES = {torch.float64: 1e-9, torch.float32: 2e-4, torch.float16: 1e-2, torch.bfloat16: 6e-2}
"""Of the norm of a result."""
_ROWS: dict[str, Function] = {
    "softmax": rows.softmax,
    "softmax1": rows.softmax1,
    "sigmoid": rows.sigmoid,
    "relu squared": rows.relu_squared,
    "mean": lambda s: torch.tanh(s) / (1.0 + (s * s).mean()),
    "two passes": lambda s: torch.relu(s - s.mean() + 0.3) / (1.0 + (s * s).sum()),
    "position": lambda s, b, h, i, j: torch.exp(-abs(s) - 0.01 * j) * (1.0 + 0.1 * h + 0.02 * i),
}
_LENGTHS = (0, 1, 2, 17, 63, 64, 65, 130)
_COLUMNS = (8, 16, 32, 40, 64, 96, 128)
_OF_DEVICE = {"cuda-emulated": (16, 32, 64, 96, 128, 192, 256), "cuda-emulated-sm80": (64, 128, 192, 256)}
"""Columns that the evaluator has kernels for."""
_HEADS = ((1, 1), (2, 1), (4, 2), (6, 2), (3, 3), (8, 1), (0, 0))


@dataclass
class Composition:
    """A call and what it is compared with."""

    device: str
    dtype: torch.dtype
    row: str
    q: Tensor
    k: Tensor
    v: Tensor
    told: list[str] = field(default_factory=list)
    options: dict[str, Any] = field(default_factory=dict)
    captured: dict[str, Tensor] = field(default_factory=dict)
    score_mod: Callable[[dict[str, Tensor]], Function] | None = None
    mask_mod: Function | None = None
    way: str = "attention"
    lists: Tensor | None = None
    block: tuple[int, int] = (1, 1)

    def __str__(self) -> str:
        shapes = f"q {[*self.q.shape]} k {[*self.k.shape]} v {[*self.v.shape]}"
        return f"{self.device} {self.dtype} {self.row} by {self.way}: {shapes}; {', '.join(self.told)}"


def composition_errors(number: int, devices: tuple[str, ...] = ("cpu",)) -> tuple[str, dict[str, float]]:
    """What the call of this number is, and what of it is wrong by how much."""
    rng = np.random.default_rng(number)
    made = drawn(lambda count: int(rng.integers(count)), devices, number)
    try:
        return str(made), wrong(made)
    except attn_mlir.UnsupportedError:  # what docs say is not there, and what emulated devices have no kernel for
        return str(made), {}
    except Exception as error:
        if "no fixed order" in str(error):  # gradients of packed sequences on AMD GPUs
            return str(made), {}
        raise AssertionError(str(made)) from error


def emulated_errors(number: int) -> tuple[str, dict[str, float]]:
    """The same on one of the emulated devices."""
    return composition_errors(number, DEVICES[1:])


def drawn(draw: Draw, devices: tuple[str, ...], number: int) -> Composition:
    generator = torch.Generator().manual_seed(number)
    device = devices[draw(len(devices))]
    dtypes = (torch.float32, torch.float64, torch.float16, torch.bfloat16)
    dtype = dtypes[draw(4)] if device == "cpu" else dtypes[2 + draw(2)]
    batch, (heads, of_keys) = (1, 1, 2, 3, 0)[draw(5)], _HEADS[draw(len(_HEADS) - (draw(4) > 0))]
    queries, keys = _LENGTHS[draw(len(_LENGTHS))], _LENGTHS[draw(len(_LENGTHS))]
    if draw(6):
        queries, keys = max(queries, 1), max(keys, 1)
    if draw(3) == 0:
        keys = queries
    columns = _OF_DEVICE.get(device, _COLUMNS)
    dim, wide = columns[draw(len(columns))], (*columns, 256)[draw(len(columns) + 1)]
    if draw(2):
        wide = dim
    told: list[str] = []
    shapes = {"q": (batch, heads, queries, dim), "k": (batch, of_keys, keys, dim), "v": (batch, of_keys, keys, wide)}
    tensors = {name: _tensor(shape, (dtype, _place(device)), draw, generator, name, told) for name, shape in shapes.items()}
    made = Composition(device, dtype, [*_ROWS][draw(len(_ROWS)) if draw(2) else 0], *tensors.values(), told=told)
    _mask(made, draw, generator)
    _score(made, draw, generator)
    if made.row == "softmax" and draw(3) == 0:
        made.options["return_lse"] = True
        told.append("lse")
    if draw(5) == 0:
        made.options["deterministic"] = True
        told.append("deterministic")
    if draw(6) == 0:
        made.options |= {"dropout_p": 0.3, "dropout_seed": (number, 3)}
        told.append("dropout")
    if draw(6) == 0:
        made.options["scale"] = 0.31
        told.append("scale")
    if draw(5) == 0 and keys and queries and heads and batch:
        _lists(made, draw, generator)
    elif draw(4) == 0 and device != "cuda-emulated":
        made.way = "varlen"
    elif draw(4) == 0:
        made.way = "object"
    return made


def _tensor(
    shape: tuple[int, ...], kind: tuple[torch.dtype, str], draw: Draw, generator: torch.Generator, name: str, told: list[str]
) -> Tensor:
    """Of one of many strides."""

    def normal(*sizes: int) -> Tensor:
        return torch.randn(sizes, generator=generator, dtype=torch.float64).to(kind[1], kind[0])

    b, h, s, d = shape
    way = draw(14)
    told += [f"{name} {_STRIDES[way]}"] if way < len(_STRIDES) else []
    match way:
        case 0:
            return normal(b, s, h, d).transpose(1, 2)
        case 1:
            return normal(b, h, s, 3 * d)[..., d : 2 * d]
        case 2:
            return normal(1, h, s, d).expand(shape)
        case 3:
            return normal(b, 1, s, d).expand(shape)
        case 4:
            return normal(b, h, 1, d).expand(shape)
        case 5:
            return normal(b, h, s, 1).expand(shape)
        case 6:
            return normal(b, h, d, s).transpose(2, 3)
        case 7:
            return normal(b, h, s, d, 2)[..., 1]
        case 8:
            return normal(b * h * s * d + 1)[1:].view(shape)
        case 9:
            return normal(b, h, 2 * s, d)[:, :, ::2]
        case _:
            return normal(*shape)


_STRIDES = (
    "bshd", "packed", "one batch", "one head", "one position", "one column", "columns first", "every second", "shifted", "every second row",
)  # fmt: skip


def _place(device: str) -> str:
    """Where tensors lie."""
    return "cuda" if device == "cuda" else "cpu"


def _mask(made: Composition, draw: Draw, generator: torch.Generator) -> None:
    batch, _, queries = made.q.shape[:3]
    keys = made.k.shape[2]
    way = draw(12)
    match way:
        case 0 | 1:
            made.mask_mod = lambda b, h, i, j: i >= j
        case 2:
            left, right = draw(70), draw(5)
            made.mask_mod = lambda b, h, i, j: (i - j <= left) & (j - i <= right)
            made.told.append(f"window {left}, {right}")
        case 3:
            ids = torch.randint(0, 3, (max(queries, keys, 1),), generator=generator).sort().values.to(made.q.device)
            made.mask_mod = lambda b, h, i, j: (ids[i] == ids[j]) & (i >= j)
        case 4:
            lengths = torch.randint(0, keys + 1, (max(batch, 1),), generator=generator, dtype=torch.int32).to(made.q.device)
            made.mask_mod = lambda b, h, i, j: j < lengths[b]
        case 5:
            keep = torch.rand(max(batch, 1), max(queries, 1), max(keys, 1), generator=generator).to(made.q.device) < 0.5
            made.mask_mod = lambda b, h, i, j: keep[b, i, j]
        case 6:
            made.mask_mod = lambda b, h, i, j: (i + j) % 3 != 0
        case 7:
            made.mask_mod = lambda b, h, i, j: (j >= 70) | (j - i > 3)
        case 8:
            made.mask_mod = lambda b, h, i, j: (h % 2 == 0) & (i >= j) | (h % 2 == 1) & (i <= j)
        case _:
            return
    made.told.append(f"mask {way}")


def _score(made: Composition, draw: Draw, generator: torch.Generator) -> None:
    batch, heads, queries = (max(n, 1) for n in made.q.shape[:3])
    keys = max(made.k.shape[2], 1)
    low = made.dtype not in (torch.float32, torch.float64)
    dtype = (torch.float32, made.dtype)[draw(2)] if low else made.dtype

    def captured(name: str, *shape: int) -> None:
        made.captured[name] = torch.randn(shape, generator=generator, dtype=torch.float64).to(made.q.device, dtype) * 0.5

    way = draw(12)
    match way:
        case 0:
            captured("slopes", heads)
            made.score_mod = lambda c: lambda s, b, h, i, j: s - c["slopes"][h] * abs(i - j) * 0.1
        case 1:
            captured("table", heads, queries + keys)
            made.score_mod = lambda c: lambda s, b, h, i, j: s + c["table"][h, i - j + (keys - 1)]
        case 2:
            captured("bias", batch, heads, queries, keys)
            made.score_mod = lambda c: lambda s, b, h, i, j: s + c["bias"][b, h, i, j]
        case 3:
            captured("temperature")
            made.score_mod = lambda c: lambda s, b, h, i, j: s * torch.exp(c["temperature"])
        case 4:
            captured("by key", batch, keys)
            captured("by query", heads, queries)
            made.score_mod = lambda c: lambda s, b, h, i, j: s * torch.sigmoid(c["by query"][h, i]) + c["by key"][b, j]
        case 5:
            made.score_mod = lambda c: lambda s, b, h, i, j: 3.0 * torch.tanh(s / 3.0)
        case 6:
            captured("table", 7)
            made.score_mod = lambda c: lambda s, b, h, i, j: s + c["table"][j % 7] * c["table"][i % 7]
        case 7:
            captured("bias", queries, keys)
            bias = made.captured["bias"]
            made.captured["bias"] = bias.t().contiguous().t() if draw(2) else bias[:1].expand(queries, keys)
            made.score_mod = lambda c: lambda s, b, h, i, j: torch.where(i >= j, s, s * 0.5) + c["bias"][i, j]
        case _:
            return
    made.told.append(f"score {way} {dtype}".replace("torch.", ""))


def _lists(made: Composition, draw: Draw, generator: torch.Generator) -> None:
    batch, heads, queries = made.q.shape[:3]
    of_keys, keys = made.k.shape[1:3]
    made.block = ((1, 16, 64)[draw(3)], (1, 16, 64)[draw(3)])
    rows_, columns = -(-queries // made.block[0]), -(-keys // made.block[1])
    width = 1 + draw(5)
    shape = (batch, (1, of_keys, heads)[draw(3)], rows_, width)
    made.lists = torch.randint(-1, columns, shape, generator=generator, dtype=torch.int32).to(made.q.device)
    made.way = "lists"
    made.told.append(f"key_block {made.block}, {width} entries, {made.lists.shape[1]} heads of lists")


def wrong(made: Composition) -> dict[str, float]:
    """Errors of o, lse and gradients that are too large."""
    inputs = [made.q, made.k, made.v]
    names = ["q", "k", "v", *made.captured]
    leaves = [x.detach().requires_grad_() for x in [*inputs, *made.captured.values()]]
    exact = [x.detach().double().requires_grad_() for x in leaves]
    got, want = results(made, leaves), in_float64(made, exact)
    found = _differences(["o", "lse"], got, want, made.dtype)
    generator = torch.Generator().manual_seed(7)
    seeds = [torch.randn(x.shape, generator=generator, dtype=torch.float64).to(y.device, y.dtype) for x, y in zip(want, got, strict=True)]
    if len(seeds) > 1:
        seeds[1] = torch.where(want[1] == -torch.inf, 0.0, seeds[1])
    given = torch.autograd.grad(got, leaves, seeds, allow_unused=True)
    wanted = torch.autograd.grad([x.nan_to_num(neginf=0.0) for x in want], exact, [x.double() for x in seeds], allow_unused=True)
    pairs = [(torch.zeros_like(x) if g is None else g, torch.zeros_like(y) if w is None else w)
             for g, w, x, y in zip(given, wanted, leaves, exact, strict=True)]  # fmt: skip
    sizes = [0.02 * float(w.norm()) for _, w in pairs]
    found |= _differences([f"d{name}" for name in names], [g for g, _ in pairs], [w for _, w in pairs], made.dtype, max(sizes, default=0.0))
    return found


def _differences(names: list[str], got: Any, want: Any, dtype: torch.dtype, least: float = 1e-3) -> dict[str, float]:
    found = {}
    for name, g, w in zip(names, got, want, strict=False):
        if g.shape != w.shape:
            found[f"{name} of shape {[*g.shape]}"] = float("inf")
            continue
        same = (g == w) | (g.isnan() & w.isnan())
        difference = torch.where(same, 0.0, g.double() - w)
        error = float(difference.norm()) / max(float(w[w.isfinite()].norm()), least, 1e-3)
        if not error <= TOLERANCES[dtype] * (1 if name in ("o", "lse") else 2):
            found[name] = error
    return found


def results(made: Composition, leaves: list[Tensor]) -> list[Tensor]:
    q, k, v = leaves[:3]
    captured = dict(zip(made.captured, leaves[3:], strict=True))
    functions: dict[str, Any] = {"row": _ROWS[made.row], "mask_mod": made.mask_mod, "device": made.device, **made.options}
    functions |= {"score_mod": made.score_mod(captured)} if made.score_mod is not None else {}
    match made.way:
        case "lists":
            found = attention(q, k, v, key_index=made.lists, key_block=made.block, **functions)
        case "object":
            seed = {"dropout_seed": functions.pop("dropout_seed", None)}
            found = attn_mlir.Attention(**functions)(q, k, v, **seed)
        case "varlen":
            batch, queries, keys = q.shape[0], q.shape[2], k.shape[2]
            cu = [torch.arange(batch + 1, dtype=torch.int32, device=q.device) * n for n in (queries, keys)]
            found = attention_varlen(*(x.transpose(1, 2).flatten(0, 1) for x in (q, k, v)), *cu, **functions)
            o, *lse = found if isinstance(found, tuple) else (found,)
            found = (o.unflatten(0, (batch, queries)).transpose(1, 2), *(x.unflatten(1, (batch, queries)).transpose(0, 1) for x in lse))
        case _:
            found = attention(q, k, v, **functions)
    return [*found] if isinstance(found, tuple) else [found]


def in_float64(made: Composition, leaves: list[Tensor]) -> list[Tensor]:
    """The formula with positions and numbers in float64, and results that hang on the inputs where they are empty, too."""
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    try:
        with torch.device(leaves[0].device):
            return [x + 0.0 * leaves[0].sum() for x in dense(made, leaves)]
    finally:
        torch.set_default_dtype(before)


def dense(made: Composition, leaves: list[Tensor]) -> list[Tensor]:
    """The formula, row by row."""
    q, k, v = leaves[:3]
    captured = dict(zip(made.captured, leaves[3:], strict=True))
    (batch, heads, queries, dim), keys = q.shape, k.shape[2]
    group = heads // max(k.shape[1], 1)
    k, v = (x.repeat_interleave(group, 1) if group else x for x in (k, v))
    s = q @ k.mT * made.options.get("scale", dim**-0.5)
    ranges = [torch.arange(n) for n in (batch, heads, queries, keys)]
    b, h, i, j = (x.view([-1 if axis == place else 1 for axis in range(4)]) for place, x in enumerate(ranges))
    if made.score_mod is not None:
        s = made.score_mod(captured)(s, b, h, i, j)
    keep = torch.ones(s.shape, dtype=torch.bool) if made.mask_mod is None else torch.broadcast_to(made.mask_mod(b, h, i, j), s.shape)
    if made.lists is not None:
        keep = keep & _listed(made, s.shape)
    function, count = _ROWS[made.row], _ROWS[made.row].__code__.co_argcount
    weights, lse = torch.zeros_like(s), torch.full(s.shape[:3], -torch.inf, dtype=s.dtype)
    parts, sums = [], []
    for place in np.ndindex(*s.shape[:3]):
        seen = keep[place].nonzero()[:, 0]
        if not len(seen):
            parts.append(torch.zeros(keys, dtype=s.dtype))
            sums.append(s[place].sum() * 0.0 - torch.inf)
            continue
        row = s[place][seen]
        p = function(row, *(*place, seen)[: count - 1]) if made.row != "softmax" else row.softmax(-1)
        parts.append(torch.zeros(keys, dtype=s.dtype).index_put((seen,), p))
        sums.append(row.logsumexp(-1))
    if parts:
        weights, lse = torch.stack(parts).view(s.shape), torch.stack(sums).view(lse.shape)
    if "dropout_p" in made.options:
        p, seed = made.options["dropout_p"], made.options["dropout_seed"]
        kept = dropout_mask(batch, heads, queries, keys, p, seed)
        weights = torch.where(kept, weights / (1 - p), 0.0)
    found = [weights @ v]
    return [*found, lse] if made.options.get("return_lse") else found


def _listed(made: Composition, shape: torch.Size) -> Tensor:
    assert made.lists is not None
    keep = torch.zeros(shape, dtype=torch.bool)
    heads = shape[1]
    group = heads // made.lists.shape[1]
    for b, h, i in np.ndindex(*shape[:3]):
        for number in made.lists[b, h // group, i // made.block[0]].tolist():
            if number >= 0:
                keep[b, h, i, number * made.block[1] : (number + 1) * made.block[1]] = True
    return keep
