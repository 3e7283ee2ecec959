"""Is the `backward` of an OnlineFunc the derivative of its forward pass?"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from attn_mlir.api.custom_io import CustomIO
from attn_mlir.api.online_func import OnlineFunc, check_online_func, writes_backward
from attn_mlir.dialects import loaded
from attn_mlir.dialects.attn import build
from attn_mlir.errors import ArgumentError, CompileError
from attn_mlir.frontend.cache import Entry
from attn_mlir.frontend.captures import Scan
from attn_mlir.frontend.emit import Inputs
from attn_mlir.frontend.online import OnlineDefinition, trace_online
from attn_mlir.frontend.program import Traced
from attn_mlir.frontend.tensors import ELEMENTS
from attn_mlir.mlir import LOCK, ir
from attn_mlir.passes.pipeline import Pipeline
from attn_mlir.passes.regions import block_of, find_all
from attn_mlir.reference import InputMaker, Sizes, evaluate
from attn_mlir.registry import registry

_KINDS = ("ordinary scores", "positive scores", "negative scores", "large scores", "small scores", "equal scores")
_HEADS, _ROWS, _KEYS = 2, 5, 9
_TOLERANCE = 1e-8
_DERIVED = "attn-recover-rows,attn-simplify"
_BACKWARD = "attn-differentiate{functions=fwd+bwd wrt=q+v}"


@dataclass(frozen=True)
class WeightDifference:
    """How far one output, "p" or "dscores", is from the derived one; the rest describes the worst place."""

    output: str
    largest: float
    kinds: tuple[str, ...]
    """The kinds of scores at which it differs."""
    written: float
    derived: float
    score: float
    dp: float

    @property
    def agrees(self) -> bool:
        return not self.kinds

    def __str__(self) -> str:
        if self.agrees:
            return f"{self.output}: agrees, largest difference {self.largest:.1e}"
        return (
            f"{self.output}: differs by up to {self.largest:.3g}, at {', '.join(self.kinds)}\n"
            f"    for example {self.written:.6g} where {self.derived:.6g} is derived (score {self.score:.4g}, dp {self.dp:.4g})"
        )


@dataclass(frozen=True)
class Comparison:
    """What `compare_backward` found."""

    name: str
    points: int
    differences: tuple[WeightDifference, ...]
    detached: tuple[str, ...] = ()
    """Row outputs of which it is enough to take one as a constant for the two to agree."""

    @property
    def agrees(self) -> bool:
        return all(difference.agrees for difference in self.differences)

    def __str__(self) -> str:
        verdict = "is the derived one" if self.agrees else "is not the derived one"
        lines = [f"{self.name}.backward {verdict}: float64, {self.points} pairs of a query and a key"]
        lines += [f"  {difference}" for difference in self.differences]
        lines += [f"  the two agree when `{name}` is detached, that is, taken as a constant" for name in self.detached]
        return "\n".join(lines)


def compare_backward(online_func: OnlineFunc, custom_fwd_inputs: CustomIO | None = None, seed: int = 0) -> Comparison:
    """Compares `forward` and `backward` of an OnlineFunc with what is derived from its `online_fwd` and epilogue.

    Both run in float64 on random scores of several kinds, with random gradients. `dscores` is what `backward` returns, `p`
    what `forward` does. Custom inputs that the functions read are random as well.
    """
    online_func = check_online_func(online_func)
    name = type(online_func).__name__
    if not writes_backward(online_func):
        raise ArgumentError(f"{name} defines no backward: there is nothing to compare, its backward pass is derived")
    traced, captured = trace_functions(online_func, custom_fwd_inputs, Inputs("f64", _KEYS, _ROWS), backward=True)
    with LOCK, loaded():
        return _Points(traced, captured, seed).compare(name)


def trace_functions(online_func: OnlineFunc, custom: CustomIO | None, inputs: Inputs, backward: bool = False) -> tuple[Traced, list[Any]]:
    """An attention of nothing but the online function, and the values that it captures."""
    custom = online_func.external_fwd_tensors if custom is None else custom
    program = OnlineDefinition(
        online_func.online_fwd, online_func.online_fwd_epilogue,
        {key: scalar.initial for key, scalar in online_func.online_rowscales.items()}, tuple(online_func.final_rowscales),
        type(online_func).__name__, custom=custom, dtypes=_dtypes(custom),
        forward=online_func.forward if backward else None, backward=online_func.backward if backward else None,
    )  # fmt: skip
    traced = trace_online(program, inputs)
    return traced, Entry(traced).captures(Scan(program.functions), 0.0)


def random_captures(traced: Traced, captured: Sequence[Any], sizes: Sizes, seed: int) -> list[Any]:
    """The captured values, with random ones for custom inputs. Needs an active context."""
    drawn = InputMaker(sizes, seed).make(ir.Module.parse(traced.text))[3:]
    return [
        random if capture.source[0] == "custom" else value for capture, random, value in zip(traced.captures, drawn, captured, strict=True)
    ]


def _dtypes(custom: CustomIO) -> dict[str, Any]:
    """Custom inputs are float64 here."""
    double = next(dtype for dtype, (element, _) in ELEMENTS.items() if element == "f64")
    return {name: double for name in custom.input_tensors}


class _Points:
    """Inputs that make a backward pass return what is compared; needs an active context.

    Keys are the unit vectors, so a row of q is a row of scores and dq is dscores. do is the unit matrix, so dp is v
    transposed, and dv is p transposed.
    """

    def __init__(self, traced: Traced, captured: Sequence[Any], seed: int) -> None:
        self._traced = traced
        rng = np.random.default_rng(seed)
        shape = (len(_KINDS), _HEADS, _ROWS, _KEYS)
        self.q = self._scores(rng.normal(size=shape))
        self.v = rng.normal(size=(*shape[:2], _KEYS, _ROWS))
        self.k = np.broadcast_to(np.eye(_KEYS), (*shape[:2], _KEYS, _KEYS))
        self.do = np.broadcast_to(np.eye(_ROWS), (*shape[:2], _ROWS, _ROWS))
        known = random_captures(traced, captured, Sizes(shape[0], _HEADS, _HEADS, _ROWS, _KEYS), seed)
        self._inputs = [self.q, self.k, self.v, *known]

    def _scores(self, normal: np.ndarray) -> np.ndarray:
        ordinary, positive, negative, large, small, equal = normal
        return np.stack(
            [ordinary, abs(positive) + 0.1, -abs(negative) - 0.1, large * 30, small * 0.01, np.broadcast_to(equal[..., :1], equal.shape)]
        )

    def compare(self, name: str) -> Comparison:
        written, derived = self._written(), self._derived(())
        dp = np.swapaxes(self.v, 2, 3)
        differences = tuple(self._difference(o, w, d, dp) for o, w, d in zip(("p", "dscores"), written, derived, strict=True))
        detached: list[str] = []
        if not all(difference.agrees for difference in differences):
            for output in self._traced.outputs:
                other = self._derived((output,))
                if all(self._difference("", w, d, dp).agrees for w, d in zip(written, other, strict=True)):
                    detached.append(output)
        return Comparison(name, int(np.isfinite(derived[1]).sum()), differences, tuple(detached))

    def _difference(self, output: str, written: np.ndarray, derived: np.ndarray, dp: np.ndarray) -> WeightDifference:
        finite = np.isfinite(derived)
        size = np.maximum(1.0, np.abs(np.where(finite, derived, 0)).max(axis=3, keepdims=True))
        with np.errstate(invalid="ignore"):
            error = np.abs(written - derived)
        error = np.where(finite, np.where(np.isnan(error), np.inf, error), 0.0)
        # The first of those that are equal up to rounding.
        worst = np.unravel_index(int((error >= error.max() * (1 - 1e-9)).argmax()), error.shape)
        differs = (error > _TOLERANCE * size).any(axis=(1, 2, 3))
        kinds = tuple(kind for kind, here in zip(_KINDS, differs, strict=True) if here)
        return WeightDifference(output, error[worst], kinds, written[worst], derived[worst], self.q[worst], dp[worst])

    def _written(self) -> tuple[np.ndarray, np.ndarray]:
        o, *rows = evaluate(ir.Module.parse(self._traced.text), self._inputs)
        module = _run(ir.Module.parse(self._traced.written[0]), "attn-custom-vjp{wrt=q+v}")
        return self._gradients(module, [o, *rows], rows)

    def _derived(self, detached: Sequence[str]) -> tuple[np.ndarray, np.ndarray]:
        module = _run(ir.Module.parse(self._traced.text), _DERIVED)
        _detach(module, detached)
        module = _run(module, _BACKWARD)
        results = evaluate(module, self._inputs, "attention_fwd")
        return self._gradients(module, results, results[1 : 1 + len(self._traced.outputs)])

    def _gradients(self, module: ir.Module, saved: Sequence[Any], rows: Sequence[Any]) -> tuple[np.ndarray, np.ndarray]:
        """p and dscores, [kind, head, row, key]."""
        dq, dv = evaluate(module, [*self._inputs, *saved, self.do, *(np.zeros_like(row) for row in rows)], "attention_bwd")
        return np.swapaxes(dv, 2, 3), np.asarray(dq)


def _run(module: ir.Module, pipeline: str) -> ir.Module:
    try:
        Pipeline.parse(pipeline, registry()).run(module)
    except Exception as error:
        raise CompileError(str(error)) from error
    return module


def _detach(module: ir.Module, outputs: Sequence[str]) -> None:
    """Makes row outputs constants for derivatives, wherever else the row uses their values."""
    for attention in find_all(module.operation, "attn.attention"):
        names = [ir.StringAttr(name).value for name in attention.attributes["outputs"]]
        for row in find_all(attention, "attn.row"):
            *_, last = block_of(row).operations
            values = list(last.operation.operands)[1:]
            for value in [value for name, value in zip(names, values, strict=True) if name in outputs]:
                if isinstance(value.owner, ir.Block):
                    continue
                with value.owner.operation.location, ir.InsertionPoint.after(value.owner):
                    constant = build.detach(value)
                value.replace_all_uses_with(constant)
                constant.owner.operation.operands[0] = value
