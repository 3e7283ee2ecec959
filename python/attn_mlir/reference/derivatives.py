"""Derivative functions: arguments that belong together, and what differences of @attention say of the results.

`attn-differentiate` makes @attention_fwd, @attention_bwd, @attention_jvp and @attention_bwd2 of @attention. Their arguments o,
rows and saved follow from the inputs, so that they cannot be drawn at random.
"""

import dataclasses
from collections.abc import Callable, Sequence

import numpy as np

from attn_mlir.mlir import ir
from attn_mlir.passes.locations import location_name
from attn_mlir.passes.regions import find_all
from attn_mlir.reference.compare import Difference, difference
from attn_mlir.reference.errors import EvaluationError
from attn_mlir.reference.evaluator import Detached, evaluate, find_function, functions_of
from attn_mlir.reference.scalar import Array, element_type

KINDS = ("fwd", "bwd", "jvp", "bwd2")
Function = Callable[[list[Array]], list[Array]]
_STEPS = (3e-2, 3e-3, 3e-4, 3e-5)
_SMALL_STEPS = (3e-6, 1e-6)
_DOUBT, _LEAST_DOUBT, _MOST_DOUBT = 10.0, 1e-7, 1e-3
"""How often the disagreement of two differences they may be wrong by; relative to their size, what of that counts, at most."""


def kind_of(function: str) -> tuple[str, str] | None:
    """(the function that it is a derivative of, "fwd", "bwd", "jvp" or "bwd2"), by its name."""
    primal, _, kind = function.rpartition("_")
    return (primal, kind) if primal and kind in KINDS else None


@dataclasses.dataclass(frozen=True)
class Slope:
    """A derivative by differences, and how uncertain it is."""

    value: Array
    doubt: Array

    def difference(self, name: str, got: Array) -> Difference:
        """How far `got` is from what the derivative may be, where that is finite."""
        if got.shape != self.value.shape:
            return Difference(name, np.inf, np.inf)
        nearest = self.value + np.clip(got - self.value, -self.doubt, self.doubt)
        finite = np.isfinite(self.value)
        return difference(name, got[finite], np.where(np.isnan(got), self.value, nearest)[finite])


@dataclasses.dataclass(frozen=True)
class DerivativePoint:
    """Where derivatives are taken: the inputs of @`primal`, directions for them, and weights of its results."""

    module: ir.Module | ir.Operation | ir.OpView
    """Holds the derivative functions."""
    original: ir.Module | ir.Operation | ir.OpView
    """Holds @`primal`."""
    primal: str
    inputs: list[Array]
    wrt: tuple[int, ...]
    seed: int = 0

    @property
    def names(self) -> list[str]:
        """The names of the inputs."""
        return _names(find_function(self.original, self.primal))

    @property
    def outputs(self) -> list[str]:
        """The names of the sums of values that @`primal` gives: "o", and where there are several "o1", "o2"..."""
        made = _results(find_function(self.original, self.primal))
        count = sum(ir.RankedTensorType(type_).rank == 4 for type_ in made)
        return [f"o{n}" if n else "o" for n in range(max(count, 1))]

    @property
    def rows(self) -> int:
        """How many row outputs @`primal` has."""
        return len(_results(find_function(self.original, self.primal))) - len(self.outputs)

    def forward(self, inputs: Sequence[Array]) -> list[Array]:
        """o, rows and, where there is a function that gives them, saved."""
        name = f"{self.primal}_fwd"
        for module in (self.module, self.original):
            if name in functions_of(module):
                return evaluate(module, inputs, name)
        return evaluate(self.original, inputs, self.primal)

    def directions(self) -> list[Array]:
        """One for each input of `wrt`."""
        rng = np.random.default_rng([self.seed, 1])
        return [rng.standard_normal(self.inputs[i].shape) for i in self.wrt]

    def weights(self) -> list[Array]:
        """do and drows; 0 for what is not finite, as lse is where a row has no key."""
        rng = np.random.default_rng([self.seed, 2])
        results = self.forward(self.inputs)[: len(self.outputs) + self.rows]
        return [np.where(np.isfinite(r), rng.standard_normal(r.shape), 0.0) for r in results]

    def arguments(self, kind: str) -> list[Array]:
        """All arguments of the derivative function `kind`."""
        match kind:
            case "fwd":
                found = list(self.inputs)
            case "jvp":
                found = [*self.inputs, *self.directions()]
            case "bwd":
                found = [*self.inputs, *self.forward(self.inputs), *self.weights()]
            case _:
                found = [*self.inputs, *self.forward(self.inputs), *self.weights(), *self.directions()]
        self._check_count(kind, len(found))
        return found

    def _check_count(self, kind: str, count: int) -> None:
        func = find_function(self.module, f"{self.primal}_{kind}")
        takes = len(func.regions[0].blocks[0].arguments)
        if takes == count:
            return
        message = f"@{self.primal}_{kind} takes {takes} arguments, where {count} are known"
        if kind.startswith("bwd") and f"{self.primal}_fwd" not in functions_of(self.module):
            message += f": let @{self.primal}_fwd be made too, which gives what it needs saved"
        raise EvaluationError(message, func.location)

    def results(self, kind: str) -> list[str]:
        """The names of what the derivative function `kind` gives."""
        sums, rows = self.outputs, [f"row output {i}" for i in range(self.rows)]
        outputs = [*sums, *rows]
        gradients = [f"d{self.names[i]}" for i in self.wrt]
        match kind:
            case "fwd":
                saved = len(_results(find_function(self.module, f"{self.primal}_fwd"))) - len(outputs)
                return [*outputs, *(f"saved {i}" for i in range(saved))]
            case "jvp":
                return [*(each for name in sums for each in (name, f"{name}_dot")), *rows, *(f"{name}_dot" for name in rows)]
            case "bwd":
                return gradients
            case _:
                return [*gradients, *(f"d(d{name})" for name in outputs)]

    def check(self, kind: str, results: Sequence[Array]) -> list[Difference] | None:
        """How far `results` of a derivative function are from differences of what it is the derivative of.

        None where that is not known: `bwd2` needs `bwd` in the same module.
        """
        if kind == "bwd2" and f"{self.primal}_bwd" not in functions_of(self.module):
            return None
        names = self.results(kind)
        if len(results) != len(names):
            raise EvaluationError(f"@{self.primal}_{kind} has {len(results)} results, expected {', '.join(names)}", None)
        if kind == "fwd":
            wanted = evaluate(self.original, self.inputs, self.primal)
            return [difference(n, got, want) for n, got, want in zip(names, results, wanted, strict=False)]
        return self._check_jvp(names, results) if kind == "jvp" else self._check_gradients(kind, names, results)

    def _check_jvp(self, names: list[str], results: Sequence[Array]) -> list[Difference]:
        value = self._primal()
        wanted = value(self.inputs)
        slopes = _slopes(lambda e: value(_moved(self.inputs, dict(zip(self.wrt, self.directions(), strict=True)), e)))
        exact = [Slope(x, np.zeros_like(x)) for x in wanted]
        count = len(self.outputs)
        pairs = [each for pair in zip(exact[:count], slopes[:count], strict=True) for each in pair]
        told = [*pairs, *exact[count:], *slopes[count:]]
        return [want.difference(n, got) for n, got, want in zip(names, results, told, strict=True)]

    def _check_gradients(self, kind: str, names: list[str], results: Sequence[Array]) -> list[Difference]:
        weights = self.weights()
        base = [*self.inputs, *weights]
        loss = self._loss(len(weights)) if kind == "bwd" else self._second_loss(len(weights))
        places = list(self.wrt) if kind == "bwd" else [*self.wrt, *range(len(self.inputs), len(base))]
        rng = np.random.default_rng([self.seed, 3])
        found = []
        for name, place, got in zip(names, places, results, strict=True):
            direction = np.where(np.isfinite(base[place]), rng.standard_normal(base[place].shape), 0.0)
            if got.shape != direction.shape:
                found.append(Difference(name, np.inf, np.inf))
                continue
            (slope,) = _slopes(lambda e, place=place, direction=direction: [loss(_moved(base, {place: direction}, e))])
            found.append(slope.difference(name, np.asarray((got * direction).sum())))
        return found

    def _primal(self) -> Function:
        detached = Detached()
        evaluate(self.original, self.inputs, self.primal, detached=detached)
        return lambda inputs: evaluate(self.original, inputs, self.primal, detached=detached.replay())

    def _loss(self, weights: int) -> Callable[[list[Array]], Array]:
        """The weighted sum of the results of @`primal`, whose gradients `bwd` gives."""
        value = self._primal()

        def loss(values: list[Array]) -> Array:
            inputs, do = values[:-weights], values[-weights:]
            return np.asarray(sum(np.where(d != 0, d * r, 0.0).sum() for d, r in zip(do, value(inputs), strict=True)))

        return loss

    def _second_loss(self, weights: int) -> Callable[[list[Array]], Array]:
        """The gradients along `directions`, whose gradients `bwd2` gives: from `bwd`, or from differences.

        What `bwd` reads of the forward pass does not tell what was detached in it, so that it must be differences then.
        """
        first, directions = self._loss(weights), self.directions()

        def by_differences(values: list[Array]) -> Array:
            moved = dict(zip(self.wrt, directions, strict=True))
            return _extrapolated(lambda e: [first(_moved(values, moved, e))], 1e-3)[0]

        def by_gradients(values: list[Array]) -> Array:
            inputs, do = values[:-weights], values[-weights:]
            gradients = evaluate(self.module, [*inputs, *self.forward(inputs), *do], f"{self.primal}_bwd")
            return np.asarray(sum((g * d).sum() for g, d in zip(gradients, directions, strict=True)))

        primal = find_function(self.original, self.primal)
        slopes = find_all(primal, "attn.slope")
        if slopes:
            raise EvaluationError("differences of a program with attn.slope do not tell its second derivatives", slopes[0].location)
        return by_differences if find_all(primal, "attn.detach") else by_gradients


def inputs_with_gradient(
    module: ir.Module | ir.Operation | ir.OpView, original: ir.Module | ir.Operation | ir.OpView, function: str, named: Sequence[str]
) -> tuple[int, ...]:
    """Which inputs a derivative function is for: those `named`, or all floating tensors where that fits its signature."""
    primal, kind = kind_of(function) or (function, "")
    arguments = find_function(original, primal).regions[0].blocks[0].arguments
    names = _names(find_function(original, primal))
    unknown = [name for name in named if name not in names]
    if unknown:
        raise EvaluationError(f"@{primal} has no argument {unknown[0]}; its arguments are {', '.join(names)}", None)
    floats = [i for i, a in enumerate(arguments) if isinstance(a.type, ir.RankedTensorType) and _is_float(a.type)]
    found = tuple(i for i in floats if names[i] in named) if named else tuple(floats)
    func, outputs = find_function(module, function), len(_results(find_function(original, primal)))
    given = len(func.regions[0].blocks[0].arguments)
    made = len(_results(func))
    counts = {"jvp": given - len(arguments), "bwd": made, "bwd2": made - outputs}
    if counts.get(kind, len(found)) != len(found):
        raise EvaluationError(f"@{function} is for {counts[kind]} arguments; name them, as --wrt=q+k", func.location)
    return found


def _names(func: ir.Operation) -> list[str]:
    usual = ("q", "k", "v")
    arguments = enumerate(func.regions[0].blocks[0].arguments)
    return [location_name(a.location) or (usual[i] if i < 3 else f"arg{i}") for i, a in arguments]


def _is_float(type_: ir.Type) -> bool:
    return not isinstance(element_type(type_), (ir.IntegerType, ir.IndexType))


def _results(func: ir.Operation) -> list[ir.Type]:
    return list(ir.FunctionType(ir.TypeAttr(func.attributes["function_type"]).value).results)


def _moved(values: Sequence[Array], directions: dict[int, Array], by: float) -> list[Array]:
    return [value + by * directions[i] if i in directions else value for i, value in enumerate(values)]


def _slopes(function: Callable[[float], list[Array]]) -> list[Slope]:
    """The derivatives at 0, from central differences at several steps: where two of them agree best.

    Large steps are exact for what is smooth; small ones do not reach the next kink, or beyond where a root is curved.
    """
    estimates = [*(_extrapolated(function, step) for step in _STEPS), *(_central(function, step) for step in _SMALL_STEPS)]
    found = []
    for values in zip(*estimates, strict=True):
        gaps = np.stack([np.abs(a - b) for a, b in zip(values[1:], values[:-1], strict=True)])
        gaps = np.where(np.isnan(gaps), np.inf, gaps)
        best = gaps.argmin(axis=0)[None]
        value, gap = (np.take_along_axis(np.asarray(x), best, axis=0)[0] for x in (np.stack(values[1:]), gaps))
        doubt, size = _DOUBT * gap, np.maximum(1.0, np.abs(value))
        found.append(Slope(value, np.where(doubt < _LEAST_DOUBT * size, 0.0, np.minimum(doubt, _MOST_DOUBT * size))))
    return found


def _extrapolated(function: Callable[[float], list[Array]], step: float) -> list[Array]:
    return [(4.0 * n - w) / 3.0 for n, w in zip(_central(function, step / 2), _central(function, step), strict=True)]


def _central(function: Callable[[float], list[Array]], step: float) -> list[Array]:
    with np.errstate(all="ignore"):
        return [(a - b) / (2.0 * step) for a, b in zip(function(step), function(-step), strict=True)]
