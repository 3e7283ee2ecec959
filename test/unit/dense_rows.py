"""Attention as a dense formula on torch tensors, for autograd: the very functions a user writes, masked positions absent."""

import inspect
import operator
from collections.abc import Callable, Mapping
from types import FunctionType
from typing import Any

import torch
from torch import Tensor

_REDUCED = {"sum": "sum", "max": "max", "amax": "max", "min": "min", "amin": "min", "mean": "mean"}
_OPERATORS = ("add", "sub", "mul", "truediv", "floordiv", "mod", "pow", "and", "or", "xor")
_COMPARISONS = ("eq", "ne", "lt", "le", "gt", "ge")


class Row:
    """What a row function is called with: all rows at once; reductions are over the present keys of each."""

    def __init__(self, value: Tensor, present: Tensor) -> None:
        self.value, self.present = value, present

    def _of(self, value: Any) -> "Row":
        return Row(value, self.present)

    def reduce(self, kind: str) -> "Row":
        """The sum, max, min or mean over the present keys; as torch's amax, ties of max and min share the gradient."""
        full = self.value.broadcast_to(self.present.shape)
        if kind in ("sum", "mean"):
            total = torch.where(self.present, full, 0.0).sum(-1, keepdim=True)
            return self._of(total / self.present.sum(-1, keepdim=True) if kind == "mean" else total)
        if kind == "max":
            return self._of(torch.where(self.present, full, -torch.inf).amax(-1, keepdim=True))
        return self._of(torch.where(self.present, full, torch.inf).amin(-1, keepdim=True))

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)

        def method(*arguments: Any, **options: Any) -> Row:
            if name in _REDUCED and not arguments:
                return self.reduce(_REDUCED[name])
            return self._of(getattr(self.value, name)(*map(plain, arguments), **options))

        return method

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None) -> Any:
        name = getattr(func, "__name__", "")
        row: Any = next(a for a in args if isinstance(a, Row))
        if name in _REDUCED and isinstance(args[0], Row) and (len(args) == 1 or not isinstance(args[1], Row)):
            return args[0].reduce(_REDUCED[name])
        if name == "logsumexp":
            most = row.reduce("max")
            return most + (row - most).exp().sum().log()
        if name == "softmax":
            e = (row - row.reduce("max")).exp()
            return e / e.sum()
        return row._of(func(*map(plain, args), **(kwargs or {})))

    def __neg__(self) -> "Row":
        return self._of(-self.value)

    def __abs__(self) -> "Row":
        return self._of(abs(self.value))

    def __invert__(self) -> "Row":
        return self._of(~self.value)

    __hash__ = None  # type: ignore[assignment]


def plain(x: Any) -> Any:
    """The tensor of a row; anything else as it is."""
    return x.value if isinstance(x, Row) else x


def _install(name: str, function: Callable[[Any, Any], Any]) -> None:
    setattr(Row, f"__{name}__", lambda self, other: self._of(function(self.value, plain(other))))
    setattr(Row, f"__r{name}__", lambda self, other: self._of(function(plain(other), self.value)))


for _name in (*_OPERATORS, *_COMPARISONS):
    _install(_name, getattr(operator, f"__{_name}__"))


def _maximum(a: Any, b: Any) -> Any:
    """A number gets no gradient, nor half of one at a tie."""
    return torch.clamp(a, min=b) if isinstance(b, (int, float)) else torch.maximum(a, b)


_TORCH = {
    "approximate_tanh": torch.tanh,
    "exp": torch.exp,
    "maximum": _maximum,
    "detach": lambda x: x.detach(),
    "_relu": torch.relu,
    "_sigmoid": torch.sigmoid,
}


def with_torch(function: Any) -> Any:
    """A row of `attn_mlir.rows` with torch's functions in place of those that only trace."""
    made = FunctionType(function.__code__, {**function.__globals__, **_TORCH}, "row", function.__defaults__, function.__closure__)
    made.__kwdefaults__ = function.__kwdefaults__
    return made


def fit(function: Callable[..., Any], *arguments: Any) -> Any:
    """Calls a function with as many of the arguments as it takes."""
    try:
        inspect.signature(function).bind(*arguments)
    except TypeError:
        return function(arguments[0])
    return function(*arguments)


def positions(sizes: tuple[int, ...]) -> list[Tensor]:
    """Indices as tensors that broadcast to `sizes`."""
    return [torch.arange(size).view(*(size if i == j else 1 for j in range(len(sizes)))) for i, size in enumerate(sizes)]


def dense(
    functions: Mapping[str, Any],
    q: Tensor,
    k: Tensor,
    v: Tensor,
    scale: float | None = None,
    lse: bool = False,
    kept: Tensor | None = None,
) -> tuple[Any, dict[str, Tensor]]:
    """o (of several weights a list) and the row outputs; fully masked rows give 0, and no gradient. `functions`: row, score_mod, ...

    kept: what weights are multiplied with, as by dropout.
    """
    for name, at in (("query_mod", "q"), ("key_mod", "k"), ("value_mod", "v")):
        if functions.get(name) is not None:
            x = {"q": q, "k": k, "v": v}[at]
            x = torch.as_tensor(fit(functions[name], x, *positions(tuple(x.shape)))).broadcast_to(x.shape)
            q, k, v = (x if at == "q" else q), (x if at == "k" else k), (x if at == "v" else v)
    group = q.shape[1] // k.shape[1]
    k, v = k.repeat_interleave(group, 1), v.repeat_interleave(group, 1)
    s = q @ k.transpose(-1, -2) * (q.shape[-1] ** -0.5 if scale is None else scale)
    place = positions(tuple(s.shape))
    if functions.get("score_mod") is not None:
        s = fit(functions["score_mod"], s, *place).broadcast_to(s.shape)
    mask = functions.get("mask_mod")
    present = torch.ones(s.shape, dtype=torch.bool) if mask is None else torch.as_tensor(mask(*place)).broadcast_to(s.shape)
    some = present.any(-1, keepdim=True)
    # A masked score is replaced by a present one of its row, so that nothing overflows where nothing counts.
    counted = present | ~some
    s = torch.where(present, s, s.gather(-1, counted.int().argmax(-1, keepdim=True)).detach())
    s = torch.where(some, s, torch.linspace(0.5, 1.5, s.shape[-1], dtype=s.dtype))
    row = Row(s, counted)
    before = torch.get_default_dtype()
    torch.set_default_dtype(s.dtype)  # for numbers that torch.where makes tensors of
    try:
        made = fit(functions["row"], row, *place[:3])
    finally:
        torch.set_default_dtype(before)
    *weights, states = (
        made if isinstance(made, tuple) and isinstance(made[-1], dict) else (*made, {}) if isinstance(made, tuple) else (made, {})
    )
    rows = {name: plain(value) for name, value in states.items()}
    if lse and "lse" not in rows:
        rows["lse"] = plain(torch.logsumexp(row, -1))  # type: ignore[call-overload]
    every = [torch.where(present, plain(x).broadcast_to(s.shape), 0.0) for x in weights]
    every = [(p if kept is None else p * kept) @ v for p in every]
    outputs = {name: torch.where(some, value, 0.0)[..., :1].broadcast_to(*s.shape[:3], 1)[..., 0] for name, value in rows.items()}
    return every[0] if len(every) == 1 else every, outputs
