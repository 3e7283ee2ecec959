"""Tuning of chunk scans: their facts, schedules and what these need, and tuning with made-up times. No GPU but at the end."""

import dataclasses
import json
from typing import Any

import pytest
import torch

from attn_mlir import LinearAttention, linear_attention
from attn_mlir.api.options import RecurrenceForm
from attn_mlir.backends.gpu import attributes
from attn_mlir.backends.gpu.attributes import Fields
from attn_mlir.backends.nvidia.target import AMPERE, HOPPER
from attn_mlir.backends.nvidia.tuning import space
from attn_mlir.backends.nvidia.tuning.choices import with_choices
from attn_mlir.backends.nvidia.tuning.chunk_scan_facts import NvidiaScanFacts
from attn_mlir.backends.nvidia.tuning.program import tunables
from attn_mlir.backends.nvidia.tuning.scans import scan_cost
from attn_mlir.backends.tuning.space import Tunable, Workload
from attn_mlir.backends.tuning.worker import Job
from attn_mlir.mlir import ir
from attn_mlir.passes.pipeline import Pipeline
from attn_mlir.passes.regions import find_all
from attn_mlir.registry import registry
from contexts import loaded_context
from fake_bench import FakeBench, tune_module

BACKWARD = Job("cuda", "bwd", ("q", "k", "v", "arg3"))
WORK = Workload(4096, 4096, 256)
FORWARD = NvidiaScanFacts(128, 128, 64, 0, 0, channels=False, plain=True, factor=False, compensated=False)
DELTA = NvidiaScanFacts(128, 128, 64, 0, 0, channels=False, plain=False, factor=False, compensated=False, delta=True, solves=True)
GRADIENT = NvidiaScanFacts(128, 128, 64, 512, 0, channels=False, plain=True, factor=True, compensated=True)


def traced(element: str = "f16", keys: int = 128, values: int = 128, decay: str = "step") -> str:
    """A linear attention with log decays."""
    return RecurrenceForm(element, keys, values, 1.0, decay).find((None,) * 6, None)[0].traced.text


def kernels(text: str, job: Job, length: int = 4096) -> list[Tunable]:
    return tunables(text, job, [(8, 32, length, 128)] * 3, HOPPER)[1]


def schedule(text: str) -> Fields:
    """That of the forward scan, as `schedules`."""
    (found,) = schedules(text, "attn-simplify,attn-outline")
    return found


def schedules(text: str, prepare: str) -> list[Fields]:
    """The schedules of all scans, and their blocks."""
    with loaded_context():
        module = ir.Module.parse(text)
        Pipeline.parse(f"{prepare},nvidia-kernel", registry()).run(module)
        found = []
        for kernel in find_all(module.operation, "func.func"):
            fields = attributes.read(kernel, attributes.SCHEDULE)
            if fields.get("emitter") in ("hopper", "warp", "tilelang"):
                sizes = ir.DictAttr(kernel.attributes["tile.kernel"])
                found.append({**fields, **{name: ir.IntegerAttr(sizes[name]).value for name in ("block_q", "block_kv")}})
        return found


# ---- facts, schedules and their needs


def test_facts_of_forward_and_backward() -> None:
    (forward,) = kernels(traced(), Job("cuda"))
    assert forward.space.facts.scan == FORWARD
    assert (forward.space.facts.grid, forward.key.element, forward.key.head_dims, forward.space.work) == ("chunks", "f16", (128, 128), WORK)
    first, second, third = (kernel.space.facts.scan for kernel in kernels(traced(), BACKWARD))
    assert first == second == GRADIENT
    assert third == FORWARD


def test_lengths_of_a_bucket_share_a_key() -> None:
    keys = [kernels(traced(), Job("cuda"), length)[0].key.digest for length in (1000, 1024, 1025)]
    assert keys[0] == keys[1] != keys[2]


def test_scans_of_segments_have_choices_of_their_own() -> None:
    """The other kernels of a program with segments have nothing to choose."""
    found = kernels(traced(), Job("cuda", segment=1024))
    assert [kernel.name.partition("@")[2] for kernel in found] == ["1024", "1024"]
    assert all(kernel.space.facts.scan and kernel.space.facts.scan.segment == kernel.space.facts.scan.whole == 1024 for kernel in found)
    assert all(kernel.space.work == Workload(1024, 1024, 4 * WORK.heads) for kernel in found)
    text = with_choices(traced(), {found[0].name: {"emitter": "tilelang", "block_q": 32, "block_kv": 64}})
    first, second = schedules(text, "attn-simplify,attn-split-sequences{segment=1024},func.func(cse),attn-outline{keep-hosts=false}")
    assert (first["emitter"], first["block_q"], first["block_kv"]) == ("tilelang", 32, 64)
    assert (second["emitter"], second["block_q"], second["block_kv"]) == ("warp", 64, 128)
    assert schedule(text) == schedule(traced())


def test_schedules_fit_the_kernel() -> None:
    (plain,), (channels,) = kernels(traced(), Job("cuda")), kernels(traced(keys=64, values=96, decay="step channel"), Job("cuda"))
    assert {choices.get("emitter") for choices in space.space(plain.space.facts, HOPPER)} == {None, "tilelang"}
    assert {choices["emitter"] for choices in space.space(plain.space.facts, AMPERE)} == {"tilelang"}
    assert {(choices["emitter"], choices["block_kv"]) for choices in space.space(channels.space.facts, HOPPER)} == {("tilelang", 32)}
    # States of the backward are stored every 64 positions where channels have decays and the emitter "hopper" does not know them.
    other = kernels(traced(keys=96, values=64, decay="step channel"), BACKWARD)[0]
    assert {choices["block_q"] for choices in space.space(other.space.facts, HOPPER)} == {32, 64}
    gradient = kernels(traced(keys=64, values=64, decay="step channel"), BACKWARD)[0]
    found = {(choices["emitter"], choices["block_q"]) for choices in space.space(gradient.space.facts, HOPPER)}
    assert found == {("hopper", 16), ("tilelang", 32), ("tilelang", 64), ("tilelang", 128)}


def test_what_does_not_fit_is_thrown_out() -> None:
    def problem(facts: NvidiaScanFacts, **choices: int | str) -> str:
        return scan_cost(facts, choices, HOPPER, WORK).problem

    assert "shared memory: " in problem(GRADIENT, emitter="tilelang", block_q=128, block_kv=128)
    assert "programs find no place" in problem(FORWARD, emitter="hopper", block_kv=128, occupancy=3)
    assert "registers: about 320" in problem(FORWARD, emitter="tilelang", block_q=32, block_kv=128, threads=64)
    assert not problem(FORWARD, emitter="hopper", block_kv=64, occupancy=2)


def test_needs_are_near_those_of_the_kernel() -> None:
    """Of the schedule that is printed, the estimate of the shared memory is within 5 %."""
    for columns, bytes_ in ((64, 91680), (128, 116000)):
        assert scan_cost(FORWARD, {"block_kv": columns, "stages": 2}, HOPPER, WORK).shared == pytest.approx(bytes_, rel=0.05)
    assert scan_cost(GRADIENT, {"block_kv": 64, "stages": 2}, HOPPER, WORK).shared == pytest.approx(109088, rel=0.05)


@pytest.mark.parametrize(
    ("element", "sizes", "forward", "backward"),
    [
        ("bf16", (64, 64), "warp", ["warp"] * 3),
        ("bf16", (64, 128), "hopper", ["warp", "warp", "hopper"]),
        ("bf16", (128, 64), "warp", ["hopper", "hopper", "warp"]),
        ("f16", (128, 128), "warp", ["hopper", "hopper", "warp"]),
    ],
    ids=str,
)
def test_scans_are_made_by_what_is_faster(element: str, sizes: tuple[int, int], forward: str, backward: list[str]) -> None:
    """Rows of o; of dq and dk, with products, whose rows have the columns of q and k, and of dv."""
    text = traced(element, *sizes)
    assert schedule(text)["emitter"] == forward
    differentiate = "attn-simplify,attn-recover-rows,attn-differentiate{functions=bwd wrt=q+k+v+arg3 only=true}"
    found = schedules(text, f"{differentiate},attn-outline{{keep-hosts=false}}")
    assert [each["emitter"] for each in found] == backward


def test_choices_reach_chunks_columns_and_the_emitter() -> None:
    text = traced()
    untuned = schedule(text)
    assert (untuned["emitter"], untuned["block_q"], untuned["block_kv"]) == ("warp", 64, 128)
    chosen: Fields = {"emitter": "tilelang", "block_q": 32, "block_kv": 64, "stages": 1, "threads": 128}
    assert schedule(with_choices(text, {"attention": chosen})).items() >= chosen.items()
    chosen = {"emitter": "warp", "block_q": 64, "block_kv": 64, "occupancy": 1, "stages": 3}
    assert schedule(with_choices(text, {"attention": chosen})).items() >= chosen.items()


# ---- tuning


def tuned(bench: FakeBench, job: Job = Job("cuda"), path: str = "", measure: bool = True) -> dict[str, Fields]:  # noqa: B008
    tensor = torch.empty(8, 32, 4096, 128, dtype=torch.float16, device="meta")
    return tune_module(traced(), job, [tensor] * 3, path=path, measure=measure, bench=bench)


def small(choices: Fields) -> float:
    """Fastest for TileLang with small chunks and 256 threads."""
    return 1.0 + 0.01 * int(choices["block_q"]) - 0.1 * (choices.get("emitter") == "tilelang") - 0.1 * (choices.get("threads") == 256)


def test_the_fastest_scan_wins_and_is_kept(tmp_path: Any) -> None:
    path, bench = str(tmp_path / "tune.json"), FakeBench(small)
    found = tuned(bench, path=path)["attention"]
    assert (found["emitter"], found["block_q"], found["threads"]) == ("tilelang", 32, 256)
    assert {choices.get("emitter") for choices in bench.compiled} == {None, "tilelang"}
    again = FakeBench(small)
    assert tuned(again, path=path) == {"attention": found} == tuned(again, path=path, measure=False)
    assert not again.compiled and not again.timed


def test_every_scan_of_the_backward_is_tuned(tmp_path: Any) -> None:
    """Those that fail are counted; what was chosen for one kernel stands while the next one is measured."""
    path = tmp_path / "tune.json"
    names = [kernel.name for kernel in kernels(traced(), BACKWARD)]

    def occupancy(choices: Fields) -> float:
        return 1.0 - 0.1 * (choices["block_kv"] == 64) - 0.1 * (choices.get("occupancy") == 2)

    def problem(choices: Fields) -> str:
        return "nvcc rejects it" if choices.get("emitter") == "tilelang" else ""

    with pytest.warns(UserWarning, match=r"could compare few schedules: .* x nvcc rejects it") as said:
        found = tuned(FakeBench(occupancy, problem), BACKWARD, str(path))
    assert len(said) == len(names)
    assert sorted(found) == sorted(names)
    assert all((choices["block_kv"], choices["occupancy"]) == (64, 2) for choices in found.values())
    assert {choices.get("emitter") for choices in found.values()} == {None, "hopper"}
    entries = json.loads(path.read_text())["entries"].values()
    assert sorted(entry["kernel"] for entry in entries) == sorted(names)
    assert all(entry["reasons"]["nvcc rejects it"] > 0 for entry in entries)


def test_delta_rules_are_made_by_warps() -> None:
    """TileLang is proposed where warps cannot share the tiles alone; whole chunks with 64 columns come first, as measured on an H200."""
    found = space.scan_space(DELTA, HOPPER)
    assert {each["emitter"] for each in found} == {"scans"}
    work = Workload(8192, 8192, 64)
    best = min(found, key=lambda each: scan_cost(DELTA, each, HOPPER, work).cycles)
    assert (best["block_q"], best["block_kv"]) == (64, 64)
    changed = space.refined_scan(DELTA, HOPPER, work, best)
    assert {"occupancy", "stages", "warps"} == {name for each in changed for name in each.keys() - best.keys()}
    odd = dataclasses.replace(DELTA, values=48)
    assert {each["emitter"] for each in space.scan_space(odd, HOPPER)} <= {"tilelang"}


@pytest.mark.gpu
def test_a_tuned_program_computes_the_same(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """A few candidates for the forward scan, which are quick to compile; the file serves an object that measures nothing."""
    every = space.scan_space
    monkeypatch.setattr(space, "scan_space", lambda *given: [each for each in every(*given) if "emitter" not in each])
    torch.manual_seed(0)
    q, k, v = (torch.randn(2, 4, 500, 128, device="cuda", dtype=torch.float16) for _ in range(3))
    decay = -torch.rand(2, 4, 500, device="cuda")
    path, text = tmp_path / "tune.json", traced()
    found = tune_module(text, Job("cuda"), [q, k, v, decay], path=str(path))
    (entry,) = json.loads(path.read_text())["entries"].values()
    assert entry["choices"] == found["attention"] and entry["tried"] - entry["failed"] >= 3
    attention = LinearAttention(tune_file=str(path))
    o, usual = attention(q, k, v, decay), linear_attention(q, k, v, decay)
    assert (o - usual).float().norm() <= 4e-3 * usual.float().norm()
    assert "nvidia.tuned" in attention.stages()["traced"]
