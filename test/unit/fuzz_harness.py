"""Runs the tools in this process: a line of JSON comes in for each run, and goes out. A crash shows as a missing line.

No compiler of another project is started: what gets as far as nvcc, clang or TileLang counts as compiled, or as refused by TileLang.
"""

import contextlib
import gc
import io
import json
import os
import resource
import sys
import warnings
from collections.abc import Sequence
from typing import Any

from attn_mlir.backends.gpu import compiler
from attn_mlir.backends.nvidia import compile as nvcc
from attn_mlir.backends.nvidia.tilelang import lowering
from attn_mlir.errors import CompileError
from attn_mlir.tools import attn_opt, attn_run, attn_translate

TOOLS = {"attn-opt": attn_opt.main, "attn-run": attn_run.main, "attn-translate": attn_translate.main, "crash": lambda _: os.abort()}
_MEMORY = 8 << 30


def run(tool: str, arguments: Sequence[str]) -> dict[str, object]:
    """The exit code of a tool, and what it prints."""
    out, err = (io.TextIOWrapper(io.BytesIO(), encoding="utf-8", errors="replace", write_through=True) for _ in range(2))
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            code: object = TOOLS[tool](list(arguments))
        except SystemExit as error:
            code = error.code
        except BaseException as error:
            code = f"{type(error).__name__}: {error}"
    printed, told = (stream.buffer.getvalue().decode(errors="replace") for stream in (out, err))  # type: ignore[attr-defined]
    return {"code": code, "stdout": printed[-500:], "stderr": told[-4000:]}


def _compiled(*_: Any) -> tuple[bytes, str]:
    return b"\x7fELF", ""


def _refused(*_: Any) -> Any:
    raise CompileError("TileLang is not started here")


if __name__ == "__main__":
    resource.setrlimit(resource.RLIMIT_AS, (_MEMORY, _MEMORY))
    gc.freeze()  # what was imported; see `test/conftest.py`
    gc.set_threshold(20_000, 10, 10)
    os.environ["ATTN_MLIR_CACHE"], os.environ["ATTN_MLIR_CUDA_COMPILER"] = "off", "nvcc"
    compiler.run_compiler = nvcc.run_compiler = _compiled
    nvcc.find_nvcc, nvcc.nvcc_version = (lambda: "nvcc"), (lambda _: "")  # type: ignore[assignment]
    lowering._run = _refused
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # what C++ prints is no answer
    for line in sys.stdin:
        job = json.loads(line)
        answers.write(json.dumps(run(job["tool"], job["arguments"])) + "\n")
        answers.flush()
