"""The NVIDIA benchmark runs (here: on the CPU), checks what it times, compares with the published table, and draws."""

import importlib
import json
import subprocess
import sys
from argparse import Namespace
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch

BENCHMARKS = Path(__file__).resolve().parents[2] / "benchmarks"
QUICK = ("--quick", "--device", "cpu", "--rounds", "2", "--launches", "1")


@pytest.fixture
def load(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    return importlib.import_module


def test_quick_run_on_a_cpu(load: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "report.json"
    options = ("--parts", "forward,backward", "--systems", "attn_mlir,fa3,cudnn", "--json", str(path), "--markdown")
    assert load("nvidia_attention").main([*QUICK, *options]) == 0
    told = capsys.readouterr().out
    assert told.startswith("## Measurements on an H200")
    assert "### Backward, TFLOP/s" in told
    assert "FA3: not installed" in told
    report = json.loads(path.read_text())
    for result in [*report["forward"], *report["backward"]]:
        ours = result["systems"]["attn_mlir"]
        assert ours["error"] <= 1 and len(ours["samples_ms"]) == 2 and result["floor_ms"] > 0
        assert "reason" in result["systems"]["cudnn"]


@pytest.mark.parametrize(
    "kind", ["window1024", "softcap30", "alibi", "sigmoid", "approximate_sigmoid", "relu", "retention", "relu_normalized"]
)
def test_variants_are_right(load: Any, kind: str) -> None:
    cases, systems = load("nvidia_cases"), load("nvidia_systems")
    problem = cases.Problem(cases.Case(kind, 1, 4, 2, 160, 32), "cpu")
    result = systems.ours(problem)(*problem.inputs)
    worst, wrong = problem.check([result])
    assert not wrong and 0 < worst <= 1
    broken = result.clone()
    broken[0, 100] += 0.5
    assert "wrong" in problem.check([broken])[1]
    broken[0, 3, 0, 0] = torch.nan
    assert problem.check([broken])[1] == "o is not finite"


def test_flops_of_masks(load: Any) -> None:
    cases = load("nvidia_cases")
    for kind in ("full", "causal", "window1024"):
        case = cases.Case(kind, 1, 1, 1, 1500, 64)
        index = torch.arange(1500)
        mask = cases.kind_of(case, "cpu").mask
        present = torch.ones(1500, 1500) if mask is None else mask(0, 0, index[:, None], index[None, :])
        assert case.pairs == int(present.sum())


def test_the_published_bars(load: Any) -> None:
    cases = load("nvidia_cases")
    reference = json.loads((BENCHMARKS / "h200_reference.json").read_text())
    names = [case.name for case in cases.table_cases(False)]
    assert len(names) == 18
    assert list(reference["forward"]) == list(reference["backward"]) == names
    assert max(reference["forward"]["causal B4 H16 S4096 D128"].values()) == 667
    assert set(reference["variants"]) <= set(cases.VARIANTS)


def result_of(tflops: dict[str, float]) -> dict[str, Any]:
    systems = {name: {"tflops": value, "ms": 1.0} for name, value in tflops.items()}
    shape = {"kind": "causal", "flops": 1e12, "bytes": 1e9, "exponentials": 1e9, "heads": 16, "kv_heads": 16, "length": 4096, "dim": 128}
    return {"case": "causal B4 H16 S4096 D128", "direction": "forward", "systems": systems, **shape}


def test_bars_of_missing_systems_are_converted(load: Any) -> None:
    report = {"forward": [result_of({"attn_mlir": 500.0, "cudnn": 500.0})]}
    reference = json.loads((BENCHMARKS / "h200_reference.json").read_text())
    load("nvidia_report").compare(report, reference)
    (result,) = report["forward"]
    assert result["ratio"] == 1.0
    # As fast as cuDNN, which had 565 of FA3's 667.
    assert result["bar"] == pytest.approx(565 / 667)
    assert result["bar_by"] == "fa3 via cudnn"


def test_bars_of_systems_that_are_there_are_direct(load: Any) -> None:
    report = {"forward": [result_of({"attn_mlir": 500.0, "cudnn": 500.0, "fa3": 625.0, "fa4": 480.0})]}
    load("nvidia_report").compare(report, json.loads((BENCHMARKS / "h200_reference.json").read_text()))
    assert report["forward"][0]["bar"] == pytest.approx(0.8)
    assert report["forward"][0]["bar_by"] == "fa3"


def test_rows_are_chosen_by_number(load: Any) -> None:
    rows_of = load("nvidia_attention").rows_of
    assert rows_of("", 3) == [0, 1, 2]
    assert rows_of("1-3,5", 18) == [0, 1, 2, 4]
    assert rows_of("17-20", 18) == [16, 17]


def test_figures_are_drawn(load: Any, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    path = tmp_path / "report.json"
    path.write_text(json.dumps({"machine": {"gpu": "a GPU"}, "forward": [result_of({"attn_mlir": 600.0, "cudnn": 500.0})]}))
    (figure,) = load("plot_nvidia").main([str(path), "--folder", str(tmp_path)])
    text = figure.read_text()
    assert "attn-mlir" in text and "FlashAttention-3 (reference run)" in text and "Forward pass on a GPU" in text


_TOOL = """#!/bin/sh
echo "$@" > {folder}/given
echo "short 5 D64: finite"
echo "{told}"
exit {code}
"""


@pytest.mark.parametrize(
    ("told", "code", "clean"),
    [
        ("========= ERROR SUMMARY: 0 errors", 0, True),
        ("========= Invalid __global__ read of size 4 bytes", 99, False),
        ("killed", 0, False),
    ],
)
def test_what_a_sanitizer_tells(
    load: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str], told: str, code: int, clean: bool
) -> None:
    tool = tmp_path / "compute-sanitizer"
    tool.write_text(_TOOL.format(folder=tmp_path, told=told, code=code))
    tool.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    sanitize = load("nvidia_sanitize")
    names = ["short 5 D64"] if told != "killed" else ["short 5 D64", "full 256 D64"]
    assert sanitize.check("racecheck", names, 10) is clean
    assert told in capsys.readouterr().out or told == "killed"
    given = (tmp_path / "given").read_text()
    assert "--tool racecheck" in given and "kns=attention" in given and given.rstrip().endswith("--inner " + " ".join(names))
    assert set(names) <= {shape["name"] for shape in sanitize.shapes()}


@pytest.mark.parametrize("names", ["ab", "abc", "abcd"])
def test_the_order_of_systems_turns(load: Any, names: str) -> None:
    """Each is first equally often; each that follows another one within a round also comes before it."""
    orders = ["".join(load("nvidia_attention").order_of(names, number)) for number in range(2 * len(names))]
    assert all(sorted(order) == list(names) for order in orders)
    assert sorted(order[0] for order in orders) == sorted(2 * names)
    follows = [a + b for order in orders for a, b in pairwise(order)]
    assert all(follows.count(pair) == follows.count(pair[::-1]) for pair in follows)


def test_the_sanitizer_sees_how_kernels_were_built(load: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """A kernel whose warps arrive, and whose machine code lacks the mark, is noticed when it is loaded."""
    sanitize = load("nvidia_sanitize")
    program = importlib.import_module("attn_mlir.backends.nvidia.program")
    monkeypatch.setattr(program, "CudaLauncher", lambda *parts: parts)
    built = sanitize.watch_builds()
    body = "} // namespace attn\nattn::warp_arrive(shared, lane == 0);"
    for source, code in ((body, b"..." + sanitize._MARK), (body, b"..."), ("no warps arrive", b"...")):
        program.CudaLauncher("kernel", Namespace(source=source), Namespace(code=code), "cuda", 0)
    assert built == [True, False]
    header = BENCHMARKS.parent / "backends" / "nvidia" / "hopper" / "attn_hopper.cuh"
    assert sanitize._MARK.decode() in header.read_text() and f"#ifdef {sanitize._DEFINE[2:]}\n" in header.read_text()


def test_small_linear_attentions_know_what_is_right(load: Any) -> None:
    """Sequences of which one is empty, heads that share, mods: the formula is that of the kernels."""
    scans = load("nvidia_sanitize_linear").Scans("", (1, 2, 1, 40, 16, 8), ends=(10, 10, 40), mods=True)
    results, error = scans.run("cpu")
    assert error < 5e-3 and results[1].shape[0] == 3 and all(bool(x.isfinite().all()) for x in results)


def test_programs_run_without_the_bindings_of_mlir() -> None:
    """Benchmarks that compile here run on machines with torch and the driver alone."""
    lines = (
        "import dropout_variants, sys; dropout_variants._prepare()",
        "from attn_mlir.backends.nvidia.program import NvidiaLaunchPlan; from attn_mlir.backends.nvidia.compiled_kernels import unpack",
        "assert not any(name.startswith(('torch_mlir', 'mlir.')) for name in sys.modules)",
    )
    subprocess.run([sys.executable, "-c", "\n".join(lines)], cwd=BENCHMARKS, check=True)
