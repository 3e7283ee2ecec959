"""Programs of a thousand chained ops, of deep nesting and of many captured tensors compile; none meets Python's recursion limit."""

import sys
from collections.abc import Iterator
from dataclasses import dataclass

import pytest
import torch

import attn_mlir
from attn_mlir.backends.cpu import engine
from attn_mlir.backends.cpu.translate import to_llvm
from attn_mlir.backends.gpu.grid import depends_on_block
from attn_mlir.diagnostics import DiagnosticError
from attn_mlir.dialects import load_all
from attn_mlir.errors import ArgumentError
from attn_mlir.mlir import ir
from attn_mlir.passes.base import Pass
from attn_mlir.passes.derivation.expr import Graph, text
from attn_mlir.passes.intervals.expr import Pool
from attn_mlir.passes.intervals.nodes import terms_of
from attn_mlir.passes.order import deepest_first
from attn_mlir.passes.pipeline import Pipeline
from masks import module_text


def dense(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, mod) -> torch.Tensor:
    return torch.softmax(mod(q @ k.transpose(-1, -2) * q.shape[-1] ** -0.5), -1) @ v


def compare(q, k, v, mod, formula=None) -> None:
    found = attn_mlir.attention(q, k, v, score_mod=lambda s, *_: mod(s))
    wanted = dense(q, k, v, formula or mod)
    do = torch.ones_like(wanted)
    torch.testing.assert_close(found, wanted)
    for a, b in zip(torch.autograd.grad(found, (q, k, v), do), torch.autograd.grad(wanted, (q, k, v), do), strict=True):
        torch.testing.assert_close(a, b)


@pytest.fixture
def tensors() -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    return [torch.randn(1, 1, 5, 4, generator=generator, dtype=torch.float64).requires_grad_() for _ in range(3)]


@pytest.fixture
def usual_recursion() -> Iterator[None]:
    """Python's usual limit of recursion, which other packages raise."""
    before = sys.getrecursionlimit()
    sys.setrecursionlimit(1000)
    yield
    sys.setrecursionlimit(before)


def test_a_thousand_chained_ops(tensors: list[torch.Tensor], usual_recursion: None) -> None:
    def chain(s):
        for _ in range(500):
            s = s * 0.999 + 0.01
        return s

    q, k, v = tensors
    compare(q, k, v, chain)


def test_nesting_is_polynomial(tensors: list[torch.Tensor]) -> None:
    """Each level uses the one below three times: written out, the last one has 3^30 terms."""

    def nested(s):
        for _ in range(30):
            s = 0.5 * s + 0.3 * torch.tanh(s) * s
        return s

    q, k, v = tensors
    compare(q, k, v, nested)


def test_reductions_that_build_on_each_other(tensors: list[torch.Tensor]) -> None:
    def row(s):
        for _ in range(12):
            s = s - 0.5 * s.mean()
        return torch.softmax(s, -1)

    q, k, v = tensors
    torch.testing.assert_close(attn_mlir.attention(q, k, v, row=row), dense(q, k, v, lambda s: s))


def test_masks_whose_numbers_outgrow_64_bits(tensors: list[torch.Tensor]) -> None:
    """Bounds of (...((j + i) // 3 + i) // 3 ...) have factors 3^45 where the mask itself stays small."""

    def mask(b, h, i, j):
        for _ in range(45):
            j = (j + i) // 3
        return 3 * j <= i

    q, k, v = tensors
    i = torch.arange(5)
    wanted = torch.softmax((q @ k.mT / 2).masked_fill(~mask(0, 0, i[:, None], i), -torch.inf), -1) @ v
    torch.testing.assert_close(attn_mlir.attention(q, k, v, mask_mod=mask), wanted)


def test_bounds_that_share_values_are_walked_once() -> None:
    """2000 sums, each of the one before and itself: 2^2000 ways to the argument."""
    lines = "\n".join(f"%{n + 1} = arith.addi %{n}, %{n} : index" for n in range(2000))
    with ir.Context() as context, ir.Location.unknown():
        load_all(context)
        module = ir.Module.parse(f"func.func @f(%a: index) {{ %0 = arith.addi %a, %a : index\n{lines}\nreturn }}")
        *body, _ = next(iter(module.body.operations)).regions[0].blocks[0].operations
        last = list(body)[-1].operation.results[0]
        assert not depends_on_block(last)


def test_text_of_a_nested_expression_is_short() -> None:
    g = Graph()
    x = g.score
    for _ in range(5000):
        x = g.add(g.mul(x, x), g.leaf("param", 0))
    assert len(text(x, {})) < 2000
    assert "..." in text(x, {})
    assert text(g.add(g.mul(g.score, g.score), g.const(1.0)), {}) == "s * s + 1"


def test_order_is_that_of_recursion() -> None:
    graph = {"a": "bc", "b": "dc", "c": "e", "d": "", "e": ""}

    def arguments(n: str) -> list[str]:
        return list(graph[n])

    done: dict[str, None] = {}
    for n in deepest_first("a", done, arguments):
        done[n] = None
    assert "".join(done) == "decba"
    assert list(deepest_first("a", done, arguments)) == []


def test_masks_of_hundreds_of_divisions(tensors: list[torch.Tensor], usual_recursion: None) -> None:
    """Proving that a nested quotient is not negative once went as deep as the nesting."""

    def mask(b, h, i, j):
        x = j
        for n in range(250):
            x = (x + n) // 2 + j % (n + 3)
        return x >= i

    q, k, v = tensors
    i = torch.arange(5)
    wanted = torch.softmax((q @ k.mT / 2).masked_fill(~mask(0, 0, i[:, None], i), -torch.inf), -1) @ v
    torch.testing.assert_close(attn_mlir.attention(q, k, v, mask_mod=mask), wanted)


def test_proofs_about_long_sums_are_short_work() -> None:
    """Each of 400 terms has a bound: replacing them one by one, over and over, would copy millions."""
    pool = Pool()
    terms = [(pool.leaf("var", n, 0) // (n + 2), 1) for n in range(400)]
    copied, total = 0, pool.total

    def counted(parts):
        nonlocal copied
        parts = list(parts)
        copied += sum(len(terms_of(node)[1]) for node, _ in parts)
        return total(parts)

    pool.total = counted
    assert not pool.proves(total([*terms, (pool.leaf("var", "x"), 1)]))
    assert copied < 20_000


def test_chains_of_conditions_are_compared_once() -> None:
    pool = Pool()
    conditions = [pool.at_least(pool.leaf("var", n), 0) for n in range(300)]
    negated, negation = 0, pool.negation

    def counted(node):
        nonlocal negated
        negated += 1
        return negation(node)

    pool.negation = counted
    chain = pool.true
    for condition in conditions:
        chain = chain & condition
    assert len(chain.args) == 300
    assert negated < 1000
    assert chain & negation(conditions[7]) is pool.false
    assert negation(conditions[7]) & chain is pool.false


def test_basic_blocks_end_in_long_code_only() -> None:
    def llvm(count: int) -> str:
        def mask(b, h, q, k):
            x = q + k
            for n in range(count):
                x = (x + q) // (n + 3)
            return x >= k

        with ir.Context() as context:
            load_all(context)
            return to_llvm(ir.Module.parse(module_text(mask)))

    assert "asm sideeffect" not in llvm(2)
    assert llvm(60).count("asm sideeffect") >= 3


def test_a_program_too_long_for_a_pass_is_told_its_length() -> None:
    @dataclass(frozen=True)
    class Deep(Pass):
        name = "deep"

        def run(self, module: ir.Operation) -> bool:
            return self.run(module)

    with ir.Context() as context:
        load_all(context)
        module = ir.Module.parse("func.func @f(%a: index) { %b = arith.addi %a, %a : index\n %c = arith.addi %b, %a : index\n return }")
        with pytest.raises(DiagnosticError, match=r"deep: the program is too long: it has 2 ops, 2 of them in one chain.*limit of [\d,]+"):
            Pipeline.of([Deep()]).run(module)


def test_llvm_optimises_what_is_not_too_long(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("ATTN_MLIR_LLVM_LEVEL")
    lines = "\n".join(f"%{n} = llvm.mlir.constant({n} : i64) : i64" for n in range(engine.LARGEST_OPTIMISED - 1))
    with ir.Context(), ir.Location.unknown():
        module = ir.Module.parse(f"llvm.func @f() {{\n{lines}\nllvm.return }}")
        assert engine.level_of(module) == 3
        monkeypatch.setenv("ATTN_MLIR_LLVM_LEVEL", "1")
        assert engine.level_of(module) == 1
        monkeypatch.setenv("ATTN_MLIR_LLVM_LEVEL", "fast")
        with pytest.raises(ArgumentError, match="is 0, 1, 2 or 3, got 'fast'"):
            engine.level_of(module)
        monkeypatch.delenv("ATTN_MLIR_LLVM_LEVEL")
        module = ir.Module.parse(f"llvm.func @f() {{\n{lines}\n%last = llvm.mlir.constant(0 : i64) : i64\nllvm.return }}")
        with pytest.warns(RuntimeWarning, match="11001 operations"):
            assert engine.level_of(module) == 0


def test_joined_conditions_without_optimisation(tensors: list[torch.Tensor], monkeypatch: pytest.MonkeyPatch) -> None:
    def mask(b, h, i, j):
        found = i != j + 1
        for n in range(2, 30):
            found = found & (i != j + n % 4 + 1)
        return found

    monkeypatch.setattr(engine, "LARGEST_OPTIMISED", 100)
    monkeypatch.setenv("ATTN_MLIR_CACHE", "off")
    q, k, v = tensors
    i = torch.arange(5)
    bias = torch.zeros(5, 5, dtype=torch.float64).masked_fill(~mask(0, 0, i[:, None], i), -torch.inf)
    with pytest.warns(RuntimeWarning, match="without optimisation"):
        found = attn_mlir.attention(q, k, v, mask_mod=mask)
    with pytest.warns(RuntimeWarning, match="without optimisation"):
        given = torch.autograd.grad(found.sum(), (q, k, v))
    wanted = torch.softmax(q @ k.mT / 2 + bias, -1) @ v
    torch.testing.assert_close(found, wanted)
    for a, b in zip(given, torch.autograd.grad(wanted.sum(), (q, k, v)), strict=True):
        torch.testing.assert_close(a, b)
