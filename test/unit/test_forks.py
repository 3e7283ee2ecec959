"""Children of os.fork compile and run kernels, whatever threads of the parent were doing; and threads may make first calls at once."""

import os
import re
import subprocess
import sys
import threading
from pathlib import Path

import pytest

import attn_mlir
from attn_mlir import forks
from attn_mlir.backends.gpu import compiler
from attn_mlir.backends.gpu.kernel import KernelCode

PRELUDE = """
import os, sys, threading, time
import torch, attn_mlir
from attn_mlir import forks
from attn_mlir.mlir import LOCK
def run(window, length=200):
    q, k, v = (torch.randn(2, 4, length, 16, generator=torch.Generator().manual_seed(i), requires_grad=True) for i in range(3))
    o = attn_mlir.attention(q, k, v, mask_mod=lambda b, h, i, j: i - j <= window)
    o.sum().backward()
    return o.detach().numpy(), q.grad.numpy()
def in_child(action):
    child = os.fork()
    if child == 0:
        try:
            action()
            os._exit(0)
        finally:
            os._exit(1)
    assert os.waitpid(child, 0)[1] == 0
"""
HELD = """
torch.set_num_threads(1)
forks._WAIT = 0.2
taken, end = threading.Event(), threading.Event()
def hold():
    with LOCK:
        taken.set()
        end.wait()
holder = threading.Thread(target=hold)
holder.start()
taken.wait()
in_child(lambda: run(3))
end.set()
holder.join()
run(4)
"""
COMPILING = """
torch.set_num_threads(1)
run(1)  # Python itself lets a child wait for ever for a module that another thread was importing
others = [threading.Thread(target=run, args=(window,)) for window in (2.5, 3)]
for other in others:
    other.start()
for number in range(3):
    time.sleep(0.03)
    in_child(lambda: run(7.5))
for other in others:
    other.join()
with LOCK:
    in_child(lambda: run(9))
run(10)
"""
PARALLEL = """
torch.set_num_threads(2)
o, dq = run(5)
def again():
    found = run(5)
    assert (found[0] == o).all() and (found[1] == dq).all()
    threads = [threading.Thread(target=run, args=(5,)) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    in_child(lambda: run(5))
in_child(again)
run(5)
"""
THREADS = """
import torch.nn.functional as F
torch.set_num_threads(1)
wrong = []
start = threading.Barrier(6)
def call(number):
    q, k, v = (torch.randn(1, 2, 20, 16, generator=torch.Generator().manual_seed(i), requires_grad=True) for i in range(3))
    start.wait()
    for length in (20, 1):  # two kernels
        mask = lambda b, h, i, j: (i - j) * (number % 3 + 1) <= number
        o = attn_mlir.attention(q[:, :, :length], k, v, mask_mod=mask)
        i, j = torch.arange(length)[:, None], torch.arange(20)
        dense = F.scaled_dot_product_attention(q[:, :, :length], k, v, attn_mask=mask(0, 0, i, j))
        if not torch.allclose(o, dense, atol=1e-5):
            wrong.append(number)
    o.sum().backward()
threads = [threading.Thread(target=call, args=(number,)) for number in range(6)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
assert not wrong, wrong
"""


@pytest.mark.parametrize("script", [HELD, COMPILING, PARALLEL, THREADS], ids=["held", "compiling", "parallel", "threads"])
def test_script(script: str) -> None:
    environment = {**os.environ, "ATTN_MLIR_CACHE": "off"}
    # A new interpreter: what `run_python` starts is the child of a fork itself, in which kernels run by another thread from the start.
    made = subprocess.run([sys.executable, "-c", PRELUDE + script], env=environment, capture_output=True, text=True, timeout=120)
    assert made.returncode == 0, made.stderr


def _child_says(action: object) -> int:
    child = os.fork()
    if child == 0:
        code = 2
        try:
            code = 0 if action() else 1  # type: ignore[operator]
        finally:
            os._exit(code)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def test_locks_that_other_threads_hold_are_free_in_children() -> None:
    locks = [forks.lock(), forks.rlock()]
    taken, end = threading.Event(), threading.Event()

    def hold() -> None:
        with locks[0], locks[1]:
            taken.set()
            end.wait()

    holder = threading.Thread(target=hold)
    holder.start()
    taken.wait()
    try:
        assert _child_says(lambda: all(lock.acquire(timeout=1) for lock in locks)) == 0
        assert not locks[0].acquire(blocking=False)
    finally:
        end.set()
        holder.join()


def test_children_have_compiling_threads_of_their_own(monkeypatch: pytest.MonkeyPatch) -> None:
    codes = [KernelCode(f"f{i}", "f", "", (), 64, 0) for i in range(2)]

    def names() -> bool:
        return compiler.in_parallel(lambda code: code.name, codes) == ["f0", "f1"]  # type: ignore[arg-type, return-value, type-var]

    assert names()
    assert _child_says(names) == 0


def test_every_lock_of_the_package_is_one_of_these() -> None:
    root = Path(attn_mlir.__file__).parent
    files = [path for folder in (root, root / "dialects", root / "passes", root / "backends") for path in folder.rglob("*.py")]
    found = [path.name for path in files if re.search(r"threading\.(R?Lock|Condition|Semaphore)\(", path.read_text())]
    assert found == ["forks.py"]
