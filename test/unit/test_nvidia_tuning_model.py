"""The tuner's model of a GPU: facts of kernels, what schedules need, how they are ranked, and the table of measured ones."""

import dataclasses
import json

import pytest

from attn_mlir.api.attention import Attention
from attn_mlir.api.masks import causal
from attn_mlir.backends.gpu.attributes import Fields
from attn_mlir.backends.nvidia.target import AMPERE, HOPPER
from attn_mlir.backends.nvidia.tuning import space, table
from attn_mlir.backends.nvidia.tuning.choices import with_choices
from attn_mlir.backends.nvidia.tuning.facts import KernelFacts, facts_of
from attn_mlir.backends.nvidia.tuning.model import cost, launch_registers, register_problem, role_registers
from attn_mlir.backends.nvidia.tuning.program import tunables
from attn_mlir.backends.tuning.space import Workload, to_measure
from attn_mlir.backends.tuning.worker import Job
from attn_mlir.frontend.emit import Inputs
from attn_mlir.mlir import ir
from attn_mlir.passes.regions import find_all
from contexts import loaded_context

FORWARD = KernelFacts("rows", "f16", (128,), (128,), (), 1.0, 5.0, False)
NARROW = KernelFacts("rows", "f16", (64,), (64,), (), 1.0, 5.0, False)
BACKWARD = KernelFacts("pairs", "f16", (128, 128), (128, 128), (128,), 1.0, 8.0, True)


def traced(element: str = "f16", columns: int = 128) -> str:
    """A causal softmax."""
    attention = Attention(mask_mod=causal())
    return attention._entry(Inputs(element, columns, columns))[0].traced.text


def cycles(facts: KernelFacts, work: Workload, **choices: int | str) -> float:
    return cost(facts, choices, HOPPER, work).cycles


# ---- facts


def test_facts_of_forward_and_backward() -> None:
    sizes = ((4, 16, 4096, 128),) * 2
    _, forward = tunables(traced(), Job("cuda"), sizes, HOPPER)
    _, backward = tunables(traced(), Job("cuda", "bwd", ("q", "k", "v")), sizes, HOPPER)
    assert [kernel.name for kernel in forward] == ["attention"]
    facts = forward[0].space.facts
    assert (facts.grid, facts.scores, facts.sums, facts.spread, facts.masked) == ("rows", (128,), (128,), (), True)
    assert facts.exponentials == 1
    assert forward[0].space.work == Workload(4096, 4096, 64)
    facts = backward[0].space.facts
    assert (facts.grid, facts.scores, facts.sums, facts.spread) == (
        "pairs",
        (128, 128),
        (128, 128),
        (128,),
    )
    assert facts.columns == 640


def test_facts_count_what_runs_for_every_pair_only() -> None:
    text = """
    func.func @f(%q: tensor<?x?x?x64xf16>) -> tensor<?x?x?x64xf16> {
      return %q : tensor<?x?x?x64xf16>
    }"""
    with loaded_context():
        (function,) = find_all(ir.Module.parse(text).operation, "func.func")
        assert facts_of(function) is None
    (kernel,) = tunables(traced(), Job("cuda"), ((1, 1, 64, 128),) * 2, HOPPER)[1]
    # scale, max, subtraction, exponential, sum: the state of a row is updated once a block.
    assert kernel.space.facts.instructions == 5


# ---- model


@pytest.mark.parametrize("consumers", [1, 2, 3, 4])
def test_usual_registers_fit_the_launch(consumers: int) -> None:
    consumer, producer = role_registers(consumers)
    threads = 128 * (consumers + 1)
    assert 128 * (consumers * consumer + producer) <= launch_registers(threads, HOPPER) * threads
    assert not register_problem(consumers, consumer, producer, HOPPER)


def test_registers_that_would_hang_are_refused() -> None:
    # Four warpgroups with 120 registers: 64512 of the 61440 that a launch of 640 threads has.
    assert "64512" in register_problem(4, 120, 24, HOPPER)
    assert "61440" in register_problem(4, 120, 24, HOPPER)
    refused = cost(NARROW, {"block_q": 256, "block_kv": 64, "consumer_registers": 120, "producer_registers": 24}, HOPPER, Workload())
    assert "registers" in refused.problem
    assert not cost(NARROW, {"block_q": 256, "block_kv": 64}, HOPPER, Workload()).problem


def test_shared_memory_of_a_known_schedule() -> None:
    # Two buffers of q, two stages of k and v, 32 KiB each.
    found = cost(FORWARD, {"block_q": 128, "block_kv": 128, "stages": 2}, HOPPER, Workload())
    assert found.shared == 192 * 1024 + 1024
    assert not found.problem
    small: Fields = {"block_q": 128, "block_kv": 128, "stages": 2, "flow": "each", "staging": "query"}
    assert cost(FORWARD, small, HOPPER, Workload()).shared == 160 * 1024 + 1024
    assert "shared memory" in cost(FORWARD, {"block_q": 128, "block_kv": 128, "stages": 3, "flow": "flat"}, HOPPER, Workload()).problem
    assert not cost(FORWARD, {"block_q": 128, "block_kv": 128, "stages": 3}, HOPPER, Workload()).problem


def test_head_dims_are_padded_to_atoms() -> None:
    odd = KernelFacts("rows", "f16", (80,), (80,), (), 1.0, 5.0, False)
    assert (
        cost(odd, {"block_q": 128, "block_kv": 64}, HOPPER, Workload()).shared
        == cost(FORWARD, {"block_q": 128, "block_kv": 64}, HOPPER, Workload()).shared
    )


def test_cycles_are_near_what_was_measured() -> None:
    # docs/tuning.md: times of whole launches on an H200 (0.82 and 1.0 ms) at its nominal clock, 1.755 GHz.
    assert cycles(FORWARD, Workload(4096, 4096, 64), block_q=128, block_kv=128) == pytest.approx(1.44e6, rel=0.1)
    assert cycles(NARROW, Workload(4096, 4096, 128), block_q=192, block_kv=128) == pytest.approx(1.76e6, rel=0.1)


def test_the_last_wave_counts() -> None:
    one, two = (cycles(FORWARD, Workload(128 * tiles, 4096, 1), block_q=128, block_kv=128) for tiles in (132, 133))
    assert two > 1.9 * one


def test_what_is_known_of_measurements_is_ranked_so() -> None:
    work = Workload(4096, 4096, 128)
    # D = 64: three warpgroups hide the exponentials, two do not; D = 128: three have no registers.
    assert cycles(NARROW, work, block_q=192, block_kv=128) < cycles(NARROW, work, block_q=128, block_kv=128)
    assert cycles(FORWARD, work, block_q=128, block_kv=128) < cycles(FORWARD, work, block_q=192, block_kv=128)
    assert cycles(FORWARD, work, block_q=128, block_kv=128) < cycles(FORWARD, work, block_q=64, block_kv=128)


def test_words_where_numbers_belong() -> None:
    with pytest.raises(ValueError, match="block_q must be a number"):
        cost(FORWARD, {"block_q": "many"}, HOPPER, Workload())


# ---- space and table


@pytest.mark.parametrize("facts", [FORWARD, NARROW, BACKWARD])
@pytest.mark.parametrize("emitter", ["hopper", "tilelang"])
def test_every_ranked_schedule_fits(facts: KernelFacts, emitter: str) -> None:
    ranked = space.ranked(facts, HOPPER, Workload(), emitter)
    assert ranked
    assert all(candidate.cost.shared <= HOPPER.shared_bytes and not candidate.cost.problem for candidate in ranked)
    assert [c.cost.cycles for c in ranked] == sorted(c.cost.cycles for c in ranked)


def test_other_chips_get_the_portable_schedules() -> None:
    assert {choices["emitter"] for choices in space.space(FORWARD, AMPERE)} == {"tilelang"}
    assert space.space(KernelFacts("elements"), HOPPER) == []
    assert space.best(KernelFacts("elements"), HOPPER) == {}


@pytest.mark.parametrize("columns", [16, 64, 80, 96, 128, 192, 256])
@pytest.mark.parametrize("grid", ["rows", "pairs"])
def test_every_head_dim_has_a_schedule(grid: str, columns: int) -> None:
    if grid == "rows":
        facts = KernelFacts("rows", "bf16", (columns,), (columns,), (), 1.0, 6.0, True)
    else:
        facts = KernelFacts("pairs", "bf16", (columns,) * 2, (columns,) * 2, (columns,), 1.0, 9.0, True)
    for target in (HOPPER, AMPERE) if grid == "rows" or columns < 256 else (HOPPER,):
        chosen = space.best(facts, target)
        assert chosen["block_q"] and chosen["block_kv"]


def test_entries_of_the_table_fit_the_chip() -> None:
    for entry in table.TABLE:
        columns, scores = (entry.columns,), min(entry.scores, 3)
        if entry.grid == "rows":
            facts = KernelFacts("rows", "f16", columns * scores, columns, (), 1.0, 5.0, bool(entry.masked))
        else:
            number, added = int(min(entry.sums, 2)), columns if entry.spread >= 0 else ()
            sums = (int(min(entry.columns, entry.together / number)),) * number
            facts = KernelFacts("pairs", "f16", columns * scores, sums, added, 1.0, 8.0, bool(entry.masked))
        assert table.lookup(facts, entry.arch, entry.length) == entry.choices
        assert "rows must" not in cost(facts, entry.choices, HOPPER, Workload()).problem


def test_long_sequences_have_choices_of_their_own() -> None:
    plain = KernelFacts("rows", "f16", (128,), (128,), (), 1.0, 5.0)
    assert space.best(plain, HOPPER)["block_kv"] == 128
    assert space.best(plain, HOPPER, length=8192)["block_kv"] == 192
    assert (table.next_length(plain, "sm_90a"), table.next_length(plain, "sm_90a", 8192)) == (8192, 0)
    for change in ({"masked": True}, {"instructions": 6.0}, {"scores": (64,), "sums": (64,)}, {"element": "f32"}):
        assert table.next_length(dataclasses.replace(plain, **change), "sm_90a") == 0
    assert table.next_length(plain, "sm_80") == 0


def test_what_is_measured_begins_with_the_untuned_schedule() -> None:
    measured = to_measure(space.NvidiaSpace(FORWARD, HOPPER, Workload()), 8)
    assert measured[0] == space.best(FORWARD, HOPPER)
    assert 2 < len(measured) <= 9
    assert len({json.dumps(each, sort_keys=True) for each in measured}) == len(measured)
    for refined in space.refined(FORWARD, HOPPER, Workload(), measured[1]):
        assert sum(refined.get(name) != measured[1].get(name) for name in refined) == 1


@pytest.mark.parametrize("function", ["", "bwd"])
def test_the_code_generator_makes_what_is_measured(function: str) -> None:
    job = Job("cuda", function, ("q", "k", "v"))
    text = traced(columns=64)
    (kernel,) = tunables(text, job, ((1, 2, 512, 64),) * 2, HOPPER)[1]
    candidates = to_measure(kernel.space, 2)
    candidates += kernel.space.refined(candidates[0])
    assert len(candidates) > 6
    for choices in candidates:
        unit = job.compile(with_choices(text, {kernel.name: choices})).units[kernel.name]
        # A choice that no schedule follows would be measured in vain.
        wanted = {name: value for name, value in choices.items() if name not in ("block_q", "block_kv")}
        assert {name: unit.schedule.get(name) for name in wanted} == wanted
        assert unit.kernel.block_q == choices["block_q"]
