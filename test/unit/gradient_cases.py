"""Attentions whose gradients are checked: every row function of the tests, masks, score mods, and kinds of captured tensors."""

from collections.abc import Callable
from typing import Any

import torch

from attn_mlir.api import rows as api_rows
from dense_rows import with_torch
from gradient_checks import HKV, HQ, SKV, SQ, B, Case, random
from row_cases import CASES

DOCUMENTS = torch.tensor([0, 0, 0, 1, 1, 1, 1])
SOFTCAP = 5.0


class Scalar:
    """What the rules of `row_cases` compute with: a traced row or rows of the dense formula, under the names they use."""

    def __init__(self, value: Any, table: Any, head: Any) -> None:
        self.value, self._table, self._head = value, table, head

    @property
    def text(self) -> "Scalar":
        return self

    def const(self, number: Any) -> "Scalar":
        return number if isinstance(number, Scalar) else self.of(self.value * 0.0 + number)

    def param(self, name: str) -> "Scalar":
        return self.of(self._table[self._head] + self.value * 0.0)

    def of(self, value: Any) -> "Scalar":
        return Scalar(value, self._table, self._head)

    def __add__(self, other: Any) -> "Scalar":
        return self.of(self.value + _plain(other))

    __radd__ = __add__

    def __sub__(self, other: Any) -> "Scalar":
        return self.of(self.value - _plain(other))

    def __rsub__(self, other: Any) -> "Scalar":
        return self.of(_plain(other) - self.value)

    def __mul__(self, other: Any) -> "Scalar":
        return self.of(self.value * _plain(other))

    __rmul__ = __mul__

    def __truediv__(self, other: Any) -> "Scalar":
        return self.of(self.value / _plain(other))

    def __rtruediv__(self, other: Any) -> "Scalar":
        return self.of(_plain(other) / self.value)

    def __neg__(self) -> "Scalar":
        return self.of(-self.value)

    def most(self, other: Any) -> "Scalar":
        other = _plain(other)
        if isinstance(other, float):
            return self.of(torch.relu(self.value) if other == 0.0 else torch.clamp(self.value, min=other))
        return self.of(torch.maximum(self.value, other))

    def power(self, exponent: float) -> "Scalar":
        return self.of(self.value**exponent)

    def math(self, op: str) -> "Scalar":
        return self.of(getattr(self.value, op)())

    def compare(self, predicate: str, other: Any) -> "Scalar":
        return self.of(getattr(self.value, {"oge": "ge", "ogt": "gt"}[predicate])(_plain(other)))

    def where(self, x: Any, y: Any) -> "Scalar":
        return self.of(torch.where(self.value, _plain(x), _plain(y)))

    def exp(self) -> "Scalar":
        return self.math("exp")

    def log(self) -> "Scalar":
        return self.math("log")

    def sqrt(self) -> "Scalar":
        return self.math("sqrt")

    def abs(self) -> "Scalar":
        return self.math("abs")

    def detach(self) -> "Scalar":
        return self.math("detach")

    def sum(self, name: str | None = None) -> "Scalar":
        return self.math("sum")

    def max(self, name: str | None = None) -> "Scalar":
        return self.math("max")

    def min(self, name: str | None = None) -> "Scalar":
        return self.math("min")

    def mean(self) -> "Scalar":
        return self.math("mean")

    def count(self, name: str | None = None) -> "Scalar":
        return self.of((self.value * 0.0 + 1.0).sum())


def _plain(x: Any) -> Any:
    return x.value if isinstance(x, Scalar) else x


def rule_row(name: str) -> Callable[[Any], dict[str, Any]]:
    """The row of `row_cases` called `name`; its captured tensor is `t.table`."""
    case = CASES[name]

    def make(t: Any) -> dict[str, Any]:
        def row(s: Any, b: Any, h: Any, q_idx: Any) -> Any:
            made = case.rule(Scalar(s, t.table, h))  # type: ignore[arg-type]
            if not isinstance(made, tuple):
                return made.value  # type: ignore[attr-defined]
            return made[0].value, {n: x.value for n, x in zip(case.outputs, made[1:], strict=True)}  # type: ignore[attr-defined]

        return {"row": row}

    return make


def api_row(name: str) -> Callable[[Any], dict[str, Any]]:
    """The row of `attn_mlir.rows` called `name`; its captured tensor is `t.table`."""

    def make(t: Any) -> dict[str, Any]:
        row = getattr(api_rows, name)
        row = row(t.table) if name in ("softmax_sink", "biased_sigmoid") else row
        return {"row": row, "dense_row": with_torch(row)}

    return make


API_ROWS = [name for name in api_rows.__all__ if name != "detach"]
ROWS: dict[str, Callable[[Any], dict[str, Any]]] = {
    **{name: rule_row(name) for name in CASES},
    **{f"rows.{name}": api_row(name) for name in API_ROWS},
}
# Every row of scores has at least three keys, so that what divides by a spread has one.
MASKS: dict[str, Any] = {
    "full": None,
    "causal": lambda b, h, q_idx, kv_idx: kv_idx <= q_idx + 2,
    "window": lambda b, h, q_idx, kv_idx: abs(q_idx - kv_idx) <= 2,
    "documents": lambda b, h, q_idx, kv_idx: DOCUMENTS[q_idx] == DOCUMENTS[kv_idx],
}
MODS: dict[str, Callable[[Any], Any]] = {
    "plain": lambda t: None,
    "softcap": lambda t: lambda score, b, h, q_idx, kv_idx: t.cap * torch.tanh(score / t.cap),
    "bias": lambda t: lambda score, b, h, q_idx, kv_idx: score + t.bias[q_idx, kv_idx],
    "alibi": lambda t: lambda score, b, h, q_idx, kv_idx: score + t.slopes[h] * (kv_idx - q_idx),
}
_TENSORS = {
    "softcap": {"cap": torch.tensor(SOFTCAP, dtype=torch.float64)},
    "bias": {"bias": 0.5 * random(SQ, SKV, seed=31)},
    "alibi": {"slopes": 0.1 + 0.1 * random(HQ, seed=32).abs()},
    "plain": {},
}
TABLE = torch.tensor([0.75, 1.25, 0.9, 1.5], dtype=torch.float64)


def row_case(row: str, mask: str, mod: str) -> Case:
    """A row with a mask and a score mod; scores are mostly positive, for rows that divide by sums of scores."""

    def make(t: Any) -> dict[str, Any]:
        return {**ROWS[row](t), "mask_mod": MASKS[mask], "score_mod": MODS[mod](t)}

    inputs = {"q": random(B, HQ, SQ, 4, seed=1).abs() + 0.2, "k": random(B, HKV, SKV, 4, seed=2) + 0.8}
    return Case(make, {"table": TABLE, **_TENSORS[mod]}, inputs, lse=row in ("softmax", "sigmoid"))


def softmax(s: Any) -> Any:
    e = torch.exp(s - s.max())
    return e / e.sum()


def score_case(make: Callable[[Any], Any], row: Any = softmax, mask: str = "causal", **tensors: torch.Tensor) -> Case:
    """A softmax whose score mod `make` gives of the tensors."""
    return Case(lambda t: {"row": row, "score_mod": make(t), "mask_mod": MASKS[mask]}, tensors)


def _bucket(distance: Any) -> Any:
    return torch.clamp(abs(distance), max=3)


CAPTURES: dict[str, Case] = {
    "bias [Sq, Skv]": score_case(lambda t: lambda s, b, h, q, k: s + t.x[q, k], x=random(SQ, SKV)),
    "bias [H, Sq, Skv]": score_case(lambda t: lambda s, b, h, q, k: s + t.x[h, q, k], x=random(HQ, SQ, SKV)),
    "bias [B, H, Sq, Skv]": score_case(lambda t: lambda s, b, h, q, k: s + t.x[b, h, q, k], x=random(B, HQ, SQ, SKV)),
    "bias [B, 1, 1, Skv]": score_case(lambda t: lambda s, b, h, q, k: s + t.x[b, 0, 0, k], x=random(B, 1, 1, SKV)),
    "gate [B, Sq]": score_case(lambda t: lambda s, b, h, q, k: s * torch.sigmoid(t.x[b, q]), x=random(B, SQ)),
    "slopes": score_case(lambda t: lambda s, b, h, q, k: s - torch.exp(t.x[h]) * abs(q - k), x=random(HQ)),
    "a number": score_case(lambda t: lambda s, b, h, q, k: s * t.x + t.x * (q - k), x=torch.tensor(0.7)),
    "relative position": score_case(lambda t: lambda s, b, h, q, k: s + t.x[q - k + SKV], x=random(SQ + SKV)),
    "negative index": score_case(lambda t: lambda s, b, h, q, k: s + t.x[q - k] + t.x[-1], x=random(2 * SKV)),
    "buckets of heads": score_case(lambda t: lambda s, b, h, q, k: s + t.x[_bucket(q - k), h], x=random(4, HQ)),
    "documents": score_case(lambda t: lambda s, b, h, q, k: s * t.x[DOCUMENTS[k]], x=random(2)),
    "two documents": score_case(lambda t: lambda s, b, h, q, k: s + t.x[DOCUMENTS[q], DOCUMENTS[k]], x=random(2, 2)),
    "several reads": score_case(lambda t: lambda s, b, h, q, k: s * t.x[q] + t.x[k] * t.x[0] + t.x[q] ** 2, x=random(SKV)),
    "several tensors": score_case(
        lambda t: lambda s, b, h, q, k: s * t.x[h] + t.y[q, k] * t.z[k], x=random(HQ), y=random(SQ, SKV), z=random(SKV, seed=3)
    ),
    "an unused tensor": score_case(lambda t: lambda s, b, h, q, k: s + t.x[h].detach() + t.y[k], x=random(HQ), y=random(SKV)),
    "read conditionally": score_case(lambda t: lambda s, b, h, q, k: torch.where(k < 3, s + t.x[k], s * t.x[q]), x=random(SKV)),
    "f32 tensor": score_case(lambda t: lambda s, b, h, q, k: s + t.x[h, k], x=random(HQ, SKV)),
    "sink logits": Case(lambda t: api_row("softmax_sink")(t) | {"mask_mod": MASKS["window"]}, {"table": random(HQ)}),
    "one sink logit": Case(lambda t: api_row("softmax_sink")(t) | {"mask_mod": MASKS["window"]}, {"table": torch.tensor(0.4)}),
    "sigmoid bias": Case(lambda t: api_row("biased_sigmoid")(t) | {"mask_mod": MASKS["window"]}, {"table": random(HQ)}),
    "read in the row": Case(lambda t: {"row": _temperature(t), "mask_mod": MASKS["causal"]}, {"x": random(B, SQ).exp()}, lse=True),
    "read in score and row": Case(
        lambda t: {"row": _temperature(t), "score_mod": lambda s, b, h, q, k: s * t.x[b, q] + t.x[b, 0], "mask_mod": MASKS["causal"]},
        {"x": random(B, SQ).exp()},
    ),
    "query mod": Case(
        lambda t: {"row": softmax, "query_mod": lambda x, b, h, i, d: x * t.x[h, d] + t.x[h, 0], "mask_mod": MASKS["causal"]},
        {"x": random(HQ, 4)},
    ),
    "key mod": Case(
        lambda t: {"row": softmax, "key_mod": lambda x, b, h, i, d: torch.tanh(x) * t.x[h, i] + t.y[d] * x, "mask_mod": MASKS["causal"]},
        {"x": random(HKV, SKV), "y": random(4)},
    ),
    "value mod": Case(
        lambda t: {"row": softmax, "value_mod": lambda x, b, h, i, d: x * x * t.x[b, i] + t.x[b, 0], "mask_mod": MASKS["causal"]},
        {"x": random(B, SKV)},
    ),
    "all mods, one tensor": Case(
        lambda t: {
            "row": softmax, "query_mod": lambda x, b, h, i, d: x * t.x[d], "key_mod": lambda x, b, h, i, d: x + t.x[d] * t.x[0],
            "value_mod": lambda x: torch.sin(x) * t.x[2], "score_mod": lambda s, b, h, q, k: s + t.x[0] * k,
        },
        {"x": random(4)},
    ),
}  # fmt: skip


def _temperature(t: Any) -> Any:
    def row(s: Any, b: Any, h: Any, q_idx: Any) -> Any:
        z = s * t.x[b, q_idx]
        e = torch.exp(z - z.max())
        return e / e.sum()

    return row
