"""Random attentions called through the API, again after changes in place, with gradients and tangents, against the dense formula.

One number makes one attention: its functions, lengths, dtype, layout and what is done to its tensors between the calls.
"""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from attn_mlir import Attention, attention, linear_attention
from attn_mlir.errors import UnsupportedError
from gradient_checks import Point, gradients_of, normal_like, relative_error
from linear_reference import reference
from random_attentions import Draw, RandomAttention, Sizes, random_attention
from random_linear import MODS, LinearCase, random_linear

TOLERANCE = 1e-9
"""In float64. In float32: 1e-3 of the largest number, or of 0.01 where all are smaller, or a hundred times what the dense formula is
off by, computed in float32 or of inputs that differ in their last bits: where keys tie but for rounding, derivatives hang on it."""
_LENGTHS = (1, 2, 6, 7, 17, 33)
_LINEAR_LENGTHS = (1, 7, 17, 65, 130)


def attention_errors(number: int) -> tuple[str, dict[str, float]]:
    """What the attention of this number is, and what of it is wrong by how much; nothing where all is right."""
    rng = np.random.default_rng(number)
    draw: Draw = lambda count: int(rng.integers(count))  # noqa: E731
    sizes = Sizes(_LENGTHS[draw(len(_LENGTHS))], _LENGTHS[draw(len(_LENGTHS))], (4, 16)[draw(2)], (3, 16)[draw(2)])
    made = random_attention(draw, sizes, computed=True)
    calls = _Calls(made, torch.float64 if draw(4) else torch.float32, draw)
    return f"{sizes}, {calls.told}", calls.wrong()


class _Calls:
    """The calls of one attention, by the same functions, which capture the same tensors all the time."""

    def __init__(self, made: RandomAttention, dtype: torch.dtype, draw: Draw) -> None:
        closures = draw(3) > 0
        self.point, self.dtype, self.draw = Point(made.in_closures() if closures else made.case), dtype, draw
        self.leaves = [x.detach().to(dtype).requires_grad_() for x in self.point.leaves]
        self.functions = self.point.functions(self.leaves)
        self.layout, self.kept, self.strided = ("bhsd", "bshd")[draw(2)], draw(2), draw(3) == 0
        self.told = f"{dtype}, {self.layout}, {'an object' if self.kept else 'the function'}{', strided' if self.strided else ''}"
        self.told += f"\n{made.source}" if closures else f", one object captured\n{made.text}"
        options = {"return_states": True, "layout": self.layout}
        self.object = Attention(**self.functions, **options) if self.kept else None
        self.names = ["q", "k", "v", *made.case.tensors]

    def wrong(self) -> dict[str, float]:
        """Errors that are too large, by the call and what it gives."""
        found: dict[str, float] = {}
        with torch.no_grad():
            found |= self._compare("first", self._results(self.leaves))
        for call in ("gradients", "again"):
            # Equal keys would have ties, which rounding breaks in one formula and not in the other.
            _change(self.leaves[:3], self.draw, [way for way in _WAYS if way is not _fill])
            _change(self.leaves[3:], self.draw)
            found |= self._compare(call, self._results(self.leaves), gradients=True)
        return found | self._tangents()

    def _results(self, leaves: Sequence[Tensor], functions: Any = None) -> list[Tensor]:
        q, k, v = (self._in_layout(x) for x in leaves[:3])
        if functions is None and self.object is not None:
            o, states = self.object(q, k, v)
        else:
            o, states = attention(q, k, v, **(functions or self.functions), return_states=True, layout=self.layout)
        self.point.outputs = tuple(states)
        return [o if self.layout == "bhsd" else o.transpose(1, 2), *states.values()]

    def _in_layout(self, x: Tensor) -> Tensor:
        x = x if self.layout == "bhsd" else x.transpose(1, 2)
        return torch.stack([x, x], -1)[..., 0] if self.strided else x

    def _compare(self, call: str, got: list[Tensor], gradients: bool = False) -> dict[str, float]:
        exact = [x.detach().double().requires_grad_() for x in self.leaves]
        want = self.point.dense(*exact)
        others = self._others()
        dense = [self.point.dense(*leaves) for leaves in others]
        found = too_large(call, ("o", *self.point.outputs), got, want, dense)
        if gradients:
            seeds = normal_like(want, 17)
            wanted = gradients_of(want, exact, seeds)
            given = gradients_of(got, self.leaves, [seed.to(result.dtype) for seed, result in zip(seeds, got, strict=True)])
            plain = [
                gradients_of(results, leaves, [seed.to(result.dtype) for seed, result in zip(seeds, results, strict=True)])
                for results, leaves in zip(dense, others, strict=True)
            ]
            found |= too_large(call, [f"d{name}" for name in self.names], given, wanted, plain)
        return found

    def _others(self) -> list[list[Tensor]]:
        """In float32, other inputs for the dense formula: as they are, and in float64 with changes in the last bits."""
        if self.dtype == torch.float64:
            return []
        shaken = [
            [
                x * (1 + 3e-7 * noise)
                for x, noise in zip([x.detach().double() for x in self.leaves], normal_like(self.leaves, seed), strict=True)
            ]
            for seed in (31, 32)
        ]
        return [[x.detach().requires_grad_() for x in leaves] for leaves in ([*self.leaves], *shaken)]

    def _tangents(self) -> dict[str, float]:
        exact = tuple(x.detach().double() for x in self.leaves)
        changes = tuple(normal_like(exact, 18))
        want = torch.func.jvp(self.point.dense, exact, changes)[1]
        cast = tuple(x.detach() for x in self.leaves), tuple(change.to(self.dtype) for change in changes)
        plain = [
            torch.func.jvp(self.point.dense, tuple(x.detach() for x in leaves), tuple(c.to(leaves[0].dtype) for c in changes))[1]
            for leaves in self._others()
        ]
        got = torch.func.jvp(lambda *leaves: tuple(self._results(leaves, self.point.functions(leaves))), *cast)[1]
        return too_large("jvp", ("o", *self.point.outputs), got, want, plain)


def too_large(
    call: str, names: Sequence[str], got: Sequence[Tensor], want: Sequence[Tensor], others: Sequence[Sequence[Tensor]] = ()
) -> dict[str, float]:
    """The errors above the tolerance; `others` are what the dense formula gives in float32, or of inputs that differ in the last bits."""
    found = {}
    for place, (name, g, w) in enumerate(zip(names, got, want, strict=True)):
        w = torch.where((w == 0) & (g != 0), g.double(), w) if name != "o" and not name.startswith("d") else w
        least = 1e-2 if others else 1e-3
        error = relative_error(g, w, least)
        allowed = max([TOLERANCE if not others else 1e-3, *[100 * relative_error(results[place], w, least) for results in others]])
        if not error <= allowed:
            found[f"{call}: {name}"] = error
    return found


def _change(tensors: Sequence[Tensor], draw: Draw, ways: Sequence[Callable[[Tensor, Tensor], Any]] = ()) -> None:
    """Changes some of the tensors in place, in the ways that programs do."""
    with torch.no_grad():
        for tensor in tensors:
            new = torch.randn(tensor.shape, generator=torch.Generator().manual_seed(draw(1 << 30)), dtype=torch.float64).to(tensor.dtype)
            among = ways or _WAYS
            among[draw(len(among))](tensor, new)


def _fill(tensor: Tensor, new: Tensor) -> None:
    tensor.fill_(0.4)


def _new_data(tensor: Tensor, new: Tensor) -> None:
    tensor.data = new


def _by_optimizer(tensor: Tensor, new: Tensor) -> None:
    tensor.grad = new
    torch.optim.SGD([tensor], lr=0.3).step()
    tensor.grad = None


_WAYS: tuple[Callable[[Tensor, Tensor], Any], ...] = (
    lambda tensor, new: None,
    lambda tensor, new: tensor.copy_(new),
    lambda tensor, new: tensor.add_(new, alpha=0.3),
    _fill,
    lambda tensor, new: tensor.data.copy_(new),
    lambda tensor, new: tensor.detach().numpy().__setitem__(..., new.numpy()),
    _new_data,
    _by_optimizer,
)


def linear_errors(number: int) -> tuple[str, dict[str, float]]:
    """The same for a linear attention."""
    rng = np.random.default_rng(number)
    draw: Draw = lambda count: int(rng.integers(count))  # noqa: E731
    length = _LINEAR_LENGTHS[draw(len(_LINEAR_LENGTHS))]
    case = random_linear(draw, length, computed=True)
    found: dict[str, float] = {}
    with torch.no_grad():
        found |= _linear_wrong("first", case, False)
    for call in ("gradients", "again"):
        _change([x for name, x in (*case.given.items(), *case.tensors.items()) if name != "decay"], draw)
        found |= _linear_wrong(call, case, True)
    return f"length {length}\n{case.text}", found | _tangents_refused(case)


def _linear_wrong(call: str, case: LinearCase, gradients: bool) -> dict[str, float]:
    want = reference(**case.given, **_mods(case), cu_seqlens=case.bounds)
    got = _linear(case)
    found = too_large(call, ("o", "state"), got, want)
    if gradients:
        names, leaves = [*case.given, *case.tensors], [*case.given.values(), *case.tensors.values()]
        seeds = normal_like(want, 17)
        wanted, given = gradients_of(want, leaves, seeds), gradients_of(got, leaves, seeds)
        found |= too_large(call, [f"d{name}" for name in names], given, wanted)
    return found


def _linear(case: LinearCase) -> list[Tensor]:
    offsets = None if case.bounds is None else torch.tensor(case.bounds, dtype=torch.int32)
    return list(linear_attention(**case.given, **_mods(case), output_final_state=True, cu_seqlens=offsets))  # type: ignore[arg-type]


def _mods(case: LinearCase) -> dict[str, Any]:
    return dict(zip((*MODS, "skip_mod"), case.mods, strict=True))


def _tangents_refused(case: LinearCase) -> dict[str, float]:
    """Tangents of linear attention raise an error: zeros would be wrong."""

    def of_v(v: Tensor) -> Tensor:
        return _linear(LinearCase(case.text, case.mods, case.tensors, {**case.given, "v": v}, case.bounds))[0]

    v = case.given["v"].detach()
    try:
        torch.func.jvp(of_v, (v,), (torch.ones_like(v),))
    except UnsupportedError:
        return {}
    return {"jvp: not refused": float("inf")}
