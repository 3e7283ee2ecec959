"""Compiling leaves the signals of a process alone."""

from pathlib import Path

import pytest

from processes import run_python

pytestmark = pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="only Linux tells which signals have handlers")

SCRIPT = """
import os, pathlib, signal, torch
import attn_mlir
def caught():
    return [line for line in pathlib.Path("/proc/self/status").read_text().splitlines() if line.startswith(("SigCgt", "SigIgn"))]
def interrupted():
    try:
        os.kill(os.getpid(), signal.SIGINT)
    except KeyboardInterrupt:
        return True
    return False
signal.signal(signal.SIGINT, signal.default_int_handler)
before = caught()
q = torch.randn(1, 1, 3, 16)
attn_mlir.attention(q, q, q)
assert caught() == before, (before, caught())
seen = []
signal.signal(signal.SIGTERM, lambda number, frame: seen.append(number))
assert interrupted()
attn_mlir.attention(q, q, q, score_mod=lambda score, b, h, i, j: score + 1)
assert interrupted()
os.kill(os.getpid(), signal.SIGTERM)
assert seen == [signal.SIGTERM]
"""


def test_handlers_stay(monkeypatch: pytest.MonkeyPatch) -> None:
    """LLVM's own, which came with the first object file, put SIGTERM back to what it was then when they saw SIGINT."""
    monkeypatch.setenv("ATTN_MLIR_CACHE", "off")
    made = run_python("-c", SCRIPT)
    assert made.returncode == 0, made.stderr
