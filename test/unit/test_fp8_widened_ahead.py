"""8-bit k and v that many 16-bit queries read, on Hopper: widened once in memory, and then a kernel of 16 bits."""

from typing import Any

import pytest
import torch

from attn_mlir import Attention, attention, driver, masks
from attn_mlir.backends.nvidia import cuda, thresholds, widened_ahead
from attn_mlir.backends.nvidia import driver as nvidia
from attn_mlir.backends.nvidia.program import NvidiaLaunchPlan
from attn_mlir.errors import PerformanceWarning
from fp8_cases import dense, outliers, scaled
from gpu_cases import GPU

E4, E5 = torch.float8_e4m3fn, torch.float8_e5m2


def traced(q: torch.dtype = torch.bfloat16, kv: torch.dtype = E4, **options: Any) -> str:
    compute = Attention(**options)
    compute(torch.zeros(1, 2, 1, 64, dtype=q), *torch.zeros(2, 1, 2, 1, 64).to(kv), k_descale=torch.ones(2))
    return compute.ir("traced")


def program_of(text: str) -> NvidiaLaunchPlan:
    return nvidia.compile_program(text, "attention")


class WideProgramStub:
    """Stands for the program of 16 bits."""

    def __init__(self) -> None:
        self.seen: list[Any] = []

    def run(self, inputs: Any, layout: str) -> list[Any]:
        self.seen = [*inputs, layout]
        return [inputs[0]]


@pytest.mark.parametrize(("q", "kv"), [(torch.float16, E5), (torch.bfloat16, E4)])
def test_the_wide_program_computes_the_same(q: torch.dtype, kv: torch.dtype) -> None:
    """Its kernel widens nothing; on a CPU both are the same but for how products round, as every number of 8 bits is one of 16."""
    text = traced(q, kv, mask_mod=masks.causal(), value_mod=lambda x: x * 2)
    program = program_of(text)
    assert program.compile_wide is not None
    wide = program.compile_wide()
    (narrow_unit,), (wide_unit,) = program.units.values(), wide.units.values()
    assert narrow_unit.schedule["widen"] and not wide_unit.schedule.get("widen") and "attn::widen_tile" not in wide_unit.code.source
    assert wide.compile_wide is None
    source = widened_ahead.wide_source(text, program.host)
    x, (k, v) = torch.randn(2, 4, 33, 64).to(q), (outliers(2, 2, 70, 64, seed=seed).to(kv) for seed in (1, 2))
    scale = [torch.tensor([0.5, 1.5])]
    (narrow,) = driver.compile(text, "cpu").run(x, k, v, scale)
    _, wide_k, wide_v = widened_ahead.widened([x, k, v])
    (found,) = driver.compile(source, "cpu").run(x, wide_k, wide_v, scale)
    assert (narrow.float() - found.float()).norm() / found.float().norm() < (1e-2 if q == torch.bfloat16 else 1e-3)


@pytest.mark.parametrize(
    ("queries", "heads", "keys", "ahead"),
    [(4096, 16, 8192, True), (4095, 16, 8195, False), (2048, 32, 8192, True), (4096, 16, 8191, False), (1, 128, 1 << 30, False)],
)
def test_queries_of_a_key_and_work_decide(queries: int, heads: int, keys: int, ahead: bool) -> None:
    q, k = torch.empty(2, heads, queries, 128, device="meta"), torch.empty(2, 16, keys, 128, device="meta")
    assert widened_ahead.pays([q, k, k]) == ahead


def test_a_call_that_pays_runs_the_wide_program(monkeypatch: pytest.MonkeyPatch) -> None:
    """And `explain()` is told of it, with the bytes that it takes."""
    monkeypatch.setattr(thresholds, "WIDENED_WORK", 1)
    queries, heads = 2048, 8
    program, stub = program_of(traced(mask_mod=masks.causal())), WideProgramStub()
    monkeypatch.setattr(program, "compile_wide", lambda: stub)
    monkeypatch.setattr(program._copies, "notes", {})
    monkeypatch.setattr(cuda, "current_device", lambda: 0)
    q = torch.randn(1, heads, queries, 64).bfloat16()
    k, v = (torch.randn(1, 9, 2, 64).to(E4).transpose(1, 2) for _ in "kv")
    scale = torch.ones(2)
    assert program.run([q, k, v, scale], "bshd")[0] is q
    x, y, z, same, layout = stub.seen
    assert x is q and same is scale and layout == "bshd" and y.dtype == z.dtype == torch.bfloat16
    assert y.stride() == k.stride() and torch.equal(y.float(), k.float()) and torch.equal(z.float(), v.float())
    reason = f"{queries * heads // 2} queries read each key: k and v are widened to bfloat16 before the kernel, {2 * 2 * 9 * 64 * 2} bytes"
    assert program.copies == {"k": reason, "v": reason}


def test_without_memory_the_kernel_widens_and_that_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    program = program_of(traced())

    def full(*sizes: Any, **options: Any) -> Any:
        raise torch.OutOfMemoryError("no memory")

    monkeypatch.setattr(widened_ahead, "empty_strided", full)
    inputs = [torch.zeros(1, 2, 4096, 64).bfloat16(), *torch.zeros(2, 1, 2, 9, 64).to(E4), torch.ones(2)]
    with pytest.warns(PerformanceWarning, match="no memory to widen 8-bit k and v"):
        assert program._widened(inputs) is None


def test_other_programs_widen_nothing_ahead() -> None:
    """q of 8 bits, o of 8 bits, and k and v of 16."""
    narrow = Attention()
    narrow(*torch.zeros(3, 1, 2, 1, 64).to(E4))
    half = Attention()
    half(*torch.zeros(3, 1, 2, 1, 64).half())
    rounded = Attention()
    rounded(torch.zeros(1, 2, 1, 64).half(), *torch.zeros(2, 1, 2, 1, 64).to(E4), out_dtype=torch.float32)
    for compute, wide in ((narrow, False), (half, False), (rounded, True)):
        assert (program_of(compute.ir("traced")).compile_wide is not None) == wide


def test_rows_that_are_broadcast_are_widened_once_each() -> None:
    k = torch.randn(1, 1, 5, 64).to(E4).expand(3, 2, 5, 64)
    _, wide, _ = widened_ahead.widened([torch.zeros(1).half(), k, k])
    assert wide.stride()[-1] == 1 and torch.equal(wide.float(), k.float())


@pytest.mark.parametrize("masked", [pytest.param(masked, marks=GPU) for masked in (False, True)])
def test_on_a_gpu_with_and_without_a_graph(masked: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(thresholds, "WIDENED_WORK", 1)
    monkeypatch.setattr(thresholds, "WIDENED_QUERIES", 4096)
    q, (k, v) = outliers(1, 8, 1100, 128).bfloat16().cuda(), (outliers(1, 2, 900, 128, seed=seed).to(E4).cuda() for seed in (1, 2))
    scale = torch.tensor([0.5, 1.5])
    compute = Attention(mask_mod=masks.causal() if masked else None)
    o = compute(q, k, v, k_descale=scale.cuda())
    assert "4400 queries read each key" in compute.explain()
    mask = torch.ones(1100, 900, dtype=torch.bool)
    right = dense(q.cpu().double(), scaled(k.cpu(), scale), v.cpu().double(), mask=mask.tril() if masked else mask)
    assert (o.cpu().double() - right).norm() / right.norm() < 1e-2
    graph, given = torch.cuda.CUDAGraph(), scale.cuda()
    with torch.cuda.graph(graph):
        again = compute(q, k, v, k_descale=given)
    graph.replay()
    assert torch.equal(again, o)
    few = attention(q[:, :, :9], k, v, k_descale=given)
    assert (few.cpu().double() - dense(q.cpu().double()[:, :, :9], scaled(k.cpu(), scale), v.cpu().double())).norm() < 0.1
