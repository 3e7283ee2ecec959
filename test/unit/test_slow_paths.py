"""Kernels that leave the best code generator of their device say so: once, with the reason and the user's line; or are refused."""

import dataclasses
import re
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch

from attn_mlir.backends.gpu import compiled_kernels
from attn_mlir.backends.gpu.kernel import KernelCode
from attn_mlir.backends.nvidia import driver as nvidia
from attn_mlir.backends.nvidia import tilelang
from attn_mlir.backends.program import prepare_derivative
from attn_mlir.errors import PerformanceWarning, UnsupportedError
from attn_mlir.frontend.cache import Entry
from attn_mlir.mlir import ir
from attn_mlir.passes.pipeline import Pipeline
from attn_mlir.registry import registry
from attn_mlir.runtime import programs
from attn_mlir.tools import attn_translate
from contexts import loaded_context
from generated_code import traced
from gpu_cases import CASES, Sizes, functions
from machine_code import needs_nvcc

TABLE = torch.linspace(-1, 1, 64)


def relative(s: Any, b: Any, h: Any, q: Any, k: Any) -> Any:
    return s + TABLE[(q - k) % 64]


def scattered(s: Any, b: Any, h: Any, q: Any, k: Any) -> Any:
    return s + TABLE[(q * k) % 64]


def bucket(s: Any, b: Any, h: Any, q: Any, k: Any) -> Any:
    return s * TABLE[q * q % 64]


def chosen(s: Any, b: Any, h: Any, q: Any, k: Any) -> Any:
    return torch.where(q - k < 100, s + TABLE[(q - k) % 64], -float("inf"))


def causal(b: Any, h: Any, q: Any, k: Any) -> Any:
    return q >= k


@pytest.fixture(autouse=True)
def _without_tilelang(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Its programs are not lowered, which takes long."""

    def emit(kernel: Any, target: Any) -> KernelCode:
        made = tilelang.program_of(kernel)
        return KernelCode(made.name, made.name, "", (), made.threads, 0, language="tilelang", program=made.text)

    monkeypatch.setattr(tilelang, "emit", emit)
    monkeypatch.setattr(tilelang, "emit_ahead", lambda kernels: None)
    monkeypatch.setattr(nvidia, "_PROGRAMS", {})
    monkeypatch.setenv("ATTN_MLIR_CACHE", str(tmp_path))
    monkeypatch.delenv("ATTN_MLIR_STRICT", raising=False)


def fresh(program: Any) -> programs.Program:
    """A program that no other test has compiled."""
    found = programs.find(programs.register(program))
    return dataclasses.replace(found, kernels={}, derivatives={}, slow={})


def test_a_warning_with_reason_and_line() -> None:
    program = fresh(traced(causal, scattered, columns=96))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        program.kernel("cuda")  # the forward pass is fast
    with pytest.warns(PerformanceWarning) as told:
        program.derivative("cuda", "bwd", "q+k+v+arg3")
    (message,) = [str(each.message) for each in told]
    assert "made by 'tilelang', not by 'hopper'" in message and "the gradient of a captured tensor" in message
    assert "test_slow_paths.py:" in message, message
    assert "ATTN_MLIR_STRICT=1" in message
    assert told[0].filename == __file__  # the line that asked for it, not one of attn-mlir
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        program.derivative("cuda", "bwd", "q+k+v+arg3")  # once
        program.derivative("cuda", "bwd", "q+k+v")  # without the table's gradient it is fast


def test_strict_mode_refuses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ATTN_MLIR_STRICT", "1")
    program = fresh(traced(causal, scattered, columns=96))
    program.kernel("cuda")
    for _ in range(2):
        with pytest.raises(UnsupportedError, match=r"the gradient of a captured tensor .* needs about .* registers"):
            program.derivative("cuda", "bwd", "q+k+v+arg3")


@pytest.mark.parametrize(
    ("score", "columns", "slow"),
    [
        ("table", 64, 0),
        ("table", 128, 0),
        ("factor", 64, 0),
        ("factor", 128, 0),
        ("bucket", 128, 0),
        ("chosen", 128, 0),
        ("product", 64, 0),
        ("product", 128, 1),
    ],
)
def test_gradients_of_what_a_query_reads(score: str, columns: int, slow: int) -> None:
    """Elements that go anywhere need weights in f32, for which blocks of few queries leave registers; diagonals and sums do not."""
    mod = {"table": relative, "factor": lambda s, b, h, q, k: s * TABLE[q], "product": scattered, "chosen": chosen}.get(score, bucket)
    for mask in (causal, None):
        assert len(nvidia.slow(traced(mask, mod, columns=columns).text, "bwd", ("q", "k", "v", "arg3"))) == slow


def test_wide_heads_are_fast(monkeypatch: pytest.MonkeyPatch) -> None:
    """Their sums over queries are those of two kernels."""
    monkeypatch.setenv("ATTN_MLIR_STRICT", "1")
    assert not fresh(traced(causal, columns=256)).derivative("cuda", "bwd", "q+k+v").slow


def test_what_is_kept_on_disk_warns_again() -> None:
    first = nvidia.compile_derivative(traced(causal, columns=36).text, "bwd", ("q", "k", "v"))
    assert list(first.slow.values()) == ["made by 'tilelang', not by 'hopper': head dimensions are multiples of 8, got 36"]
    _, kept = compiled_kernels.unpack(*compiled_kernels.pack(first.host, first.units))
    assert {name: unit.schedule.get("slow") for name, unit in kept.items() if "slow" in unit.schedule} == first.slow
    assert "slow: made by" in first.explain()


def test_explain_tells() -> None:
    from attn_mlir.api.describe import slow_of

    entry = Entry(traced(causal, columns=36))
    entry.programs[0] = fresh(entry.traced)
    assert slow_of(entry) == ""
    with pytest.warns(PerformanceWarning):
        entry.programs[0].derivative("cuda", "bwd", "q+k+v")
    assert slow_of(entry).startswith("slow: attention_bwd_2_pairs: made by 'tilelang'")


def test_what_was_asked_for_is_no_slow_path() -> None:
    text = traced(causal, columns=36).text
    chosen = text.replace("attributes {", 'attributes {tile.choices = {emitter = "tilelang"}, ', 1)
    assert chosen == text or nvidia.compile_program(chosen, "attention").slow == {}
    asked = nvidia.slow(text, "bwd", ("q", "k", "v"))
    assert list(asked) == ["attention_bwd_2_pairs"]


@pytest.mark.parametrize("name", CASES)
def test_cases_that_are_fast(name: str) -> None:
    """What the tests on a GPU demand in strict mode, where there is none."""
    case, sizes = CASES[name], Sizes()
    tensors = [torch.zeros(shape) for shape in case.tensors(sizes).values()]
    made = functions(case, sizes, tensors)
    program = traced(made.pop("mask_mod", None), made.pop("score_mod", None), **made)
    wrt = ["q", "k", "v", *(f"arg{3 + i}" for i, each in enumerate(program.captures) if each.kind == "tensor")]
    assert nvidia.slow(program.text, "fwd", wrt) == {}
    assert nvidia.slow(program.text, "bwd", wrt) == {}


def translate(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str]:
    code = attn_translate.main(arguments)
    return code, capsys.readouterr().err


def module(tmp_path: Path, columns: int, backward: bool = False) -> str:
    """A file with a causal attention, or with its backward pass as `attn-opt` makes it."""
    text = traced(causal, columns=columns).text
    if backward:
        with loaded_context():
            made = ir.Module.parse(text)
            Pipeline.parse(prepare_derivative("bwd", ("q", "k", "v"), "attn-simplify,attn-outline{keep-hosts=false}")[1], registry()).run(
                made
            )
            text = str(made)
    path = tmp_path / "in.mlir"
    path.write_text(text)
    return str(path)


@pytest.mark.parametrize("target", ["cuda", "tilelang", "cubin", "hip"])
def test_a_module_without_kernels(target: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "x.mlir"
    for text in ("module { module { func.func @f() { return } } }", "func.func @f() { return }", "module {}"):
        path.write_text(text)
        code, told = translate(capsys, str(path), "--to", target)
        assert code == 1 and "no kernel in this module" in told and "internal error" not in told


@pytest.mark.parametrize("target", ["cuda", "tilelang", "hip", "nvidia-kernel", "amd-kernel"])
def test_head_dimensions_are_refused_as_by_the_api(target: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, told = translate(capsys, module(tmp_path, 1032), "--to", target)
    assert code == 1 and "q has head dimension 1032, and kernels for" in told and "take up to 1024" in told


def test_remarks(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    path = module(tmp_path, 36, backward=True)
    code, told = translate(capsys, path, "--to", "cuda", "-o", str(tmp_path / "out.cu"))
    assert code == 0 and "attn-translate: remark: " in told and "head dimensions are multiples of 8, got 36" in told
    monkeypatch.setenv("ATTN_MLIR_STRICT", "1")
    code, told = translate(capsys, path, "--to", "cuda")
    assert code == 1 and re.search(r":\d+:\d+: error: .*multiples of 8, got 36", told)


@needs_nvcc
def test_cubins_and_report_of_several_kernels(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = module(tmp_path, 64, backward=True)
    code, told = translate(capsys, path, "--to", "cubin")
    assert code == 1 and "3 files" in told and "-o out.cubin" in told
    code, told = translate(capsys, path, "--to", "cubin", "-o", str(tmp_path / "out.cubin"))
    made = sorted(tmp_path.glob("out.*.cubin"))
    assert code == 0 and len(made) == 3 and all(file.read_bytes()[:4] == b"\x7fELF" and str(file) in told for file in made)
    assert attn_translate.main([path, "--to", "cubin", "--report", "-o", str(tmp_path / "report")]) == 0
    report = (tmp_path / "report").read_text()
    assert report.count("kernel attention_bwd_") == 3 and "made by hopper" in report and report.count("registers ") == 3


def test_a_kernel_over_what_has_no_positions(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "x.mlir"
    path.write_text("""
      func.func @scatter(%out: memref<?x?xf32>, %chunk: index)
          attributes {tile.kernel = {block_q = 3, block_kv = 32, grid = "pairs", score = f32}} {
        %b = "tile.program_id"() {axis = 2} : () -> index
        %x = arith.constant 1.0 : f32
        %true = arith.constant true
        "tile.scatter_add"(%out, %chunk) ({
        ^bb0(%i: index):
          "tile.scatter_yield"(%x, %true, %b, %b) : (f32, i1, index, index) -> ()
        }) : (memref<?x?xf32>, index) -> ()
        return
      }""")
    code, told = translate(capsys, str(path), "--to", "tilelang")
    assert code == 1 and "the emitter 'tilelang' does not make this kernel" in told and "internal error" not in told
