"""Random attentions as Python functions: the same ones are traced, and run on the dense tensors of a reference.

What is drawn stays well conditioned: exponents are bounded, divisors and arguments of roots and logarithms are at least 1.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch

from gradient_checks import HKV, HQ, SKV, SQ, B, Case, random

Draw = Callable[[int], int]
"""A number below its argument."""

UNARY: dict[str, Callable[[Any], Any]] = {
    "tanh({})": torch.tanh,
    "sigmoid({})": torch.sigmoid,
    "relu({})": torch.relu,
    "abs({})": abs,
    "-{}": lambda x: -x,
    "exp(tanh({}))": lambda x: torch.exp(torch.tanh(x)),
    "log(1 + {} ** 2)": lambda x: torch.log(1.0 + x * x),
    "sqrt(1 + {} ** 2)": lambda x: torch.sqrt(1.0 + x * x),
    "tanh({}) ** 3": lambda x: torch.tanh(x) ** 3,
    "sin({})": torch.sin,
    "clamp({}, -0.7, 0.9)": lambda x: torch.clamp(x, -0.7, 0.9),
    "0.6 * {}": lambda x: 0.6 * x,
    "{} + 0.3": lambda x: x + 0.3,
    "where({0} > 0.1, {0}, 0.2 * {0})": lambda x: torch.where(x > 0.1, x, 0.2 * x),
}
BINARY: dict[str, Callable[[Any, Any], Any]] = {
    "{} + {}": lambda x, y: x + y,
    "{} - {}": lambda x, y: x - y,
    "{} * tanh({})": lambda x, y: x * torch.tanh(y),
    "{} / (1 + {} ** 2)": lambda x, y: x / (1.0 + y * y),
    "maximum({}, {})": torch.maximum,
    "minimum({}, {})": torch.minimum,
    "exp({} - abs({}) - 3).clamp(max=2)": lambda x, y: torch.exp(torch.clamp(x - abs(y) - 3.0, max=0.7)),
}
REDUCED = ("sum", "max", "min", "mean")
MASKS: dict[str, Any] = {
    "q_idx >= kv_idx": lambda b, h, q, k: q >= k,
    "q_idx - kv_idx <= 2": lambda b, h, q, k: q - k <= 2,
    "abs(q_idx - kv_idx) < 4": lambda b, h, q, k: abs(q - k) < 4,
    "kv_idx < 3": lambda b, h, q, k: k < 3,
    "kv_idx % 2 == 0": lambda b, h, q, k: k % 2 == 0,
    "q_idx // 3 == kv_idx // 3": lambda b, h, q, k: q // 3 == k // 3,
    "h < 2": lambda b, h, q, k: h < 2,
    "q_idx != 3": lambda b, h, q, k: q != 3,
}
_LENGTHS = torch.tensor([4, 7])
MASKS["kv_idx < lengths[b]"] = lambda b, h, q, k: k < _LENGTHS[b]


@dataclass(frozen=True)
class Sizes:
    """Those of an attention: batch is 2, four heads of q read two of k and v."""

    queries: int = SQ
    keys: int = SKV
    dim: int = 4
    value_dim: int = 3

    def tensors(self) -> dict[str, torch.Tensor]:
        """What the functions may capture."""
        shapes = {
            "bias": (self.queries, self.keys),
            "heads": (HQ,),
            "table": (self.queries + self.keys,),
            "gate": (B, HQ, self.keys),
            "number": (),
            "rows": (B, self.queries),
        }
        return {name: random(*shape, seed=seed) for seed, (name, shape) in enumerate(shapes.items(), 41)}


_OF_PAIR: dict[str, Callable[..., Any]] = {
    "bias[q_idx, kv_idx]": lambda t, b, h, q, k: t.bias[q, k],
    "heads[h]": lambda t, b, h, q, k: t.heads[h],
    "table[q_idx - kv_idx + SKV]": lambda t, b, h, q, k: t.table[q - k + t.keys],
    "gate[b, h, kv_idx]": lambda t, b, h, q, k: t.gate[b, h, k],
    "number": lambda t, b, h, q, k: t.number,
    "rows[b, q_idx]": lambda t, b, h, q, k: t.rows[b, q],
}
_OF_ROW: dict[str, Callable[..., Any]] = {
    "heads[h]": lambda t, b, h, q: t.heads[h],
    "number": lambda t, b, h, q: t.number,
    "rows[b, q_idx]": lambda t, b, h, q: t.rows[b, q],
    "table[q_idx]": lambda t, b, h, q: t.table[q],
}
# Numbers computed of captured tensors by torch, or taken out of them, whenever the function is called.
_COMPUTED_OF_PAIR: dict[str, Callable[..., Any]] = {
    "heads.tanh()[h]": lambda t, b, h, q, k: t.heads.tanh()[h],
    "(bias * heads[0])[q_idx, kv_idx]": lambda t, b, h, q, k: (t.bias * t.heads[0])[q, k],
    "rows.mean()": lambda t, b, h, q, k: t.rows.mean(),
    "softplus(number)": lambda t, b, h, q, k: torch.nn.functional.softplus(t.number),
    "gate.sum(1)[b, kv_idx]": lambda t, b, h, q, k: t.gate.sum(1)[b, k],
    "number.item()": lambda t, b, h, q, k: t.number.item(),
    "0.1 if heads[0] > 0 else -0.2": lambda t, b, h, q, k: 0.1 if t.heads[0] > 0 else -0.2,
}
_COMPUTED_OF_ROW: dict[str, Callable[..., Any]] = {
    "heads.clamp(-1, 0.5)[h]": lambda t, b, h, q: t.heads.clamp(-1, 0.5)[h],
    "table.amax()": lambda t, b, h, q: t.table.amax(),
    "float(heads[1])": lambda t, b, h, q: float(t.heads[1]),
}


@dataclass(frozen=True)
class Line:
    """One assignment: a value of UNARY or BINARY, a reduction, a read, a softmax or a detached value, of earlier ones."""

    kind: str
    what: str
    x: int = 0
    y: int = 0


@dataclass(eq=False)
class Code:
    """Straight-line code; value 0 is the score. `varying` are the values that differ from key to key."""

    reads: dict[str, Callable[..., Any]]
    reductions: bool
    lines: list[Line] = field(default_factory=list)
    varying: list[int] = field(default_factory=lambda: [0])

    def grow(self, draw: Draw) -> None:
        number, count = len(self.lines) + 1, len(self.lines) + 1
        x, y = self.varying[draw(len(self.varying))], draw(count)
        choice = draw(11 if self.reductions else 8)
        if choice <= 3:
            line = Line("unary", list(UNARY)[draw(len(UNARY))], x)
        elif choice <= 6:
            line = Line("binary", list(BINARY)[draw(len(BINARY))], x, y)
        elif choice == 7:
            line = Line("read", list(self.reads)[draw(len(self.reads))])
        elif choice <= 9:
            line = Line("reduced", REDUCED[draw(len(REDUCED))], x)
        else:
            line = Line(("softmax", "detached")[draw(4) == 0], "", x)
        self.lines.append(line)
        if line.kind in ("unary", "binary", "softmax", "detached") or (line.kind == "read" and not self.reductions):
            self.varying.append(number)

    def run(self, t: Any, score: Any, *position: Any) -> list[Any]:
        values = [score]
        for line in self.lines:
            values.append(self._value(line, values, t, position))
        return values

    def _value(self, line: Line, values: list[Any], t: Any, position: tuple[Any, ...]) -> Any:
        x = values[line.x]
        match line.kind:
            case "unary":
                return UNARY[line.what](x)
            case "binary":
                return BINARY[line.what](x, values[line.y])
            case "read":
                # As part of a score, so that it is a row of numbers for the dense formula, too.
                return self.reads[line.what](t, *position) + 0.0 * values[0]
            case "reduced":
                return getattr(x, line.what)()
            case "detached":
                return 0.7 * x.detach()  # never equal to what is not detached
        e = torch.exp(x - x.max())
        return e / e.sum()

    def text(self) -> str:
        lines = []
        for number, line in enumerate(self.lines, 1):
            x, y = f"x{line.x}", f"x{line.y}"
            formula = line.what.format(x, y) if line.kind in ("unary", "binary") else f"{line.kind}({line.what or x})"
            lines.append(f"  x{number} = {f'{x}.{line.what}()' if line.kind == 'reduced' else formula}")
        return "\n".join(lines)

    def statements(self) -> str:
        """The body of a function of x0 that does the same, as Python."""
        made = []
        for number, line in enumerate(self.lines, 1):
            x = f"x{line.x}"
            formulas = {
                "unary": line.what.format(x, f"x{line.y}"),
                "binary": line.what.format(x, f"x{line.y}"),
                "read": f"({line.what}) + 0.0 * x0",
                "reduced": f"{x}.{line.what}()",
                "detached": f"0.7 * {x}.detach()",
                "softmax": f"exp({x} - {x}.max()) / exp({x} - {x}.max()).sum()",
            }
            made.append(f"        x{number} = {formulas[line.kind]}\n")
        return "".join(made)


@dataclass(eq=False)
class RandomAttention:
    """A drawn attention; `text` says what it is. `source` defines `make(q_len, bias, ...)`, whose functions capture single tensors."""

    case: Case
    text: str
    source: str

    def in_closures(self) -> Case:
        """The same attention made of `source`: its functions have variables of their own in place of one object that holds all."""
        scope: dict[str, Any] = {}
        exec(compile(self.source, "<random attention>", "exec"), scope)
        return Case(lambda t: scope["make"](**vars(t), lengths=_LENGTHS), self.case.tensors, self.case.inputs)


_SOURCE = """\
from torch import clamp, exp, log, maximum, minimum, relu, sigmoid, sin, sqrt, tanh, where
from torch.nn.functional import softplus

def make({names}):
    SKV = {keys}

    def score_mod(x0, b, h, q_idx, kv_idx):
{score}        return {changed}

    def row(x0, b, h, q_idx):
{row}        return {weight}

    def mask_mod(b, h, q_idx, kv_idx):
        return {mask}

    return {{"row": row, "score_mod": score_mod{masked}}}
"""


def random_attention(draw: Draw, sizes: Sizes = Sizes(), computed: bool = False) -> RandomAttention:
    """Draws a mask, a score mod, a row and its states; with `computed`, they also read what torch computes of captured tensors."""
    score = Code(_OF_PAIR | (_COMPUTED_OF_PAIR if computed else {}), False)
    row = Code(_OF_ROW | (_COMPUTED_OF_ROW if computed else {}), True)
    for _ in range(draw(4)):
        score.grow(draw)
    for _ in range(1 + draw(7)):
        row.grow(draw)
    names = list(MASKS)
    chosen = [names[draw(len(names))] for _ in range(draw(3))]
    either = draw(3) == 0
    fixed = [i for i in range(1, len(row.lines) + 1) if row.lines[i - 1].kind == "reduced"]
    states = sorted({fixed[draw(len(fixed))] for _ in range(draw(3))}) if fixed else []
    weight, changed = row.varying[-1], score.varying[-1]

    mask = (" | " if either else " & ").join(f"({name})" for name in chosen)
    returned = ", ".join(f"'x{i}': x{i}" for i in states)
    source = _SOURCE.format(
        names=", ".join((*sizes.tensors(), "lengths")),
        keys=sizes.keys,
        score=score.statements(),
        changed=f"x{changed}",
        row=row.statements(),
        weight=f"(x{weight}, {{{returned}}})" if states else f"x{weight}",
        mask=mask or "q_idx >= 0",
        masked=', "mask_mod": mask_mod' if chosen else "",
    )

    def make(t: Any) -> dict[str, Any]:
        t.keys = sizes.keys

        def score_mod(s: Any, b: Any, h: Any, q_idx: Any, kv_idx: Any) -> Any:
            return score.run(t, s, b, h, q_idx, kv_idx)[changed]

        def row_function(s: Any, b: Any, h: Any, q_idx: Any) -> Any:
            values = row.run(t, s, b, h, q_idx)
            return (values[weight], {f"x{i}": values[i] for i in states}) if states else values[weight]

        def mask_mod(b: Any, h: Any, q_idx: Any, kv_idx: Any) -> Any:
            keep = MASKS[chosen[0]](b, h, q_idx, kv_idx)
            for name in chosen[1:]:
                other = MASKS[name](b, h, q_idx, kv_idx)
                keep = keep | other if either else keep & other
            return keep

        return {"row": row_function, "score_mod": score_mod, "mask_mod": mask_mod if chosen else None}

    told = [f"mask: {(' or ' if either else ' and ').join(chosen) or 'none'}", "score:", score.text(), f"  -> x{changed}"]
    told += ["row:", row.text(), f"  -> x{weight}, states {states}"]
    keys = (B, HKV, sizes.keys)
    shapes = {"q": (B, HQ, sizes.queries, sizes.dim), "k": (*keys, sizes.dim), "v": (*keys, sizes.value_dim)}
    seed = 1 + draw(50)
    inputs = {name: random(*shape, seed=seed + i) for i, (name, shape) in enumerate(shapes.items())}
    return RandomAttention(Case(make, sizes.tensors(), inputs), "\n".join(told), source)
