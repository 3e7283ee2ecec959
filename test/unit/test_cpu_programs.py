"""Derivative programs on the CPU: several kernels from one host function, their grids, slots, and disk cache."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from attn_mlir import attention, driver
from attn_mlir.backends.cpu import program as cpu
from attn_mlir.backends.cpu import slots, work
from attn_mlir.backends.cpu.pipeline import KERNEL
from attn_mlir.backends.host import KernelGrid
from attn_mlir.errors import ArgumentError, CompileError, UnsupportedError

INPUTS = Path(__file__).parent.parent / "Inputs"
SOFTMAX = (INPUTS / "causal-softmax.mlir").read_text()
WRITTEN = (INPUTS / "derivatives" / "alibi-causal-softmax-backward.mlir").read_text()


@pytest.fixture(autouse=True)
def machine(monkeypatch: pytest.MonkeyPatch) -> None:
    """One of eight cores."""
    monkeypatch.setattr(slots, "PROGRAMS", 32)


def problem(b: int = 2, h: int = 4, hkv: int = 2, s: int = 40) -> list[torch.Tensor]:
    torch.manual_seed(0)
    return [torch.randn(b, heads, s, 64) for heads in (h, hkv, hkv)]


def run_backward(layout: str = "bhsd") -> list[torch.Tensor]:
    qkv = problem()
    results = driver.compile_derivative(SOFTMAX, "cpu", "fwd", ("q", "k", "v")).run(qkv, layout)
    upstream = [torch.ones_like(result) for result in results[:2]]
    return cpu._compile(SOFTMAX, "attention_bwd", prepare(), KERNEL).run([*qkv, *results, *upstream], layout)


def prepare() -> str:
    return "attn-simplify,attn-differentiate{functions=bwd wrt=q+k+v only=true},attn-simplify,attn-outline"


def test_programs_are_cached_in_memory() -> None:
    first = driver.compile_derivative(SOFTMAX, "cpu", "fwd", ("q", "k"))
    assert driver.compile_derivative(SOFTMAX, "cpu", "fwd", ("q", "k")) is first
    assert driver.compile_derivative(SOFTMAX, "cpu", "fwd", ("q", "v")) is not first


def test_disk_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ATTN_MLIR_CACHE", str(tmp_path))
    expected = run_backward()

    def lower(*_: Any) -> None:
        raise RuntimeError("compiled again")

    with monkeypatch.context() as patch:
        patch.setattr(cpu, "_lower", lower)
        for got, wanted in zip(run_backward(), expected, strict=True):
            assert torch.equal(got, wanted)
    # Whatever a file holds, it is used whole or not at all.
    for path in tmp_path.glob("*.json"):
        path.write_text(json.dumps({"sha256": "", "fields": {}}))
    assert torch.equal(run_backward()[0], expected[0])


def test_results_in_either_layout() -> None:
    for got, wanted in zip(run_backward("bshd"), run_backward(), strict=True):
        assert torch.equal(got, wanted)
        assert got.transpose(1, 2).is_contiguous() and wanted.is_contiguous()


def test_a_written_function_with_a_scatter() -> None:
    """The custom VJP against autograd, with kernels of their own for the rows and the pairs."""
    program = cpu.compile_program(WRITTEN, "attention_bwd")
    assert [name for name in program.stages() if name.startswith("attn-outline")] == ["attn-outline"]
    q, k, v, slopes = [tensor.requires_grad_() for tensor in (*problem(s=35)[:2], torch.randn(2, 2, 35, 32), torch.rand(4))]
    distance = torch.arange(35) - torch.arange(35)[:, None]
    s = q @ k.repeat_interleave(2, 1).mT * 0.125 + slopes[:, None, None] * distance
    s = s.masked_fill(distance > 0, -torch.inf)
    m = s.amax(-1)
    total = (s - m[..., None]).exp().sum(-1)
    o = s.softmax(-1) @ v.repeat_interleave(2, 1)
    upstream = torch.randn_like(o)
    expected = torch.autograd.grad(o, [q, k, v, slopes], upstream)
    got = program.run([t.detach() for t in (q, k, v, slopes, o, m, total, upstream)])
    for gradient, wanted in zip(got, expected, strict=True):
        torch.testing.assert_close(gradient, wanted, rtol=1e-4, atol=1e-4)


def test_arguments_are_checked() -> None:
    program = driver.compile_derivative(SOFTMAX, "cpu", "fwd", ("q", "k", "v"))
    q, k, v = problem()
    for bad in (q[0], q[..., :32], q.double(), 3.0):
        with pytest.raises(ArgumentError, match="argument 0 of this program"):
            program.run([bad, k, v])


def test_what_cannot_be_compiled() -> None:
    with pytest.raises(CompileError, match="'arg9' is no floating tensor"):
        driver.compile_derivative(SOFTMAX, "cpu", "bwd", ("arg9",))
    with pytest.raises(CompileError, match="holds no function @other"):
        cpu.compile_program(SOFTMAX, "other")
    with pytest.raises(UnsupportedError, match="no backend serves it"):
        driver.compile_derivative(SOFTMAX, "abacus", "bwd", ("q",))


def scatter(*disjoint: bool) -> KernelGrid:
    return KernelGrid("f", 16, "pairs", 0, ("scatter",), (disjoint,), False)


def grid(kernel: KernelGrid, over: tuple[int, ...], size: int) -> slots.SlotGrid:
    return slots.choose_grid(kernel, over, [torch.Size([size])], 4, 0)


def test_slots_only_where_programs_meet() -> None:
    chosen = grid(scatter(True, False, False), (2, 4, 4096, 64), 1000)
    assert (chosen.level, chosen.blocks) == (0, 4)
    assert chosen.slots((True, False, False)) == (1, 2, 4)
    assert chosen.slots((True, True, True)) == (1, 1, 1)
    assert chosen.slots((False, True, True)) == (4, 1, 1)
    assert chosen.ranges() == [(0, 32)]


def test_short_sequences_are_one_chunk() -> None:
    chosen = grid(scatter(True, True, True), (1, 1, 100, 64), 1)
    assert (chosen.blocks, chosen.size) == (1, 112)


def test_where_slots_are_too_large_programs_wait() -> None:
    """First the batch, then the heads too, at last everything."""
    million = 1 << 20
    assert grid(scatter(True, False, False), (2, 4, 4096, 64), million).level == 0
    batch = grid(scatter(True, False, False), (2, 4, 4096, 64), 4 * million)
    assert batch.level == 1 and len(batch.ranges()) == 2 and batch.slots((True, False, False)) == (1, 1, 4)
    heads = grid(scatter(True, False, False), (2, 4, 4096, 64), 16 * million)
    assert heads.level == 2 and len(heads.ranges()) == 8 and heads.slots((True, False, False)) == (1, 1, 1)
    assert [end - first for first, end in heads.ranges()] == [heads.blocks] * 8
    alone = grid(scatter(False, False, False), (2, 2, 600, 64), 300 * million)
    assert (alone.level, alone.blocks) == (2, 1) and alone.slots((False, False, False)) == (1, 1, 1)


@pytest.mark.parametrize("memory", [0, 1 << 10, 1 << 30])
def test_gradients_do_not_depend_on_how_slots_are_shared(monkeypatch: pytest.MonkeyPatch, memory: int) -> None:
    q, k, v = (tensor[..., :16].contiguous() for tensor in problem(s=600))
    table = torch.zeros(50, requires_grad=True)

    def gradient() -> torch.Tensor:
        o = attention(q, k, v, score_mod=lambda s, b, h, i, j: s + table[(i * 7 + j) % 50])
        return torch.autograd.grad(o.square().sum(), [table])[0]

    expected = gradient()
    # The limit is at least the size of the inputs.
    chosen = slots.choose_grid
    monkeypatch.setattr(slots, "_MEMORY", memory)
    monkeypatch.setattr(work, "choose_grid", lambda kernel, over, outputs, width, _: chosen(kernel, over, outputs, width, 0))
    got = gradient()
    torch.testing.assert_close(got, expected, rtol=1e-4, atol=1e-3)
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    assert torch.equal(gradient(), got)
    torch.set_num_threads(threads)
