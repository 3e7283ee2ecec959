"""Code for other CPUs than this one, and what processors without AVX512_BF16 do instead."""

import ctypes
import os
import shutil
import subprocess
from pathlib import Path

import pytest
import torch

from attn_mlir.backends.cpu import target
from attn_mlir.backends.cpu.ahead.build import _machine
from attn_mlir.backends.cpu.doctor import findings
from attn_mlir.mlir import ExecutionEngine, ir
from attn_mlir.passes.pipeline import Pipeline
from attn_mlir.registry import registry
from processes import run_python

_ROUND = """
func.func @round(%from: !llvm.ptr, %to: !llvm.ptr, %count: i64) attributes {{llvm.emit_c_interface}} {{
  %zero = arith.constant 0 : i64
  %step = arith.constant {lanes} : i64
  scf.for %i = %zero to %count step %step : i64 {{
    %a = llvm.getelementptr %from[%i] : (!llvm.ptr, i64) -> !llvm.ptr, {wide}
    %x = llvm.load %a {{alignment = 4 : i64}} : !llvm.ptr -> {vector}{wide}{close}
    %y = arith.truncf %x : {vector}{wide}{close} to {vector}{narrow}{close}
    %b = llvm.getelementptr %to[%i] : (!llvm.ptr, i64) -> !llvm.ptr, {narrow}
    llvm.store %y, %b {{alignment = 2 : i64}} : {vector}{narrow}{close}, !llvm.ptr
  }}
  return
}}
"""
_TO_LLVM = "canonicalize,convert-scf-to-cf,convert-arith-to-llvm,convert-func-to-llvm,convert-cf-to-llvm,reconcile-unrealized-casts"


def rounded(values: torch.Tensor, to: torch.dtype, lanes: int) -> torch.Tensor:
    """`values` as compiled code casts them, `lanes` at a time."""
    wide = {torch.float32: "f32", torch.float64: "f64"}[values.dtype]
    vector, close = (f"vector<{lanes}x", ">") if lanes > 1 else ("", "")
    text = _ROUND.format(lanes=lanes, wide=wide, narrow={torch.bfloat16: "bf16", torch.float16: "f16"}[to], vector=vector, close=close)
    with ir.Context():
        module = ir.Module.parse(text)
        Pipeline.parse(f"cpu-expand-casts{{bf16=always}},{_TO_LLVM}", registry()).run(module)
        engine = ExecutionEngine(module)
        result = torch.empty(len(values), dtype=to)
        arguments = [ctypes.c_void_p(values.data_ptr()), ctypes.c_void_p(result.data_ptr()), ctypes.c_int64(len(values))]
        engine.invoke("round", *[ctypes.pointer(argument) for argument in arguments])
    return result


@pytest.mark.parametrize("lanes", [1, 4, 8, 16])
def test_bf16_is_rounded_as_torch_does(lanes: int) -> None:
    bits = torch.randint(-(2**31), 2**31, (1 << 16,), dtype=torch.int64).to(torch.int32)
    ties = (torch.arange(1 << 12, dtype=torch.int32) << 16) + 0x8000
    edges = torch.tensor([0.0, -0.0, torch.inf, -torch.inf, torch.nan, -torch.nan, 3.3895314e38, 3.4e38, 1e-45, -1e-40, 1e-38])
    values = torch.cat([bits.view(torch.float32), ties.view(torch.float32), -ties.view(torch.float32), edges, torch.zeros(5)])
    got, want = rounded(values, torch.bfloat16, lanes), values.bfloat16()
    assert torch.equal(got.isnan(), want.isnan()) and torch.equal(torch.signbit(got)[~got.isnan()], torch.signbit(want)[~want.isnan()])
    torch.testing.assert_close(got, want, rtol=0, atol=0, equal_nan=True)


@pytest.mark.parametrize("to", [torch.float16, torch.bfloat16])
def test_float64_goes_by_way_of_float32(to: torch.dtype) -> None:
    values = torch.cat([torch.randn(4000, dtype=torch.float64), torch.tensor([torch.inf, -torch.inf, torch.nan, 1e300])])
    torch.testing.assert_close(rounded(values, to, 4), values.float().to(to), rtol=0, atol=0, equal_nan=True)


_RUN = """
import torch, attn_mlir
failed = []
for dtype, D, bar in ((torch.bfloat16, 64, 2e-2), (torch.float16, 40, 3e-3), (torch.float32, 40, 2e-5), (torch.float64, 64, 1e-12)):
    for Sq, Skv in ((33, 127), (1, 90)):
        q, k, v = (torch.randn(1, h, n, D, dtype=dtype, requires_grad=True) for h, n in ((4, Sq), (2, Skv), (2, Skv)))
        wide = [x.detach().double().requires_grad_() for x in (q, k, v)]
        bias = torch.randn(4, Skv, dtype=dtype)
        o = attn_mlir.attention(q, k, v, score_mod=lambda s, b, h, i, j: s + bias[h, j])
        grad = torch.randn_like(o)
        o.backward(grad)
        want = torch.nn.functional.scaled_dot_product_attention(*wide, bias[None, :, None].double().expand(1, 4, Sq, Skv), enable_gqa=True)
        want.backward(grad.double())
        pairs = [(o, want), *((x.grad, y.grad) for x, y in zip((q, k, v), wide))]
        failed += [(dtype, D, float((x - y).abs().max())) for x, y in pairs if not (x - y).abs().max() < bar * (1 + y.abs().max())]
r = attn_mlir.linear_attention(*[torch.randn(1, 2, 70, 32).bfloat16() for _ in range(3)])
assert r.isfinite().all()
assert not failed, failed
"""


def compiler() -> str | None:
    return shutil.which("c++")


def run(text: str, cpu: str) -> subprocess.CompletedProcess[str]:
    environment = os.environ | {"ATTN_MLIR_CPU": cpu, "ATTN_MLIR_CACHE": "off"}
    return run_python("-c", text, env=environment)


@pytest.mark.skipif(not target.DESKTOP.features <= target.machine().features, reason="needs AVX2")
def test_code_for_avx2_runs_here() -> None:
    ran = run(_RUN, "avx2")
    assert ran.returncode == 0, ran.stderr


_TILES = """
import torch, attn_mlir
torch.manual_seed(0)
failed = []
for D, Sq, Skv in ((64, 130, 259), (128, 70, 31), (64, 1, 200)):
    q, k, v = (torch.randn(1, h, n, D, dtype=torch.bfloat16, requires_grad=True) for h, n in ((4, Sq), (2, Skv), (2, Skv)))
    q.data[:, 1] *= 30
    wide = [x.detach().double().requires_grad_() for x in (q, k, v)]
    seen = torch.arange(Skv) - Skv <= torch.arange(Sq)[:, None] - Sq
    o = attn_mlir.attention(q, k, v, mask_mod=attn_mlir.masks.causal("bottom_right"))
    grad = torch.randn_like(o)
    o.backward(grad)
    want = torch.nn.functional.scaled_dot_product_attention(*wide, seen, enable_gqa=True)
    want = torch.where(seen.any(-1)[:, None], want, 0)
    want.backward(grad.double())
    pairs = [(o, want), *((x.grad, y.grad) for x, y in zip((q, k, v), wide))]
    failed += [(D, Sq, float((x - y).abs().max())) for x, y in pairs if not (x - y).abs().max() < 1e-2 * (1 + y.nan_to_num().abs().max())]
assert not failed, failed
single = attn_mlir.Attention()
single(*[torch.randn(1, 1, 20, 32)] * 3)
assert "without matrix tiles: attention: matrix tiles multiply bf16, not f32" in single.explain()
"""


def test_matrix_tiles_in_memory() -> None:
    ran = run(_TILES, "amx-emulated")
    assert ran.returncode == 0, ran.stderr


@pytest.mark.skipif(not target.MATRIX.features <= target.machine().features, reason="needs AMX")
def test_matrix_tiles() -> None:
    ran = run(_TILES, "amx")
    assert ran.returncode == 0 or "the system refuses it" in ran.stderr, ran.stderr


@pytest.mark.parametrize("refused", ["", "the system refuses it (errno 95): Linux 5.16 or later gives it"])
def test_matrix_tiles_are_chosen_where_they_may_be_used(refused: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(target, "machine", lambda: target.MATRIX)
    monkeypatch.setattr(target.amx, "refusal", lambda: refused)
    monkeypatch.delenv("ATTN_MLIR_CPU", raising=False)
    target._usual.cache_clear()
    try:
        assert target.host().tiles != bool(refused) and ("amx_bf16" in target.host().name) != bool(refused)
        target.check_runs()
        (found,) = [finding for finding in findings() if finding.name == "matrix tiles"]
        assert (found.state, refused in found.text) == ("note" if refused else "ok", True)
        monkeypatch.setenv("ATTN_MLIR_CPU", "avx512")
        assert not target.host().tiles and "as ATTN_MLIR_CPU asks for" in {each.name: each.text for each in findings()}["matrix tiles"]
    finally:
        target._usual.cache_clear()


@pytest.mark.skipif(compiler() is None, reason="needs a C++ compiler")
def test_a_library_asks_for_leave_to_use_matrix_tiles(tmp_path: Path) -> None:
    source = tmp_path / "x.cpp"
    main = '#include <cstdio>\nint main() { std::puts(machine.lacking() ? machine.lacking() : "nothing"); }\n'
    source.write_text(f"namespace attn {{ struct Machine {{ const char *(*lacking)(); }}; }}\n{_machine(True)}\n{main}")
    subprocess.run([str(compiler()), "-std=c++17", "-Wall", "-Werror", str(source), "-o", str(tmp_path / "x")], check=True)
    said = subprocess.run([tmp_path / "x"], capture_output=True, text=True, check=True).stdout.strip()
    expected = ("nothing" if not target.amx.refusal() else "leave to use amx_bf16 (Linux 5.16)") if target.machine().tiles else "amx_bf16"
    assert said == expected and "amx" not in _machine(False)


@pytest.mark.skipif(target.MATRIX.features <= target.machine().features, reason="this machine has AMX")
def test_matrix_tiles_elsewhere() -> None:
    ran = run(_TILES, "amx")
    assert "UnsupportedError: code for ATTN_MLIR_CPU=amx does not run here: this machine has no amx_bf16" in ran.stderr


@pytest.mark.skipif(target.SERVER.features <= target.machine().features, reason="this machine runs it")
def test_code_of_a_greater_machine_is_refused() -> None:
    ran = run("import torch, attn_mlir; attn_mlir.attention(*[torch.randn(1, 1, 8, 16)] * 3)", "avx512")
    assert "UnsupportedError: code for ATTN_MLIR_CPU=avx512 does not run here: this machine has no " in ran.stderr


def test_an_unknown_machine() -> None:
    ran = run("import torch, attn_mlir; attn_mlir.attention(*[torch.randn(1, 1, 8, 16)] * 3)", "neon")
    assert "ArgumentError: ATTN_MLIR_CPU is avx512 or avx2 or amx or amx-emulated, or unset for this machine, got 'neon'" in ran.stderr
