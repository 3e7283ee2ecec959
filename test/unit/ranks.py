"""Processes of a process group on the CPU, started once for the tests of a file: each makes the same calls, and tells what it found.

Of four processes the first two can work alone, so that tests of two and of four share them.
"""

import fcntl
import functools
import gc
import importlib
import traceback
from collections.abc import Callable
from datetime import timedelta
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from processes import context

_SECONDS = 300.0


class Ranks:
    """`count` processes; `run("module:function", ...)` calls it in each with the mesh, and gives what each returned.

    The mesh is a line, called "cp", of 2 processes, and ("dp", "cp") = (2, 2) of 4.
    """

    def __init__(self, count: int, folder: Path, timeout: float = _SECONDS) -> None:
        made = context()
        self.pipes: list[Any] = []
        self.processes = []
        for rank in range(count):
            ours, theirs = made.Pipe()
            process = made.Process(target=serve, args=(theirs, rank, count, str(folder), timeout), daemon=True)
            process.start()
            self.pipes.append(ours)
            self.processes.append(process)

    def run(self, name: str, *arguments: Any, seconds: float = _SECONDS, ranks: int | None = None) -> list[Any]:
        """What each process returned, or each of the first `ranks`. Raises AssertionError with the traceback of the first that failed."""
        count = len(self.pipes) if ranks is None else ranks
        self.send(name, *arguments, ranks=count)
        found = [self.answer(rank, seconds) for rank in range(count)]
        failed = [text for kind, text in found if kind == "error"]
        assert not failed, failed[0]
        return [value for _, value in found]

    def send(self, name: str, *arguments: Any, ranks: int) -> None:
        for pipe in self.pipes[:ranks]:
            pipe.send((name, ranks, arguments))

    def answer(self, rank: int, seconds: float = _SECONDS) -> tuple[str, Any]:
        """("value", what a process returned), or ("error", its traceback)."""
        assert self.pipes[rank].poll(seconds), f"rank {rank} gives no answer within {seconds:g} s"
        return self.pipes[rank].recv()

    def close(self) -> None:
        for process in self.processes:
            process.kill()
            process.join()


def serve(pipe: Connection, rank: int, count: int, folder: str, timeout: float) -> None:
    """The loop of one process."""
    import torch
    import torch.distributed as dist
    from torch.distributed import FileStore  # pyright: ignore[reportPrivateImportUsage]
    from torch.distributed.device_mesh import init_device_mesh

    torch.set_num_threads(1)
    gc.set_threshold(20_000, 10, 10)  # as in test/conftest.py
    store = FileStore(f"{folder}/store", count)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=count, timeout=timedelta(seconds=timeout))
    whole = init_device_mesh("cpu", (count // 2, 2), mesh_dim_names=("dp", "cp"))
    meshes = {2: whole["cp"], count: whole if count > 2 else whole["cp"]}
    _one_at_a_time(f"{folder}/lock")
    while True:
        try:
            name, size, arguments = pipe.recv()
        except EOFError:
            return
        module, function = name.split(":")
        try:
            torch.manual_seed(0)
            pipe.send(("value", getattr(importlib.import_module(module), function)(meshes[size], *arguments)))
        except Exception:
            pipe.send(("error", traceback.format_exc()))


def _one_at_a_time(path: str) -> None:
    """Lets one process compile while the others wait, and then find the code on disk."""
    from attn_mlir import driver

    def locked(compile_: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(compile_)
        def run(*arguments: Any, **options: Any) -> Any:
            with open(path, "w") as file:
                fcntl.flock(file, fcntl.LOCK_EX)
                return compile_(*arguments, **options)

        return run

    for name in ("compile", "compile_derivative"):
        setattr(driver, name, locked(getattr(driver, name)))
