"""Tools of lit tests as forks of a server: arguments, environment, folder, files and exit codes are those of a process of its own."""

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="needs os.fork")
TEST = Path(__file__).parents[1]
SERVER = f"import os, sys; sys.path.insert(0, {str(TEST)!r}); import lit_server; lit_server.serve(sys.argv[1], {{'abort': os.abort}})"
Call = Callable[..., "subprocess.CompletedProcess[str]"]


@pytest.fixture(scope="module")
def call(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Call]:
    folder = tmp_path_factory.mktemp("server")
    path = os.pathsep.join([str(TEST.parent / "python"), os.environ.get("PYTHONPATH", "")])
    server = subprocess.Popen(
        [sys.executable, "-c", SERVER, str(folder / "at")],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": path, "OPENBLAS_NUM_THREADS": "1"},
    )
    assert server.stdin is not None and server.stdout is not None and server.stdout.readline() == b"ready\n"
    (folder / "x.mlir").write_text("func.func @there() { return }\n")
    (folder / "checks").write_text("CHECK: @there\n")

    def run(*words: str, given: str = "", **variables: str) -> "subprocess.CompletedProcess[str]":
        place = "at.check" if words[0] == "filecheck" else "at"
        command = [sys.executable, "-S", "-I", str(TEST / "lit_client.py"), str(folder / place), *words]
        environment = {**os.environ, **variables}
        return subprocess.run(command, input=given, capture_output=True, text=True, check=False, cwd=folder, env=environment)

    yield run
    server.stdin.close()
    assert server.wait(timeout=60) == 0


def test_files_and_standard_input(call: Call) -> None:
    made = call("attn_opt", "x.mlir")
    assert made.returncode == 0 and "@there" in made.stdout and made.stderr == ""
    assert call("attn_opt", "-", given="func.func @given() { return }").stdout.count("@given") == 1


def test_exit_codes_and_messages(call: Call) -> None:
    made = call("attn_opt", "x.mlir", "-p", "attn-simplifie")
    assert made.returncode == 1 and made.stdout == "" and "unknown pass 'attn-simplifie'" in made.stderr
    assert call("attn_opt", "").returncode != 0  # an empty word is a word
    assert call("filecheck", "x.mlir", given="").returncode != 0
    assert call("filecheck", "checks", given="func.func @there()").returncode == 0
    usage = call("attn_run", "--no-such-option")
    assert usage.returncode != 0 and "--no-such-option" in usage.stderr


def test_a_crash_is_one_of_the_client(call: Call) -> None:
    assert call("abort").returncode == -6
    assert call("attn_opt", "x.mlir").returncode == 0


def test_variables_are_those_of_the_call(call: Call) -> None:
    found = call("attn_opt", "x.mlir", "-p", "cpu-expand-casts", ATTN_MLIR_CPU="no-such-cpu")
    assert found.returncode == 1 and "got 'no-such-cpu'" in found.stderr
    assert call("attn_opt", "x.mlir", "-p", "cpu-expand-casts").returncode == 0
