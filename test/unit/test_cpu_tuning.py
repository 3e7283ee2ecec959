"""Tuning on the CPU: the model, what makes a schedule invalid, and the way from `tune=True` to a tune file that machines share."""

import dataclasses
import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch

from attn_mlir import Attention, AttentionEngine, LinearAttention, attention, linear_attention, masks, meta_tensor
from attn_mlir.backends import fields
from attn_mlir.backends.cpu import driver
from attn_mlir.backends.cpu.passes.choose_blocks import TUNED
from attn_mlir.backends.cpu.target import DESKTOP, SERVER, TARGETS, CpuTarget, host
from attn_mlir.backends.cpu.tuning import program
from attn_mlir.backends.cpu.tuning.chunk_scan_facts import CpuScanFacts
from attn_mlir.backends.cpu.tuning.model import cost, problem_of
from attn_mlir.backends.cpu.tuning.space import CpuSpace
from attn_mlir.backends.fields import Fields
from attn_mlir.backends.tuning.facts import KernelFacts
from attn_mlir.backends.tuning.space import Workload, left_out, ranked, to_measure
from attn_mlir.dialects import load_all
from attn_mlir.errors import CompileError, UnsupportedError
from attn_mlir.mlir import ir
from attn_mlir.reference.inputs import Sizes
from attn_mlir.testing.rewriting import Rewriting
from attn_mlir.tools.problems import TuneProblem, columns_of, ready_made
from engine_helpers import OnlineSoftmax

FORWARD = KernelFacts("rows", "f32", (64,), (64,), (), 1.0, 5.0, False)
BACKWARD = KernelFacts("pairs", "f32", (64, 64), (64, 64), (64,), 1.0, 8.0, True)
SCAN = KernelFacts("chunks", "f32", (64,), (64,), scan=CpuScanFacts(64, 64, 32, 64, 0, False))
TOGETHER = dataclasses.replace(SCAN, scan=dataclasses.replace(SCAN.scan, whole_columns=True))
ONE_CHUNK = dataclasses.replace(SCAN, scan=dataclasses.replace(SCAN.scan, one_chunk=True))
WORK = Workload(1024, 1024, 8)


def cycles(facts: KernelFacts, target: CpuTarget = SERVER, work: Workload = WORK, threads: int = 1, **choices: int | str) -> float:
    found = cost(facts, choices, target, work, threads)
    assert not found.problem
    return found.cycles


# ---- the model


@pytest.mark.parametrize("facts", [FORWARD, BACKWARD, SCAN], ids=["rows", "pairs", "chunks"])
def test_more_work_takes_longer_and_threads_share_it(facts: KernelFacts) -> None:
    for larger in (Workload(2048, 2048, 8), Workload(1024, 1024, 16)):
        assert cycles(facts, work=larger) > 1.9 * cycles(facts)
    assert cycles(facts, threads=4) < 0.5 * cycles(facts)
    assert cycles(facts, DESKTOP) > 1.5 * cycles(facts)
    assert cost(facts, {}, SERVER, WORK, 4).limits["threads"] > cost(facts, {}, SERVER, WORK, 2).limits["threads"] > 0
    assert cycles(facts, work=Workload(16, 16, 1), threads=16) == cycles(facts, work=Workload(16, 16, 1), threads=1)  # one program
    assert cost(facts, {"threads": 1}, SERVER, WORK, 16).cycles == cycles(facts, threads=1)


def test_what_bounds_a_block_is_told() -> None:
    # Registers hold sums for few keys of 128 rows, and a tile that outgrows the L1 cache is read again for each.
    wide = dataclasses.replace(FORWARD, scores=(128,), sums=(128,))
    assert cost(wide, {"block_q": 128, "block_kv": 256}, SERVER, WORK, 1).limits["L2 cache"] > 0
    assert cost(wide, {"block_q": 32, "block_kv": 64}, SERVER, WORK, 1).limits["L2 cache"] == 0
    assert cost(FORWARD, {"block_q": 32, "block_kv": 64}, SERVER, WORK, 1).bound == "multiplying"
    assert cycles(wide, block_q=128, block_kv=256) > 1.5 * cycles(wide, block_q=32, block_kv=64)
    # One vector of rows asks for a read of keys with each multiplication.
    assert cycles(FORWARD, block_q=16, block_kv=64) > 1.05 * cycles(FORWARD, block_q=32, block_kv=64)


def test_masks_bf16_and_exponentials_count() -> None:
    masked, plain = dataclasses.replace(FORWARD, masked=True), dataclasses.replace(FORWARD, exponentials=0.0)
    assert cycles(masked) < 0.7 * cycles(FORWARD)
    assert cycles(plain) < cycles(FORWARD)
    assert cycles(dataclasses.replace(FORWARD, element="bf16")) < 0.8 * cycles(FORWARD)


@pytest.mark.parametrize(
    ("facts", "choices", "told"),
    [
        (FORWARD, {"block_q": 48}, "rows: 48, but vectors hold 16, and a block a power of two of rows from 1 to 256"),
        (FORWARD, {"block_q": 512}, "rows: 512"),
        (FORWARD, {"block_q": 0}, "rows: 0"),
        (FORWARD, {"block_kv": 24}, "keys: 24, but a block has a multiple of 16 up to 1024"),
        (BACKWARD, {"block_kv": 2048}, "keys: 2048"),
        (BACKWARD, {"block_q": 256, "block_kv": 1024}, "stack: about "),
        (FORWARD, {"threads": 0}, "threads: 0, but at least one thread works"),
        (SCAN, {"block_q": 24}, "chunk: 24 positions, but a chunk has a power of two from 4 to 128"),
        (SCAN, {"block_q": 128}, "chunk: 128 positions do not end where states are stored, every 64"),
        (SCAN, {"block_kv": 48}, "columns: 48 do not divide the 64 of v"),
        (ONE_CHUNK, {"block_q": 16}, "chunk: 16 positions, but sums of the gradients of decays are over chunks of 32"),
        (TOGETHER, {"block_kv": 32}, "columns: 32, but a scan that adds up decays' gradients, or shares states, works on all 64 of v"),
    ],
)
def test_why_a_schedule_cannot_be(facts: KernelFacts, choices: Fields, told: str) -> None:
    assert problem_of(facts, choices, SERVER).startswith(told)
    assert cost(facts, choices, SERVER, WORK, 1).problem.startswith(told)


def test_what_is_tried() -> None:
    space = CpuSpace(SCAN, SERVER, WORK, 4, (32, 64))
    assert left_out(space) == {"chunk": 5, "columns": 8}
    assert all(64 % int(each.choices["block_q"]) == 0 for each in ranked(space))
    measured = to_measure(CpuSpace(FORWARD, SERVER, WORK, 4, (32, 64)), 5)
    assert measured[0] == {"block_q": 32, "block_kv": 64}
    assert len(measured) in (5, 6) and measured.count(measured[0]) == 1
    assert CpuSpace(FORWARD, SERVER, WORK, 6, (32, 64)).refined({"block_q": 64}) == [{"block_q": 64, "threads": n} for n in (1, 2, 4)]
    few = CpuSpace(FORWARD, SERVER, WORK, 4, (1, 64), rows=1)
    assert {each["block_q"] for each in few.candidates()} == {1}
    assert few.cost({"block_q": 32}).problem == "rows: 32, but there are 1"


# ---- kernels and keys


def kernels(
    name: str = "softmax", function: str = "attention", lengths: tuple[int, int] = (512, 512), heads: int = 4, arch: str = ""
) -> Any:
    text = ready_made(name, "f32", 64, 64, False)
    problem = TuneProblem(text, Sizes(1, heads, 4, *lengths), "cpu")
    return program.tunables(text, problem.job(function), problem.shapes(columns_of(text)), arch)[1]


def test_every_pass_has_its_kernels() -> None:
    assert [each.name for each in kernels()] == ["attention"]
    assert [each.name for each in kernels(function="attention_bwd")] == ["attention_bwd_2_pairs"]
    found = kernels("linear", "attention_bwd")
    assert [each.space.facts.grid for each in found] == ["chunks", "chunks"]
    assert kernels("linear", lengths=(1, 1)) == []
    assert [each.name for each in kernels(lengths=(1, 300))] == ["attention@one"]
    assert [each.name for each in kernels(lengths=(9, 300))] == ["attention@few"]
    assert [each.name for each in kernels(lengths=(1, 300), heads=8)] == ["attention@group"]


def test_a_key_names_the_kind_of_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    def key(**options: Any) -> Any:
        return kernels(**options)[0].key

    before = torch.get_num_threads()
    try:
        torch.set_num_threads(2)
        here = key()
        assert here.arch.startswith(host().model) and here.arch.endswith(" t2") and host().name in here.arch
        assert here == key(lengths=(300, 257)) != key(lengths=(513, 100))
        torch.set_num_threads(1)
        assert key().digest != here.digest
    finally:
        torch.set_num_threads(before)
    assert {key(arch=name).digest for name in TARGETS}.isdisjoint({here.digest})
    monkeypatch.setattr(program, "host", lambda: dataclasses.replace(host(), threads=64))
    assert key().digest == kernels()[0].key.digest  # cores that are not used do not count
    monkeypatch.setattr(program, "host", lambda: dataclasses.replace(host(), model="GenuineIntel-6-143"))
    assert "GenuineIntel" in key().arch
    with pytest.raises(UnsupportedError, match="no CPU is known as 'z80': one of avx512, avx2"):
        key(arch="z80")


# ---- choices reach the code


def choose(text: str, choices: dict[str, Fields]) -> str:
    return fields.with_tuned(text, choices, TUNED)


@pytest.mark.parametrize(
    ("element", "blocks"), [(torch.float32, (16, 48)), (torch.bfloat16, (128, 256)), (torch.bfloat16, (8, 16)), (torch.float16, (64, 32))]
)
def test_other_blocks_compute_the_same(element: torch.dtype, blocks: tuple[int, int]) -> None:
    generator = torch.Generator().manual_seed(0)
    q, k, v = (torch.randn(1, 2, 77, 32, generator=generator, dtype=torch.float64).to(element).requires_grad_() for _ in range(3))
    tuned, usual = Attention(mask_mod=masks.causal()), Attention(mask_mod=masks.causal())
    sizes: Fields = {"block_q": blocks[0], "block_kv": blocks[1], "threads": 1}
    names = ("attention_fwd", "attention_bwd_2_pairs")
    tuned._tuning = Rewriting(lambda text: choose(text, dict.fromkeys(names, sizes)))  # type: ignore[assignment]
    tolerance = {torch.float16: 4e-3, torch.float32: 1e-5, torch.bfloat16: 3e-2}[element]
    for made, wanted in zip(*(_with_gradients(each, q, k, v) for each in (tuned, usual)), strict=True):
        torch.testing.assert_close(made, wanted, atol=tolerance, rtol=tolerance)


def _with_gradients(call: Callable[..., Any], *given: torch.Tensor) -> list[torch.Tensor]:
    o = call(*given)
    return [o, *torch.autograd.grad(o.square().sum(), given)]


@pytest.mark.parametrize(
    ("choices", "told"),
    [
        ({"attention": {"block_q": 48}}, "cpu-choose-blocks: rows: 48"),
        ({"attention": {"block_kv": "many"}}, "block_kv must be a number, got 'many'"),
        ({"attention": {"threads": -1}}, "threads: -1"),
        ({"attention@few": {"block_kv": 7}}, "a multiple of 16 up to 1024 as block_kv"),
    ],
)
def test_choices_that_no_kernel_takes(choices: dict[str, Fields], told: str) -> None:
    text = choose(ready_made("softmax", "f32", 16, 16, False), choices)
    q = torch.randn(1, 1, 3, 16)
    with pytest.raises(CompileError, match=told):
        driver.build_kernel(text).run(q, q, q, [])


def test_untuned_programs_are_as_they_were() -> None:
    text = ready_made("softmax", "f32", 16, 16, False)
    with ir.Context() as context:
        load_all(context)
        plain, chosen = (driver._lower(each, driver.pipeline.ONLINE, ())[0] for each in (text, choose(text, {"other": {"block_q": 64}})))
        assert str(plain) == str(chosen).replace(str(chosen).splitlines()[0], str(plain).splitlines()[0])


# ---- from `tune=True` to the file


class FakeCpuBench:
    """Times from a function of the choices; candidates run as they are, so that results are real."""

    asked: Sequence[str] = ()

    def __init__(self, job: Any, inputs: Any, layout: str) -> None:
        self._job, self._inputs, self._layout = job, inputs, layout

    def close(self) -> None:
        pass

    def compile(self, texts: Sequence[str], done: Callable[[], None]) -> list[str]:
        type(self).asked = [*type(self).asked, *texts]
        return ["" for _ in texts]

    def prepare(self, text: str) -> Callable[[], Any]:
        return lambda: text

    def agree(self, results: Any, reference: Any) -> bool:
        return "block_kv = 128" not in results

    def time(self, call: Callable[[], Any], repeats: int) -> float:
        text = call()
        return 2.0 - ("block_q = 64" in text) - 0.5 * ("threads = 1}" in text) - 0.9 * ("block_kv = 128" in text)


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> type[FakeCpuBench]:
    """Replaces the clock, on two threads."""
    monkeypatch.setattr(FakeCpuBench, "asked", ())
    monkeypatch.setattr(torch, "get_num_threads", lambda: 2)
    monkeypatch.setattr(program, "TUNER", dataclasses.replace(program.TUNER, bench=FakeCpuBench, count=30))
    return FakeCpuBench


def qkv(length: int = 40, **options: Any) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    return [torch.randn(1, 2, length, 16, generator=generator, **options) for _ in range(3)]


def test_the_fastest_right_candidate_wins_is_kept_and_shared(fake: type[FakeCpuBench], tmp_path: Path, capsys: Any) -> None:
    path = tmp_path / "tuned.json"
    tuned = Attention(mask_mod=masks.causal(), tune=True, tune_file=str(path))
    q, k, v = qkv()
    torch.testing.assert_close(tuned(q, k, v), attention(q, k, v, mask_mod=masks.causal()), atol=1e-6, rtol=1e-6)
    (entry,) = json.loads(path.read_text())["entries"].values()
    assert (entry["choices"]["block_q"], entry["choices"]["threads"]) == (64, 1) and entry["choices"]["block_kv"] != 128
    assert entry["reasons"]["wrong results"] > 0 and entry["arch"].endswith(" t2")
    assert "attention: compiling" in capsys.readouterr().err
    count = len(fake.asked)
    assert count > 10
    again = Attention(mask_mod=masks.causal(), tune_file=str(path))  # another process, another machine of the kind
    again(*qkv(33))
    assert "block_q = 64" in again.stages()["traced"] and len(fake.asked) == count


def test_a_damaged_or_foreign_file_measures_again_and_stays(fake: type[FakeCpuBench], tmp_path: Path) -> None:
    path = tmp_path / "tuned.json"
    path.write_text("{broken")
    with pytest.warns(UserWarning, match="is not JSON"):
        Attention(tune=True, tune_file=str(path))(*qkv())
    assert path.read_text() == "{broken" and fake.asked
    Attention(tune=True, tune_file=str(tmp_path / "other.json"))(*qkv())
    form = json.loads((tmp_path / "other.json").read_text())
    for entry in form["entries"].values():
        entry["choices"] = {"block_q": 7}
    path.write_text(json.dumps(form))
    with pytest.raises(CompileError, match="cpu-choose-blocks: rows: 7"):
        Attention(tune_file=str(path))(*qkv())


def test_engines_and_linear_attentions_tune_on_the_cpu(fake: type[FakeCpuBench]) -> None:
    meta = tuple(meta_tensor(1, 2, "S", 16, dtype=torch.float32) for _ in range(3))
    mods: dict[str, Any] = {"mask_mod": masks.causal(), "score_mod": lambda s, io, b, h, i, j: s / 4.0}
    engine = AttentionEngine(meta, online_func=OnlineSoftmax(), device="cpu", tune=True, **mods)
    given = [tensor.transpose(1, 2) for tensor in qkv()]
    wanted = AttentionEngine(meta, online_func=OnlineSoftmax(), device="cpu", **mods)(*given)
    torch.testing.assert_close(engine(*given), wanted, atol=1e-6, rtol=1e-6)
    assert any("attention" in text for text in fake.asked)
    q, k, v = qkv()
    decay = -torch.rand(1, 2, 40, generator=torch.Generator().manual_seed(1))
    before = len(fake.asked)
    tuned = LinearAttention(tune=True)
    torch.testing.assert_close(tuned(q, k, v, decay), linear_attention(q, k, v, decay), atol=1e-5, rtol=1e-5)
    assert len(fake.asked) > before and "cpu.tuned" in tuned.stages()["traced"]


def test_a_real_tuning_gives_the_same_numbers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Few candidates, compiled and timed for real: forward and backward."""
    monkeypatch.setattr(program, "TUNER", dataclasses.replace(program.TUNER, count=2))
    monkeypatch.setattr(torch, "get_num_threads", lambda: 1)
    path, given = str(tmp_path / "tuned.json"), qkv(requires_grad=True)
    tuned = Attention(mask_mod=masks.causal(), tune=True, tune_file=path)
    wanted = _with_gradients(lambda q, k, v: attention(q, k, v, mask_mod=masks.causal()), *given)
    for made, usual in zip(_with_gradients(tuned, *given), wanted, strict=True):
        torch.testing.assert_close(made, usual, atol=1e-5, rtol=1e-5)
    entries = json.loads(Path(path).read_text())["entries"].values()
    assert sorted(entry["kernel"] for entry in entries) == ["attention_bwd_2_pairs", "attention_fwd"]
    assert all(entry["tried"] >= 2 and entry["ms"] > 0 and not entry["failed"] for entry in entries)
