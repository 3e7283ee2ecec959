"""Says how the derivatives of an attention are computed: which rules were used and why, in formulas; what they cost."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from attn_mlir.mlir import ir
from attn_mlir.passes.cost import bytes_of, traffic, work
from attn_mlir.passes.derivation.expr import Expr, leaves, text
from attn_mlir.passes.differentiation.algebra import Algebra
from attn_mlir.passes.differentiation.arguments import floating_arguments, is_plain
from attn_mlir.passes.differentiation.check import Certificate
from attn_mlir.passes.differentiation.errors import DifferentiationError
from attn_mlir.passes.differentiation.forward import DOT
from attn_mlir.passes.differentiation.functions import Derivatives
from attn_mlir.passes.differentiation.host import Primal
from attn_mlir.passes.differentiation.model import RowModel, largest
from attn_mlir.passes.differentiation.reverse import Ruling
from attn_mlir.passes.regions import pieces

_WHY = {
    "closed": "needs no pass over keys: {detail}",
    "follows": "needs no additional pass over keys: {detail}",
    "rounded": "summed in a pass before the gradients: <do, o> would carry what rounding the weights of o to 16 bits loses, {detail}",
    "known": "needs no pass over keys: follows from {detail}",
    "second pass": "summed in a pass before the gradients, as {detail}",
    "whole": "not multiplied out: {detail}",
    "dropped": "dropped: {detail}",
    "shared": "shared {detail}",
}


def describe(attention: ir.Operation) -> Iterator[str]:
    """The lines about backward, tangent and second backward of an `attn.attention` by all its floating tensors."""
    function = attention.parent
    if function is None or function.name != "func.func":
        return
    primal = Primal(function, attention)
    if (pieces(attention, "attn.product") or pieces(attention, "attn.term")) and not is_plain(primal):
        return
    with attention.location:
        derivatives = Derivatives(primal, floating_arguments(primal))
        try:
            yield from _backward(derivatives)
            yield ""
            yield from _tangent(derivatives)
        except DifferentiationError as error:
            yield f"no derivative: {error}"


@dataclass(eq=False)
class _Formulas:
    """Writes expressions of one program; what is the same for a whole row gets a letter."""

    program: RowModel
    rows: dict[Expr, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        p, g = self.program, self.program.graph
        self._algebra = Algebra(g, p.is_pair)
        self._names = {p.red(i): r.name for i, r in enumerate(p.reductions)}
        second = "s_dot" if p.given == 1 else "s2"
        self._names |= {g.leaf("s", k): "s" if k == 0 else second if k == 1 else f"s{k + (p.given > 1)}" for k in range(len(p.scores))}
        self._names |= {g.leaf("x", k): f"<{query}, {key}>" for k, (query, key) in enumerate(p.products)}
        self._names |= {g.leaf("param", i, t): param.name for i, param in enumerate(p.params) for t in ("f", "i1")}

    def of(self, node: Expr) -> str:
        """The formula, with letters for values of the row."""
        node = self._algebra.gathered(node)
        for n in largest([node], lambda n: n.is_leaf or n in self.rows, lambda n: n.type == "f" and not self.program.is_pair(n)):
            self.rows[n] = _letter(len(self.rows))
        return text(node, self._named(node) | self.rows)

    def plain(self, node: Expr) -> str:
        """The formula without letters."""
        return text(node, self._named(node))

    def letters(self) -> list[str]:
        """What the letters stand for."""
        lines = []
        for node, letter in self.rows.items():
            others = {n: name for n, name in self.rows.items() if n is not node}
            lines.append(f"{letter} = {text(node, self._named(node) | others)}")
        return lines

    def _named(self, node: Expr) -> dict[Expr, str]:
        named = dict(self._names)
        for leaf in leaves(node):
            if leaf.op == "row":
                named[leaf] = str(leaf.attr)
            elif leaf.op == "dparam":
                number, prefix = leaf.attr  # type: ignore[misc]
                named[leaf] = f"{prefix}{self.program.params[number].name}"
            elif leaf.op == "one":
                named[leaf] = "1"
        return named


def _letter(number: int) -> str:
    return "abcdefghijklmnoprtuwyz"[number] if number < 22 else f"a{number}"


def _rules(steps: Sequence[Ruling]) -> Iterator[str]:
    for step in dict.fromkeys(steps):
        yield f"  {step.subject}: {_WHY[step.rule].format(detail=step.detail)}"


def _confirmed(certificate: Certificate) -> str:
    return f"confirmed in float64 by differences of the row: {certificate.rows} random rows, largest relative error {certificate.error:.1e}"


def _backward(derivatives: Derivatives) -> Iterator[str]:
    reverse = derivatives.reverse
    program = reverse.result
    formulas = _Formulas(program)
    yield "backward"
    yield from _rules(reverse.steps)
    saved = [program.reductions[i].name for i in derivatives.saved]
    apart = [r for r in program.reductions if r.given is None]
    yield f"  saved by the forward pass for each row: {', '.join(saved) or 'nothing'}; passes over pairs: {2 if apart else 1}"
    for r in program.reductions:
        if isinstance(r.given, tuple):
            yield f"  {r.name} = <{r.given[1]}, {r.given[2]}>"
    for r in apart:
        yield f"  {r.name} = {r.kind} over keys of {formulas.plain(r.value)}"
    sums = []
    for s in program.sums:
        terms = " + ".join(f"({formulas.of(w)}) {source}" for w, source in s.terms)
        sums.append(f"  d{s.name} = sum over {'keys' if s.side == 'query' else 'queries'} of {terms}")
    for s in program.scatters:
        where = "pairs" if program.is_pair(s.weight) else "rows"
        sums.append(f"  d{program.param(s.param).name} = sum over {where} of {formulas.of(s.weight)}, where it was read")
    yield from (f"  {line}" for line in formulas.letters())
    yield from sums
    yield f"  {_cost(derivatives, program, bool(apart))}"
    yield f"  {_confirmed(derivatives.certificates['backward'])}"


def _dims(derivatives: Derivatives) -> dict[str, int]:
    primal = derivatives.primal
    dims = {role: ir.RankedTensorType(primal.entry.arguments[i].type).shape[3] for i, role in primal.roles.items()}
    return dims | {DOT + role: dim for role, dim in dims.items()} | {name: dims["v"] for o in primal.sums for name in (o, f"d{o}")}


def _cost(derivatives: Derivatives, program: RowModel, apart: bool) -> str:
    dims = _dims(derivatives)
    sums = [dims[source] for s in program.sums for _, source in s.terms]
    primal = derivatives.primal
    types = {role: bytes_of(primal.entry.arguments[i].type) for i, role in primal.roles.items()}
    # q, o, do and dq; k, v, dk and dv.
    queries, keys = (sum(size for role, size in types.items() if role[0] == side) for side in "qk")
    outputs = 2 * len(primal.sums) * types["v"]
    moved = traffic(2 * queries + outputs, 2 * keys + 2 * types["v"], len(derivatives.saved) + len(program.rows))
    return f"cost: {work([dims[name] for name, _ in program.products], sums, 2 if apart else 1)}; {moved}; no S x S tensor"


def _tangent(derivatives: Derivatives) -> Iterator[str]:
    forward = derivatives.tangent
    program, dims = forward.result, _dims(derivatives)
    formulas = _Formulas(program)
    yield "tangent"
    yield from _rules(forward.steps)
    sums = [f"  {s.name} = sum over keys of {' + '.join(f'({formulas.of(w)}) {source}' for w, source in s.terms)}" for s in program.sums]
    rows = [f"  {row.name} = {formulas.of(row.value)}" for row in program.rows]
    for i in program.computed():
        r = program.reductions[i]
        yield f"  {r.name} = {r.kind} over keys of {formulas.plain(r.value)}"
    yield from (f"  {line}" for line in formulas.letters())
    yield from sums
    yield from rows
    sums_of = [dims[source] for s in program.sums for _, source in s.terms]
    yield f"  cost, with the attention itself: {work([dims[name] for name, _ in program.products], sums_of)} at most"
    yield f"  {_confirmed(derivatives.certificates['tangent'])}"
