"""What the flat loop over keys saves on Hopper: which programs may keep maxima, have their sums made by products, skip blocks."""

from collections.abc import Callable
from typing import Any

import pytest

from attn_mlir.backends.gpu.structure import body, chains
from attn_mlir.backends.nvidia import pipeline
from attn_mlir.backends.nvidia.hopper.stale_maximum import Needed, everything_but, keeps_reference, limit_of, sum_by_product
from attn_mlir.backends.nvidia.hopper.steps import KvStep, read_chain
from attn_mlir.backends.nvidia.hopper.wgmma import SharedOperand, product
from attn_mlir.diagnostics import DiagnosticError
from attn_mlir.dialects import load_all
from attn_mlir.mlir import ir
from attn_mlir.passes.pipeline import Pipeline
from attn_mlir.passes.regions import find_all
from attn_mlir.registry import registry
from machine_code import compiled
from test_nvidia_hopper import emit, program

TILED = pipeline.KERNEL.removesuffix(",tile-schedule{target=nvidia}")


def with_steps(name: str, use: Callable[[ir.Operation, list[KvStep]], Any], element: str = "f16") -> Any:
    """What `use` makes of a program's kernel, before it has a schedule, and of the steps of its loops."""
    context = ir.Context()
    load_all(context)
    with context, ir.Location.unknown():
        module = ir.Module.parse(program(name, 64, element))
        Pipeline.parse(TILED, registry()).run(module)
        (kernel,) = find_all(module.operation, "func.func")
        (chain,) = chains(body(kernel))
        steps = read_chain(chain)
        assert steps is not None
        return use(kernel, steps)


def kept(step: KvStep) -> Needed | None:
    return keeps_reference(step) if step.whole else None


@pytest.mark.parametrize(
    ("name", "lazy_rescale", "sums"),
    [
        ("causal-softmax", True, True),
        ("plain-softmax", True, True),
        ("alibi-causal-softmax", True, True),
        ("softcap", True, True),
        ("softmax-base-2", False, True),  # `gpu-lazy-rescale` knows exp, not 2 to the power of a number
        ("sink", False, True),  # its first maximum and sum are those of the sink
        ("sigmoid-causal", False, False),
        ("retention", False, False),
        ("entropy", False, True),
    ],
)
def test_which_programs(name: str, lazy_rescale: bool, sums: bool) -> None:
    assert with_steps(name, lambda _, steps: any(kept(step) is not None for step in steps)) == lazy_rescale
    assert with_steps(name, lambda _, steps: sum_by_product(steps) is not None) == sums


def test_what_a_kept_maximum_spares() -> None:
    def check(_: ir.Operation, steps: list[KvStep]) -> None:
        (step,) = [step for step in steps if step.whole]
        needed = kept(step)
        assert needed is not None
        maps = [op for op in step.rest if op.name == "tile.map"]
        largest, maxima, weights, total = maps
        assert not any(result in needed.results for result in [*largest.results, *maxima.results])
        assert all(result in needed.results for result in [*weights.results, *total.results])
        assert 1.0 in needed.fixed.values()  # the factor of accumulators
        argument = list(body(step.loop).arguments)[2]  # the carried sum
        without = everything_but(step, argument)
        assert weights.results[0] in without.results
        assert not any(result in without.results for result in [weights.results[1], *total.results])

    with_steps("causal-softmax", check)


def test_limits_of_weights() -> None:
    """2^14 in f16, 2^40 in bf16, as bits."""
    for element, bits in (("f16", (14 + 15) << 10), ("bf16", (40 + 127) << 7)):
        assert with_steps("plain-softmax", lambda _, steps: limit_of(steps[0]), element) == bits


@pytest.mark.parametrize(
    ("name", "choices"),
    [
        ("sigmoid-causal", {"lazy_rescale": 1}),
        ("retention", {"sums": "product"}),
    ],
)
def test_others_are_refused(name: str, choices: dict[str, int | str]) -> None:
    field = next(iter(choices))
    with pytest.raises(DiagnosticError, match=f"{field} can be"):
        emit(program(name), **choices)


@pytest.mark.parametrize(
    "choices",
    [{"sums": "own"}, {"lazy_rescale": 0}, {"block_q": 128, "lazy_rescale": 1}],
    ids=str,
)
def test_savings_compile_alone(choices: dict[str, int | str]) -> None:
    source = compiled_source("causal-softmax", choices)
    assert ("any_reaches<0x7400>(packed)" in source) == (choices.get("lazy_rescale") != 0)
    assert ("shared + kOnes" in source) == ("sums" not in choices and "block_q" not in choices)


def compiled_source(name: str, choices: dict[str, int | str]) -> str:
    code = emit(program(name), **choices)
    compiled(code)
    return code.source


def test_other_scores_keep_their_registers() -> None:
    """Bias and positions need registers of their own: with three warpgroups such programs search for their maxima unless asked not to."""
    assert "any_reaches<0x7400>(packed)" not in emit(program("bias")).source
    assert "any_reaches<0x7400>(packed)" in emit(program("bias"), lazy_rescale=1).source


@pytest.mark.parametrize(
    ("name", "lazy_rescale", "queries"),
    [
        ("causal-softmax", 1, "registers"),
        ("softcap", 1, "shared"),  # its score function takes the registers
        ("alibi-causal-softmax", 1, "shared"),
        ("bias", 1, "shared"),  # its numbers, two columns of four matrices at a time, take the registers
        ("sigmoid-causal", 0, "shared"),
    ],
)
def test_wide_heads_keep_maxima_where_registers_suffice(name: str, lazy_rescale: int, queries: str) -> None:
    code = emit(program(name, 128))
    assert ("attn::any_reaches" in code.source.rpartition("} // namespace attn")[2]) == bool(lazy_rescale)
    assert ("load_queries();" in code.source) == (queries == "registers")
    if name in ("softcap", "alibi-causal-softmax"):  # causal-softmax and others: test_bar_shapes_spill_nothing
        assert compiled(code).spills == 0


def test_the_loop_inside_a_program_keeps_maxima() -> None:
    """Long sequences without a mask: blocks of 192 keys. Three warpgroups do so only in the flat loop, unless asked to."""
    long = emit(program("plain-softmax", 128), length=8192).source
    assert long.count("attn::any_reaches<0x7400>(packed)") == 1
    assert "attn::scores_of_warp<128, false>(s_3, shared + kQ" in long
    assert "any_reaches<0x7400>(packed)" not in emit(program("plain-softmax"), flow="each").source
    assert "any_reaches<0x7400>(packed)" in emit(program("plain-softmax"), flow="each", lazy_rescale=1).source


def test_columns_beside_an_operand() -> None:
    lines = product("o", 72, 32, "packed", SharedOperand("values", 16384, mn_major=True, beside="ones"), "f16")
    assert any("b = attn::mn_major_beside(values, ones);" in line for line in lines)
    assert any("attn::advance_beside(b, 2048)" in line for line in lines)
