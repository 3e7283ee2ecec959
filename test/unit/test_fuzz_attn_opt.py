"""attn-opt on damaged input: exit code 0 or 1, a located message, never a traceback, a signal or a hang."""

import json
import os
import random
import re
import subprocess
import sys
from pathlib import Path

import pytest

from mutations import damage, exchange

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
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


def corpus() -> list[str]:
    """The parts of all test inputs, without comments, which would only be damaged to no effect, and written locations."""
    texts = [re.sub(r' loc\("[^"]*"\)', "", path.read_text()) for path in sorted((ROOT / "test").rglob("*.mlir"))]
    parts = [part for text in texts for part in re.split(r"^// -----.*\n", text, flags=re.MULTILINE)]
    return [cleaned for part in parts if (cleaned := re.sub(r"^\s*//.*\n", "", part, flags=re.MULTILINE)).strip()]


def run(folder: Path, arguments: list[str]) -> list[dict[str, object]]:
    """What attn-opt says about each file of `folder`, all in one process."""
    paths = sorted(folder.iterdir())
    command = [sys.executable, str(HERE / "fuzz_harness.py"), *arguments]
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "python")}
    process = subprocess.run(
        command, input="\n".join(map(str, paths)), capture_output=True, text=True, env=environment, timeout=240, check=False
    )
    results = [json.loads(line) for line in process.stdout.splitlines()]
    if len(results) < len(paths):
        culprit = paths[len(results)].read_bytes()
        pytest.fail(f"crash (exit code {process.returncode}) of attn-opt {arguments} on:\n{culprit!r}\n{process.stderr[-2000:]}")
    return results


def codes_of(folder: Path, pipeline: str) -> set[object]:
    """The exit codes of attn-opt, whose messages are looked at."""
    codes: set[object] = set()
    for result in run(folder, ["-p", pipeline]):
        code, stderr, text = result["code"], str(result["stderr"]), Path(str(result["path"])).read_bytes()
        codes.add(code)
        assert code in (0, 1), f"{code}\n{text!r}"
        assert "Traceback" not in stderr, f"{stderr}\n{text!r}"
        assert "internal error" not in stderr, f"{stderr}\n{text!r}"
        assert "cannot be verified" not in stderr, f"{stderr}\n{text!r}"
        assert code == 0 or LOCATED.match(stderr), f"no located message: {stderr!r}\n{text!r}"
    return codes


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("pipeline", ["", "cse,canonicalize", "attn-pipeline", "attn-tile,tile-schedule"])
def test_damaged_input(pipeline: str, seed: int, tmp_path: Path) -> None:
    rng, texts = random.Random(f"{pipeline} {seed}"), corpus()
    for i in range(CASES):
        (tmp_path / f"case{i:03}.mlir").write_bytes(damage(rng.choice(texts), rng))
    codes = codes_of(tmp_path, pipeline)
    # Few inputs get through a pipeline unless they suit it, but plenty of damage is harmless to the parser.
    assert codes >= ({1} if pipeline else {0, 1})


DERIVATIVES = "attn-simplify,attn-outline{keep-hosts=false},attn-resolve-masks,attn-online-rewrite,attn-guard-empty-rows,attn-tile"


@pytest.mark.parametrize("pipeline", ["", DERIVATIVES, "attn-differentiate{functions=fwd+bwd+jvp+bwd2}"])
def test_exchanged_parts_of_derivatives(pipeline: str, tmp_path: Path) -> None:
    rng, texts = random.Random(pipeline), [path.read_text() for path in sorted((ROOT / "test/Inputs/derivatives").glob("*.mlir"))]
    texts.append((ROOT / "test/dialects/attn/roundtrip-derivatives.mlir").read_text())
    for i in range(CASES):
        (tmp_path / f"case{i:03}.mlir").write_bytes(exchange(rng.choice(texts), rng))
    assert codes_of(tmp_path, pipeline) == {0, 1}


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
