"""Warnings point at the user's line: through torch, through what torch generates, in threads, and where there is none."""

import threading
import warnings
from collections.abc import Callable
from pathlib import Path
from types import FunctionType

import pytest
import torch

from attn_mlir.backends import own_files
from attn_mlir.callers import warn
from attn_mlir.errors import PerformanceWarning
from attn_mlir.performance import told


class Slow(torch.autograd.Function):
    @staticmethod
    def forward(ctx: object, x: torch.Tensor) -> torch.Tensor:
        told("forward")
        return x.clone()

    @staticmethod
    def backward(ctx: object, *grads: torch.Tensor) -> torch.Tensor:
        told("backward")
        return grads[0]


# As functions of the package, between which and the user only torch's frames lie.
Slow.forward, Slow.backward = (
    staticmethod(FunctionType(f.__code__, {"__name__": "attn_mlir.test", "told": told}, f.__name__)) for f in (Slow.forward, Slow.backward)
)


def lines(run: Callable[[], object]) -> list[tuple[str, str, int]]:
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("default")
        run()
    return [(str(each.message).partition(".")[0], each.filename, each.lineno) for each in found]


def line_of(function: Callable[..., object], after: int) -> int:
    return function.__code__.co_firstlineno + after


def test_eager() -> None:
    def run() -> None:
        y = Slow.apply(torch.ones(2, requires_grad=True))
        y.sum().backward()

    assert lines(run) == [("forward", __file__, line_of(run, 1)), ("backward", __file__, line_of(run, 2))]


def test_a_thread_of_nobody() -> None:
    """As that in which the backward pass of a GPU runs."""
    y = None

    def started() -> None:
        thread = threading.Thread(target=y.sum().backward)  # type: ignore[union-attr]
        thread.start()
        thread.join()

    with pytest.warns(PerformanceWarning, match="forward"):
        y = Slow.apply(torch.ones(2, requires_grad=True))
    ((what, file, _),) = lines(started)
    assert what == "backward" and file.endswith("performance.py")


def test_generated_code_is_not_the_user_s() -> None:
    names = {"warn": warn, "__name__": "torch._inductor.runtime.compile_tasks.cabc"}
    exec(compile("def call():\n    warn('here', UserWarning)", "/tmp/torchinductor_me/ca/cabc.py", "exec"), names)
    exec(compile("def outer():\n    call()", "<eval_with_key>.3", "exec"), unnamed := {"call": names["call"]})
    exec(compile("def outermost():\n    outer()", f"{torch.__file__.rpartition('/')[0]}/x.py:codegen(y)", "exec"), unnamed)

    def run() -> None:
        unnamed["outermost"]()

    assert lines(run) == [("here", __file__, line_of(run, 1))]


def test_the_cache_names_the_line_that_compiles(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(own_files, "_WARNED", set())
    folder = tmp_path / "cache"
    folder.mkdir()
    folder.chmod(0o775)

    def run() -> None:
        with own_files.opened(folder) as handle:
            assert handle is None

    ((what, file, line),) = lines(run)
    assert "others may write it (mode 0775)" in what and (file, line) == (__file__, line_of(run, 1))
