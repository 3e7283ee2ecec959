"""The delta rule on NVIDIA GPUs: the solver of systems compiled for the host, kernels by nvcc, and on a GPU outputs and gradients."""

import ctypes
import importlib
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.utils.checkpoint

import attn_mlir
from amd_tools import needs_host_clang
from attn_mlir.backends.amd.clang import find_host_clang
from attn_mlir.backends.nvidia.tilelang.solves import SOURCE
from delta_cases import compare, inputs, narrow, run, wanted
from linear_reference import error

BAR = {torch.float32: 2e-6, torch.float16: 5e-3, torch.bfloat16: 5e-3}
HOST = """
#define __device__
#define __forceinline__ inline
struct float4 { float x, y, z, w; };
struct Index { int x; };
static Index threadIdx = {0}, blockDim = {1};
%s
extern "C" void lower(const float *a, float *x) { attn_solve_unit<32, false, 5>(a, x); }
extern "C" void upper(const float *a, float *x) { attn_solve_unit<32, true, 5>(a, x); }
"""


@pytest.fixture(scope="module")
def solvers(tmp_path_factory: pytest.TempPathFactory) -> ctypes.CDLL:
    """The function that programs bring along, for one thread of the host."""
    folder: Path = tmp_path_factory.mktemp("solve")
    code = SOURCE.split('r"""')[1].split('"""')[0]
    command = [find_host_clang(), "-x", "c++", "-std=c++17", "-O1", "-Wno-everything", "-shared", "-fPIC", "-", "-o", folder / "solve.so"]
    subprocess.run(command, input=HOST % code, text=True, check=True)
    return ctypes.CDLL(str(folder / "solve.so"))


@needs_host_clang
@pytest.mark.parametrize("upper", [False, True])
def test_the_solver_of_systems(solvers: ctypes.CDLL, upper: bool) -> None:
    """What is not part of the triangle is NaN: nothing reads it."""
    a, b = np.random.default_rng(0).normal(size=(2, 32, 32)).astype(np.float32)
    part = np.triu(a, 1) if upper else np.tril(a, -1)
    a = np.where(np.triu(np.ones_like(a), 1) if upper else np.tril(np.ones_like(a), -1), a / 4, np.nan).astype(np.float32)
    x = np.ascontiguousarray(b[:, :5])
    want = np.linalg.solve(np.eye(32) + part.astype(np.float64) / 4, x.astype(np.float64))
    pointer = ctypes.POINTER(ctypes.c_float)
    getattr(solvers, "upper" if upper else "lower")(a.ctypes.data_as(pointer), x.ctypes.data_as(pointer))
    assert np.linalg.norm(x - want) < 1e-5 * np.linalg.norm(want)


def on_gpu(x: dict[str, Any]) -> dict[str, Any]:
    """The same on a GPU; gradients come back."""
    return {n: v.cuda() for n, v in x.items()}


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", list(BAR))
@pytest.mark.parametrize("channels", [False, True])
@pytest.mark.parametrize(("length", "columns", "low"), [(1, 64, 1.0), (17, 64, 10.0), (127, 128, 0.1), (1000, 128, 1.0), (100, 256, 1.0)])
def test_outputs_and_gradients(length: int, columns: int, low: float, channels: bool, dtype: torch.dtype) -> None:
    """Two heads of v share one of q and k."""
    x = narrow(inputs(length, heads=4, dims=(columns, columns), channels=channels, low=low), dtype)
    double, expected = wanted(x)
    errors = compare(x, [result.cpu() for result in run(on_gpu(x))], expected, double)
    assert all(value < BAR[dtype] for value in errors.values()), errors


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", list(BAR))
def test_another_key_is_removed(dtype: torch.dtype) -> None:
    x = narrow(inputs(150, dims=(64, 64)), dtype)
    double, expected = wanted(x, own=True, removed=True)
    moved = on_gpu(x)
    found = run(moved, erase_key=moved["erase_key"] + 0.1 * moved["k"], removed_key=moved["erase_key"])
    errors = compare(x, [result.cpu() for result in found], expected, double)
    assert all(value < BAR[dtype] for value in errors.values()), errors


@pytest.mark.gpu
def test_sequences_of_any_lengths_twice_the_same() -> None:
    """Two calls give the same bits."""
    offsets = [0, 1, 40, 40, 200]
    x = inputs(200, dims=(64, 64))
    x["state"] = torch.randn(4, 2, 64, 64)
    x = narrow(x, torch.bfloat16)
    _, expected = wanted(x, cu_seqlens=offsets)
    first, second = (run(on_gpu(x), cu_seqlens=torch.tensor(offsets, device="cuda")) for _ in range(2))
    assert all(torch.equal(a, b) for a, b in zip(first, second, strict=True))
    assert max(error(a.cpu(), b) for a, b in zip(first, expected, strict=True)) < BAR[torch.bfloat16]


@pytest.mark.gpu
def test_ready_made() -> None:
    q, k, v = (torch.randn(1, 300, 2, 128, dtype=torch.bfloat16) for _ in range(3))
    beta, g = torch.rand(1, 300, 2), -torch.rand(1, 300, 2, 128)
    options: dict[str, Any] = {"use_qk_l2norm_in_kernel": True, "output_final_state": True}
    found: Any = attn_mlir.kda(q.cuda(), k.cuda(), v.cuda(), g=g.cuda(), beta=beta.cuda(), **options)
    want: Any = attn_mlir.kda(q.float(), k.float(), v.float(), g=g, beta=beta, **options)
    assert max(error(a.cpu(), b.double()) for a, b in zip(found, want, strict=True)) < BAR[torch.bfloat16]


def rule(*tensors: torch.Tensor) -> torch.Tensor:
    """A gated delta rule of q, k, v, g, beta and an initial state: o and the final state in one row."""
    q, k, v, g, beta, state = tensors
    o, final = attn_mlir.gated_delta_rule(q, k, v, g=g, beta=beta, initial_state=state, output_final_state=True)
    assert final is not None
    return torch.cat([o.flatten().float(), final.flatten()])


def of_rule(length: int = 600, heads: int = 2, columns: int = 64) -> tuple[list[torch.Tensor], torch.Tensor]:
    """Its inputs on a GPU, all with gradients, and the gradient of what it gives."""
    torch.manual_seed(0)
    q, k, v = torch.randn(3, 1, length, heads, columns)
    k = torch.nn.functional.normalize(k, dim=-1)
    g, beta, state = -torch.rand(1, length, heads), torch.rand(1, length, heads), torch.randn(1, heads, columns, columns)
    given = [*(x.bfloat16() for x in (q, k, v)), g, beta, state]
    return [x.cuda().requires_grad_() for x in given], torch.randn(v.numel() + state.numel()).cuda()


@pytest.mark.gpu
def test_what_the_forward_pass_keeps_serves_several_backward_passes() -> None:
    """The second one, and one after o was changed in place, give the same bits."""
    given, upstream = of_rule()
    q, k, v, g, beta, state = given
    o, final = attn_mlir.gated_delta_rule(q, k, v, g=g, beta=beta, initial_state=state, output_final_state=True)
    assert final is not None
    grads = [upstream[: o.numel()].view(o.shape).to(o.dtype), upstream[o.numel() :].view(state.shape)]
    first = torch.autograd.grad([o, final], given, grads, retain_graph=True)
    with torch.no_grad():
        o.zero_()
    second = torch.autograd.grad([o, final], given, grads)
    assert all(torch.equal(a, b) for a, b in zip(first, second, strict=True))


@pytest.mark.gpu
def test_an_input_that_changed_in_between_is_reported() -> None:
    given, upstream = of_rule(100)
    made = rule(*given)
    with torch.no_grad():
        given[-1].add_(1.0)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        made.backward(upstream)


@pytest.mark.gpu
def test_checkpoints_and_transforms_give_the_same_gradients() -> None:
    """And without gradients the result is the same up to rounding."""
    given, upstream = of_rule()
    made = rule(*given)
    want = torch.autograd.grad(made, given, upstream)
    again = torch.utils.checkpoint.checkpoint(rule, *given, use_reentrant=False)
    assert all(torch.equal(a, b) for a, b in zip(torch.autograd.grad(again, given, upstream), want, strict=True))
    pull = torch.func.vjp(rule, *(x.detach() for x in given))[1]
    assert all(error(a.double(), b.double()) < 1e-6 for a, b in zip(pull(upstream), want, strict=True))
    with torch.no_grad():
        alone = rule(*given)
    assert not alone.requires_grad and error(alone.double(), made.detach().double()) < BAR[torch.bfloat16]


def test_the_benchmark_runs_on_a_cpu(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.syspath_prepend(str(Path(__file__).resolve().parents[2] / "benchmarks"))
    benchmark = importlib.import_module("nvidia_delta")
    assert benchmark.main(["--quick", "--device", "cpu"]) == 0
    assert capsys.readouterr().out.count("backward: attn-mlir") == 2
    assert benchmark.main(["--quick", "--device", "cpu", "--cases", "kda-0", "--limit", "0"]) == 0
    assert "kda-0: not timed" in capsys.readouterr().out
    with pytest.raises(SystemExit):
        benchmark.main(["--quick", "--device", "cpu", "--cases", "kda-7"])
