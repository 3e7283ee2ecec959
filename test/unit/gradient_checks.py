"""Compares what `attn-differentiate` derives, evaluated in float64, with autograd of the dense formula."""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor

from attn_mlir import attention
from attn_mlir.frontend.cache import Entry
from attn_mlir.frontend.captures import Scan
from attn_mlir.frontend.emit import Inputs
from attn_mlir.frontend.program import Definition, trace
from attn_mlir.mlir import ir
from attn_mlir.passes.pipeline import Pipeline
from attn_mlir.reference import evaluate
from attn_mlir.registry import registry
from contexts import loaded_context
from dense_rows import dense
from trace_helpers import as_array

B, HQ, HKV, SQ, SKV, DIM, VALUE_DIM = 2, 4, 2, 6, 7, 4, 3
TOLERANCE = 1e-12


@dataclasses.dataclass(frozen=True)
class Case:
    """An attention: its captured tensors that need gradients, and its functions made of them.

    `make` gives "row", "score_mod", ...; "dense_row" where the row that the dense formula runs is another function.
    """

    make: Callable[[Any], Mapping[str, Any]]
    tensors: Mapping[str, Tensor] = dataclasses.field(default_factory=dict)
    inputs: Mapping[str, Tensor] = dataclasses.field(default_factory=dict)
    """q, k, v where they are not random."""
    lse: bool = False
    states: bool = True
    scale: float | None = None
    smooth: bool = True
    """Whether second derivatives are known: false at kinks and ties."""


def random(*shape: int, seed: int = 0) -> Tensor:
    """Normal numbers."""
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


@dataclasses.dataclass(eq=False)
class Point:
    """A case with numbers."""

    case: Case

    def __post_init__(self) -> None:
        shapes = {"q": (B, HQ, SQ, DIM), "k": (B, HKV, SKV, DIM), "v": (B, HKV, SKV, VALUE_DIM)}
        given = {name: self.case.inputs.get(name, random(*shape, seed=seed)) for seed, (name, shape) in enumerate(shapes.items(), 1)}
        self.leaves = [x.double().detach().clone().requires_grad_() for x in (*given.values(), *self.case.tensors.values())]

    def functions(self, leaves: Sequence[Tensor]) -> dict[str, Any]:
        return dict(self.case.make(SimpleNamespace(**dict(zip(self.case.tensors, leaves[3:], strict=True)))))

    def dense(self, *leaves: Tensor) -> tuple[Tensor, ...]:
        """o and the row outputs, by the formula."""
        made = self.functions(leaves)
        made["row"] = made.pop("dense_row", made["row"])
        with torch.overrides.BaseTorchFunctionMode():
            o, rows = dense(made, leaves[0], leaves[1], leaves[2], self.case.scale, self.case.lse)
        return (o, *(rows[name] for name in self.outputs))

    def derive(self, functions: str) -> None:
        """Traces the case, and differentiates it."""
        made = self.functions(self.leaves)
        made.pop("dense_row", None)
        case = self.case
        program = Definition(
            **made, scale=self.leaves[0].shape[-1] ** -0.5 if case.scale is None else case.scale, lse=case.lse, states=case.states
        )
        traced = trace(program, Inputs("f64", self.leaves[0].shape[-1], self.leaves[2].shape[-1]))
        self.outputs = traced.outputs
        captures = Entry(traced).captures(Scan(program.functions), 1.0)
        self.arguments = [*self.leaves[:3], *captures]
        context = loaded_context()
        with context:
            self.module = ir.Module.parse(traced.text)
            Pipeline.parse(f"attn-simplify,attn-differentiate{{functions={functions}}}", registry()).run(self.module)
        floating = [x for x in self.arguments if isinstance(x, Tensor) and x.is_floating_point()]
        self.order = [next((i for i, leaf in enumerate(self.leaves) if leaf is x), -1) for x in floating]
        """The leaf of each gradient; -1 where the functions capture what they made of one."""
        self.floating = floating

    def run(self, function: str, *more: Any) -> list[Tensor]:
        given = [as_array(x) for x in (*self.arguments, *more)]
        return [torch.as_tensor(r) for r in evaluate(self.module, given, function)]


def normal_like(values: Sequence[Tensor], seed: int) -> list[Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return [torch.randn(x.shape, generator=generator, dtype=torch.float64) for x in values]


def relative_error(got: Tensor, want: Tensor, least: float = 1e-3) -> float:
    """The largest difference in units of the largest wanted number, or of `least` where all are smaller; NaN counts as inf."""
    if got.shape != want.shape:
        return float("inf")
    if want.numel() == 0:
        return 0.0
    largest = float((got.detach().double() - want.detach().double()).abs().max())
    return float("inf") if largest != largest else largest / max(least, float(want.detach().abs().max()))


def _where_finite(got: Tensor, want: Tensor) -> Tensor:
    """Row outputs of fully masked rows are not specified; the formula gives 0."""
    return torch.where((want == 0) & (got != 0), want, got)


def gradients_of(results: Sequence[Tensor], leaves: Sequence[Tensor], seeds: Sequence[Tensor], graph: bool = False) -> list[Tensor]:
    """The gradients of <results, seeds>; 0 where nothing depends on a leaf."""
    kept = [(r, s) for r, s in zip(results, seeds, strict=True) if r.requires_grad]
    if not kept:
        return [torch.zeros_like(x) for x in leaves]
    outputs, weights = zip(*kept, strict=True)
    return list(torch.autograd.grad(outputs, leaves, weights, create_graph=graph, allow_unused=True, materialize_grads=True))


def errors(case: Case, second: bool = False, tangents: bool = True) -> dict[str, float]:
    """The relative error of everything that the case derives."""
    point = Point(case)
    names = ["q", "k", "v", *case.tensors]
    point.derive("+".join(["fwd", "bwd", *(["jvp"] if tangents else []), *(["bwd2"] if second else [])]))
    leaves = point.leaves
    want = point.dense(*leaves)
    got = point.run("attention_fwd")
    found = {name: relative_error(_where_finite(g, w), w) for name, g, w in zip(("o", *point.outputs), got, want, strict=False)}
    seeds = normal_like(want, 17)
    gradients = gradients_of(want, leaves, seeds, second)
    derived = point.run("attention_bwd", *got, *seeds)
    if -1 in point.order:
        derived = torch.autograd.grad(point.floating, leaves, derived, materialize_grads=True)
        point.order, tangents, second = list(range(len(leaves))), False, False
    for place, g in zip(point.order, derived, strict=True):
        found[f"d{names[place]}"] = relative_error(g, gradients[place].detach())
    used = [leaves[i] for i in point.order]
    directions = normal_like(used, 18)
    if tangents:
        found |= _tangent_errors(point, used, directions, want)
    if second:
        found |= _second_errors(point, got, want, seeds, directions, names)
    return found


def _tangent_errors(point: Point, used: Sequence[Tensor], directions: Sequence[Tensor], want: Sequence[Tensor]) -> dict[str, float]:
    change = dict(zip(point.order, directions, strict=True))
    every = tuple(change.get(i, torch.zeros_like(x)) for i, x in enumerate(point.leaves))
    primals = tuple(x.detach() for x in point.leaves)
    slopes = torch.func.jvp(point.dense, primals, every)[1]
    made = point.run("attention_jvp", *directions)
    rows = len(want) - 1
    tangents = [made[1], *made[2 + rows :]]
    names = [f"{name}_dot" for name in ("o", *point.outputs)]
    return {n: relative_error(_where_finite(g, w), w) for n, g, w in zip(names, tangents, slopes, strict=True)}


def _second_errors(
    point: Point, got: list[Tensor], want: tuple[Tensor, ...], seeds: list[Tensor], directions: list[Tensor], names: list[str],
) -> dict[str, float]:  # fmt: skip
    seeds = [s.requires_grad_() for s in seeds]
    gradients = gradients_of(want, [point.leaves[i] for i in point.order], seeds, True)
    inputs = [*[point.leaves[i] for i in point.order], *seeds]
    wanted = gradients_of(gradients, inputs, directions)
    made = point.run("attention_bwd2", *got, *seeds, *directions)
    told = [*[f"d2{names[i]}" for i in point.order], *[f"d2d{name}" for name in ("o", *point.outputs)]]
    return {name: relative_error(g, w) for name, g, w in zip(told, made, wanted, strict=True)}


def check(case: Case, second: bool = False, tolerance: float = TOLERANCE, tangents: bool = True) -> None:
    """Fails where something that is derived differs from autograd."""
    found = errors(case, second, tangents)
    wrong = {name: error for name, error in found.items() if not error <= tolerance}
    assert not wrong, f"relative errors above {tolerance}: {wrong}"


def compiled_errors(case: Case, dtype: torch.dtype = torch.float64) -> dict[str, float]:
    """The relative error of results and gradients of the compiled attention of a case, against autograd in float64."""
    point = Point(case)
    leaves = [x.detach().to(dtype).requires_grad_() for x in point.leaves]
    made = point.functions(leaves)
    made.pop("dense_row", None)
    options: dict[str, Any] = {"scale": case.scale, "return_lse": case.lse, "return_states": case.states}
    results = attention(leaves[0], leaves[1], leaves[2], **made, **options)
    o, states = (results[0], results[-1]) if case.states else (results[0], {"lse": results[1]} if case.lse else {})
    point.outputs = tuple(states)
    want = point.dense(*point.leaves)
    got = [o, *states.values()]
    found = {name: relative_error(_where_finite(g.double(), w), w) for name, g, w in zip(("o", *states), got, want, strict=True)}
    seeds = normal_like(want, 17)
    wanted = gradients_of(want, point.leaves, seeds)
    given = gradients_of(got, leaves, [s.to(g.dtype) for s, g in zip(seeds, got, strict=True)])
    return found | {f"d{n}": relative_error(g, w) for n, g, w in zip(["q", "k", "v", *case.tensors], given, wanted, strict=True)}


def eager_errors(case: Case, dtype: torch.dtype) -> dict[str, float]:
    """The relative errors of the gradients that the dense formula has in this precision."""
    point = Point(case)
    point.outputs = tuple(states_of(case, point))
    leaves = [x.detach().to(dtype).requires_grad_() for x in point.leaves]
    want, got = point.dense(*point.leaves), point.dense(*leaves)
    seeds = normal_like(want, 17)
    wanted, given = gradients_of(want, point.leaves, seeds), gradients_of(got, leaves, [s.to(dtype) for s in seeds])
    return {f"d{n}": relative_error(g, w) for n, g, w in zip(["q", "k", "v", *case.tensors], given, wanted, strict=True)}


def states_of(case: Case, point: Point) -> list[str]:
    """The names of the row outputs, as the formula finds them."""
    made = point.functions(point.leaves)
    made["row"] = made.pop("dense_row", made["row"])
    states = dense(made, point.leaves[0], point.leaves[1], point.leaves[2], case.scale, case.lse)[1]
    return [name for name in states if case.states or (case.lse and name == "lse")]
