"""The tools on damaged input: exit code 0 or 1, a located message, never a traceback, a signal or a hang.

`benchmarks/fuzz_tools.py` runs many more of them.
"""

import contextlib
import os
import random
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from attn_mlir.dialects import load_all
from attn_mlir.mlir import LOCK, ir
from fuzz_jobs import ROOT, TOOLS, corpus, job_of
from fuzz_pool import Harness, Job, judged
from mutations import damage, exchange

CASES = 100
LOCATED = re.compile(r"[^\n]*case\d+\.mlir:\d+:\d+: error: \S")
# The tool's own checks come before the parser's, so that these need a process of their own to prove anything.
ALONE = {
    "empty": b"",
    "zero": b"\x00",
    "random": random.Random(1).randbytes(500),
    "deep": b"module {" * 50_000,
    "deep-type": b"func.func private @f(" + b"tuple<" * 50_000,
    "deep-map": b"#m = affine_map<(d) -> (" + b"- " * 50_000 + b"d)>",
    "long-line": b"func.func @" + b"a" * 1_000_000,
    "no-end-of-string": b'"attn.row',
    "bytecode": b"ML\xefR\x01\x02\x03",
}


@pytest.fixture(scope="module")
def harness() -> Iterator[Harness]:
    """One process for all tests, as long as none makes it crash: to start one takes as long as 40 files."""
    with contextlib.closing(Harness()) as made:
        yield made


def codes_of(folder: Path, pipeline: str, harness: Harness) -> set[object]:
    """The exit codes of attn-opt on the files of a folder, whose messages are looked at."""
    codes: set[object] = set()
    for path in sorted(folder.iterdir()):
        job = Job("attn-opt", (str(path), "-p", pipeline), str(path))
        answer = harness.answer(job)
        assert not isinstance(answer, str), f"{answer}\n{path.read_bytes()!r}"
        assert judged(job, answer) is None, f"{answer}\n{path.read_bytes()!r}"
        codes.add(answer["code"])
    return codes


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("pipeline", ["", "cse,canonicalize", "attn-pipeline", "attn-tile,tile-schedule"])
def test_damaged_input(pipeline: str, seed: int, tmp_path: Path, harness: Harness) -> None:
    rng, texts = random.Random(f"{pipeline} {seed}"), corpus()
    for i in range(CASES):
        (tmp_path / f"case{i:03}.mlir").write_bytes(damage(rng.choice(texts), rng))
    codes = codes_of(tmp_path, pipeline, harness)
    # Few inputs get through a pipeline unless they suit it, but plenty of damage is harmless to the parser.
    assert codes >= ({1} if pipeline else {0, 1})


DERIVATIVES = "attn-simplify,attn-outline{keep-hosts=false},attn-resolve-masks,attn-online-rewrite,attn-guard-empty-rows,attn-tile"


@pytest.mark.parametrize("pipeline", ["", DERIVATIVES, "attn-differentiate{functions=fwd+bwd+jvp+bwd2}"])
def test_exchanged_parts_of_derivatives(pipeline: str, tmp_path: Path, harness: Harness) -> None:
    rng, texts = random.Random(pipeline), [path.read_text() for path in sorted((ROOT / "test/Inputs/derivatives").glob("*.mlir"))]
    texts.append((ROOT / "test/dialects/attn/roundtrip-derivatives.mlir").read_text())
    for i in range(CASES):
        (tmp_path / f"case{i:03}.mlir").write_bytes(exchange(rng.choice(texts), rng))
    assert codes_of(tmp_path, pipeline, harness) == {0, 1}


@pytest.mark.parametrize("name", ALONE)
def test_process(name: str, tmp_path: Path) -> None:
    path = tmp_path / "case0.mlir"
    path.write_bytes(ALONE[name])
    command = [sys.executable, "-m", "attn_mlir.tools.attn_opt", str(path)]
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "python")}
    process = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=60, check=False)
    assert process.returncode == (0 if name == "empty" else 1), process.stderr
    assert "Traceback" not in process.stderr
    assert name == "empty" or LOCATED.match(process.stderr), process.stderr


@pytest.mark.parametrize("tool", TOOLS)
def test_tool(tool: str, tmp_path: Path, harness: Harness) -> None:
    for number in range(60):
        job = job_of(tool, number, 3, tmp_path)
        wrong = harness.wrong(job)
        assert wrong is None, f"{job.arguments}\n{wrong}\n{Path(job.path).read_bytes()!r}"


def test_the_harness_survives_crashes_and_sees_what_is_wrong(tmp_path: Path) -> None:
    path = tmp_path / "case0.mlir"
    path.write_text("func.func @f() { return }")
    job = Job("attn-opt", (str(path),), str(path))
    with contextlib.closing(Harness()) as harness:
        assert harness.wrong(Job("crash", (), "")) == "crash, exit code -6"
        assert harness.wrong(job) is None
    for code, told in ((0, ""), (1, f"{path}:1:1: error: words"), (1, f"{path}:1:1: warning: x\n{path}:1:2: error: words")):
        assert judged(job, {"code": code, "stderr": told, "stdout": ""}) is None
    for code, told in ((2, "x:1:1: error: y"), (1, ""), (1, f"{path}: error: words"), (1, "x:1:1: error: internal error"), (-11, "")):
        assert judged(job, {"code": code, "stderr": told, "stdout": ""}) is not None


def test_arrays_that_the_bindings_cannot_look_at() -> None:
    """As `ir.Module.parse` meets them; the tools refuse them before."""
    text = (ROOT / "test/Inputs/causal-softmax.mlir").read_text().replace('outputs = ["lse"]', "outputs = array<i128: 1>")
    with LOCK, ir.Context() as context:
        load_all(context)
        with pytest.raises(ir.MLIRError, match="has an attribute `outputs` of a kind that is not known here"):
            ir.Module.parse(text)
