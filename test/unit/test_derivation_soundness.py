"""The derivation trusts no rule: what the numbers do not confirm is computed in one more pass, or refused."""

import numpy as np
import pytest

from attn_mlir.mlir import ir, passmanager
from attn_mlir.passes.base import add_to
from attn_mlir.passes.derivation import DerivationError, derive, program, read_row, rules
from attn_mlir.passes.derivation.check import Checker
from attn_mlir.passes.derivation.derive import Derivation
from attn_mlir.passes.derivation.expr import Expr
from attn_mlir.passes.derivation.normal import Normal
from attn_mlir.passes.derivation.plan import RowPlan
from attn_mlir.passes.derivation.row import Row
from attn_mlir.passes.derivation.sums import Mono, Sum, plus
from attn_mlir.passes.online_rewrite import OnlineRewrite
from attn_mlir.passes.regions import find_all
from row_cases import softmax
from rows import Rule, V, module_text, parse

KEEP: list[ir.Module] = []


def row_of(rule: Rule) -> Row:
    module = parse(module_text(rule))
    KEEP.append(module)
    return read_row(find_all(module.operation, "attn.row")[0])


def derived(rule: Rule) -> Derivation:
    return derive(row_of(rule))


def distance(s: V) -> V:
    return (s - s.mean()).abs()


def only_weight(s: V) -> V:
    return softmax(s)[0]


def wrong_abs(nf: Normal, n: Expr) -> Sum:
    """|x| = x, as if everything were positive."""
    return nf.of(n.args[0])


def wrong_extremum(nf: Normal, n: Expr) -> Sum:
    """max(x - y, 0) = max(x, 0) - max(y, 0)."""
    zero = nf.graph.const(0.0)
    out: Sum = {}
    for mono, c in nf.of(n.args[0]).items():
        out = plus(out, {Mono(((nf.graph.maximum(nf.node_of_mono(mono), zero), 1.0),)): c})
    return out


@pytest.mark.parametrize(
    ("op", "rule", "row"),
    [
        ("math.absf", wrong_abs, distance),
        ("arith.maximumf", wrong_extremum, lambda s: (s - s.max() + 1.0).most(0.0)),
        ("arith.maximumf", wrong_extremum, lambda s: (s - s.mean()).most(0.0) / (s - s.mean()).most(0.0).sum("l")),
    ],
)
def test_wrong_rule_is_caught(monkeypatch: pytest.MonkeyPatch, op: str, rule: object, row: Rule) -> None:
    monkeypatch.setitem(rules.RULES, op, rule)
    planted = program.OnlineRow(RowPlan(row_of(row)))
    assert planted.plan.kv_passes == 1
    assert Checker(planted.plan.row).check(planted).failed
    found = derived(row)
    assert found.program.plan.kv_passes == 2
    assert not found.report.failed
    assert any("numeric check" in d.detail for d in found.program.plan.decisions.values())


def test_wrong_rescale_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(program.OnlineRow, "_scale", lambda self, *_: self.graph.const(1.0))
    assert derived(only_weight).program.plan.kv_passes == 2


def test_missing_guard_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    def mean_centred(s: V) -> V:
        e = (s - s.mean()).exp()
        return e / e.sum("l")

    assert derived(mean_centred).program.plan.kv_passes == 1
    monkeypatch.setattr(program, "breaks_identity", lambda *_: False)
    assert derived(mean_centred).program.plan.kv_passes == 2


def test_wrong_merge_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    right = program.OnlineRow._merge

    def swapped(self: program.OnlineRow) -> program.Merge:
        merge = right(self)
        return program.Merge(merge.states, merge.scales_b, merge.scales_a)

    monkeypatch.setattr(program.OnlineRow, "_merge", swapped)
    assert derived(only_weight).program.plan.kv_passes == 2


def test_nothing_right_is_refused_with_a_location(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(program.OnlineRow, "_combined", lambda self, kind, x, y: self.graph.minimum(x, y))
    with pytest.raises(DerivationError, match=r"no online form|cannot be accumulated"):
        derived(only_weight)
    module = parse(module_text(only_weight), fails=True)
    with pytest.raises(ir.MLIRError, match="the row has no online form"), module.context, ir.Location.unknown():
        run_pass(module)


def run_pass(module: ir.Module) -> None:
    manager = passmanager.PassManager("builtin.module", module.context)
    add_to(manager, OnlineRewrite(), "attn-online-rewrite")
    manager.run(module.operation)


def test_a_prefix_sum_of_zero_needs_one_more_kv_pass() -> None:
    """exp(s + 1 / sum s) separates, but a partial sum may vanish although the whole one does not."""
    found = derived(lambda s: (s * 0.1 + 1.0 / s.sum("a")).exp())
    assert found.program.plan.kv_passes == 2


def test_positive_divisor_needs_proof() -> None:
    """relu(s / l) = relu(s) / l holds for l = 1 + sum exp s, not for l = sum s; where l may be 0 it holds, but 0 / 0 is no number."""
    assert derived(lambda s: (s / (s.exp().sum("l") + 1.0)).most(0.0)).program.plan.kv_passes == 1
    assert derived(lambda s: (s / s.exp().sum("l")).most(0.0)).program.plan.kv_passes == 2
    assert derived(lambda s: (s / (s.sum("l") + 0.1)).most(0.0)).program.plan.kv_passes == 2


def test_square_root_of_a_square_is_an_absolute_value() -> None:
    found = derived(lambda s: (s * s / (s.sum("a") * s.sum("a"))).sqrt())
    assert not found.report.failed


def test_unusable_row_is_refused() -> None:
    with pytest.raises(DerivationError, match="nearly all random rows give no usable number"):
        derived(lambda s: (-(s * s) - 1.0).sqrt())


def test_varying_output_is_refused() -> None:
    module = parse(module_text(lambda s: (s, s + 1.0), ("bad",)), fails=True)
    row = find_all(module.operation, "attn.row")[0]
    with pytest.raises(DerivationError, match="a row output varies along the row"):
        read_row(row)


def test_derivation_is_deterministic() -> None:
    first, second = (parse(module_text(only_weight), fails=True) for _ in range(2))
    for module in (first, second):
        assert OnlineRewrite().run(module.operation)
    assert str(first) == str(second)
    assert derived(only_weight).report == derived(only_weight).report


def test_more_accumulators_instead_of_a_kv_pass() -> None:
    def cubic(s: V) -> V:
        d = s - s.mean()
        return d * d * d

    assert derived(cubic).program.plan.kv_passes == 2
    four = derive(row_of(cubic), max_accumulators=4).program.plan
    assert (four.kv_passes, len(four.accumulators)) == (1, 4)


def test_checker_sees_a_small_error() -> None:
    """A state that is wrong by a part in 10^8 does not pass."""
    row = row_of(only_weight)
    good = derive(row).program
    good.o = [good.graph.mul(o, good.graph.const(1 + 1e-8)) for o in good.o]
    assert Checker(row).check(good).failed
    assert np.isfinite(Checker(row).check(good).error)
