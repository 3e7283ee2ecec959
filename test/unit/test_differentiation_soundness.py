"""No derivative is trusted: what differences of the row do not confirm is refused, whichever rule was wrong."""

from collections.abc import Callable
from typing import Any

import pytest

from attn_mlir.mlir import ir
from attn_mlir.passes.derivation.expr import Expr, Graph
from attn_mlir.passes.differentiation import Derivatives, DifferentiationError, Primal, extrema, partials
from attn_mlir.passes.differentiation.algebra import Algebra
from attn_mlir.passes.differentiation.forward import TangentBuilder
from attn_mlir.passes.differentiation.partials import PartialDerivative
from attn_mlir.passes.differentiation.reverse import Reverse
from attn_mlir.passes.regions import find_all
from programs import parsed, text_of

Patch = Callable[[pytest.MonkeyPatch], None]


def derivatives(module: ir.Module) -> Derivatives:
    attention = find_all(module.operation, "attn.attention")[0]
    function = attention.parent
    assert function is not None
    floating = [
        i
        for i, a in enumerate(function.regions[0].blocks[0].arguments)
        if isinstance(a.type, ir.RankedTensorType) and isinstance(a.type.element_type, ir.FloatType)
    ]
    return Derivatives(Primal(function, attention), floating)


def derive(name: str) -> Derivatives:
    """All derivatives of a program of test/Inputs."""
    with parsed(text_of(name)) as module:
        found = derivatives(module)
        with found.primal.attention.location:
            _ = found.reverse, found.tangent
            found.second()
        return found


def unary(op: str, rule: Callable[[Graph, Expr], Expr]) -> Patch:
    return lambda patch: patch.setitem(partials._UNARY, op, rule)


def binary(op: str, rule: Callable[[Graph, Expr], list[PartialDerivative | None]]) -> Patch:
    return lambda patch: patch.setitem(partials._RULES, op, rule)


def replaced(owner: type, name: str, change: Callable[..., Any]) -> Patch:
    """`change(original result, graph)` instead of what a method returns."""

    def apply(patch: pytest.MonkeyPatch) -> None:
        original = getattr(owner, name)
        patch.setattr(owner, name, lambda self, *args: change(self, original(self, *args)))

    return apply


def scaled(self: Algebra, found: Expr | None) -> Expr | None:
    return None if found is None else self.graph.mul(found, self.graph.const(1.01))


def doubled(self: Reverse, found: Expr) -> Expr:
    return self.primal.graph.add(found, found)


WRONG: dict[str, tuple[str, Patch]] = {
    "tanh": ("softcap", unary("math.tanh", lambda g, n: g.sub(g.const(1.0), n))),
    "exp": ("plain-softmax", unary("math.exp", lambda g, n: g.mul(n, g.const(1.001)))),
    "rsqrt": ("l2-normalised", unary("math.sqrt", lambda g, n: g.div(g.const(-0.5), n))),
    "product": ("alibi-signed", binary("arith.mulf", lambda g, n: [PartialDerivative(n.args[0]), PartialDerivative(n.args[1])])),
    "quotient": ("relu-normalised", binary("arith.divf", lambda g, n: [PartialDerivative(g.div(g.const(1.0), n.args[1])), None])),
    "detach": ("retention", binary("attn.detach", lambda g, n: [PartialDerivative()])),
    "everything is dropped": ("plain-softmax", replaced(Algebra, "is_zero", lambda self, found: True)),
    "a wrong multiple": ("entropy", replaced(Algebra, "ratio", scaled)),
    "delta twice": ("causal-softmax", replaced(Reverse, "_delta", doubled)),
    "keys that attain": ("softmax-minus-max", lambda patch: patch.setattr(extrema, "_EQUAL", 4)),
    "tangent of a maximum": ("softmax-minus-max", lambda patch: patch.setattr(TangentBuilder, "_extremum", lambda self, i, now: None)),
}


@pytest.mark.parametrize("what", WRONG)
def test_a_wrong_rule_is_refused(what: str, monkeypatch: pytest.MonkeyPatch) -> None:
    name, patch = WRONG[what]
    assert len(derive(name).certificates) == 3
    patch(monkeypatch)
    with pytest.raises(DifferentiationError, match="disagrees with differences of the row on"):
        derive(name)


def test_a_row_without_a_derivative_to_compare_with_is_refused() -> None:
    text = text_of("plain-softmax").replace('"attn.yield"(%p', '%r = math.sqrt %never : f32\n      "attn.yield"(%r')
    text = text.replace("%r = math.sqrt", "%c = arith.constant -1.0 : f32\n      %e2 = math.exp %p : f32\n      "
                        "%never = arith.mulf %c, %e2 : f32\n      %r = math.sqrt")  # fmt: skip
    with parsed(text) as module:
        found = derivatives(module)
        with found.primal.attention.location, pytest.raises(DifferentiationError, match="NaN or infinite at nearly all random samples"):
            _ = found.reverse


@pytest.mark.parametrize("name", ["plain-softmax", "layer-norm", "sink", "std-temperature"])
def test_certificates_compare_most_rows(name: str) -> None:
    for certificate in derive(name).certificates.values():
        assert certificate.rows >= 15
        assert certificate.error < 1e-7
