"""Runs a tuner's candidates once in a process of their own, so that a kernel which never ends costs one candidate and not the program.

`TrialProcess` is the tuner's side. The process (`python -m ...trial`) reads lines of JSON: first what to run on, then a program for each
line; it answers each with a line. Floats of its tensors are random, as only whether a kernel ends matters here; integers, which may be
indices, are those of the tuner's tensors.
"""

import contextlib
import json
import os
import queue
import subprocess
import sys
import tempfile
import threading
import warnings
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch

from attn_mlir.backends.allocation import empty_strided
from attn_mlir.backends.tuning.processes import LastWords
from attn_mlir.backends.tuning.worker import Job

START_SECONDS, RUN_SECONDS = 120.0, 20.0
COMMAND = (sys.executable, "-m", "attn_mlir.backends.gpu.trial")
_MEMORY = "OutOfMemoryError"


class TrialProcess:
    """A process that runs candidates; it is started when it is first needed, and again after one that it did not survive."""

    def __init__(
        self, job: Job, inputs: Sequence[Any], layout: str, command: Sequence[str] = COMMAND, seconds: float = RUN_SECONDS
    ) -> None:
        self._job, self._inputs, self._layout, self._command, self._seconds = job, list(inputs), layout, list(command), seconds
        self._process: subprocess.Popen[str] | None = None
        self._answers: queue.SimpleQueue[str] = queue.SimpleQueue()
        self._folder = tempfile.TemporaryDirectory()
        self._said: LastWords | None = None
        self._unusable = ""

    def run(self, text: str) -> str:
        """Why a program must not be run here (it does not end, or fails), or ""."""
        self.start()
        if self._unusable:
            return ""
        try:
            problem = self._ask({"text": text}, self._seconds)
        except TimeoutError as error:
            self._end()
            return str(error)
        except EOFError:
            return f"the process that ran it died{self._end()}"
        return "" if problem.startswith(_MEMORY) else problem  # there is memory for one at a time: the tuner runs it alone

    def close(self) -> None:
        """Ends the process."""
        self._end()
        self._folder.cleanup()

    def start(self) -> None:
        """Starts the process, unless it runs, or could not be started before."""
        if self._process is None and not self._unusable:
            self._start()

    def _start(self) -> None:
        path = os.pathsep.join(part for part in sys.path if part)
        self._answers = queue.SimpleQueue()
        said = self._said = LastWords()
        try:
            process = subprocess.Popen(
                self._command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=said.file, text=True,
                env={**os.environ, "PYTHONPATH": path},
            )  # fmt: skip
        except OSError as error:
            self._end()
            self._give_up(str(error))
            return
        self._process = process
        threading.Thread(target=_forward, args=(process, self._answers), daemon=True).start()
        try:
            problem = self._ask(self._description(), START_SECONDS)
        except (TimeoutError, EOFError):
            problem = "it does not start"
        if problem:
            self._give_up(problem + self._end())

    def _give_up(self, reason: str) -> None:
        self._unusable = reason
        warnings.warn(f"tuning: candidates run in this process alone, where one that never ends would stop it: {reason}", stacklevel=2)

    def _description(self) -> dict[str, Any]:
        """The job, and the inputs: shapes of floats, numbers, and a file with the other tensors."""
        tensors = [x if isinstance(x, torch.Tensor) else None for x in self._inputs]
        kept = {str(i): x.detach().cpu() for i, x in enumerate(tensors) if x is not None and not x.is_floating_point()}
        file = Path(self._folder.name) / "integers.pt"
        torch.save(kept, file)
        inputs = [
            x if t is None else [list(t.shape), list(t.stride()), str(t.dtype).removeprefix("torch.")]
            for x, t in zip(self._inputs, tensors, strict=True)
        ]
        device = next((str(t.device) for t in tensors if t is not None), "cuda")
        return {**asdict(self._job), "layout": self._layout, "inputs": inputs, "file": str(file), "place": device}

    def _ask(self, message: dict[str, Any], seconds: float) -> str:
        """What the process answers. Raises TimeoutError where it says nothing in this time, EOFError where it is gone."""
        assert self._process is not None and self._process.stdin is not None
        try:
            self._process.stdin.write(json.dumps(message) + "\n")
            self._process.stdin.flush()
            return json.loads(self._answers.get(timeout=seconds))
        except queue.Empty:
            raise TimeoutError(f"does not end within {seconds:g} s") from None
        except (OSError, ValueError):  # a broken pipe, or the empty line at the end
            raise EOFError from None

    def _end(self) -> str:
        """Ends the process; what it said last, to be put behind a message."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
        told = ""
        if self._said is not None:
            told = self._said.told()
            self._said.close()
        self._process = self._said = None
        return told


def _forward(process: subprocess.Popen[str], answers: "queue.SimpleQueue[str]") -> None:
    """Lines of a process into a queue, which can be waited for with a limit; an empty line at the end."""
    with contextlib.suppress(OSError, ValueError):
        for line in process.stdout or ():
            answers.put(line)
    answers.put("")


def inputs_of(description: dict[str, Any]) -> list[Any]:
    """The inputs that a description stands for."""
    device, kept = torch.device(description["place"]), torch.load(description["file"])
    made: list[Any] = []
    for position, given in enumerate(description["inputs"]):
        if str(position) in kept:
            made.append(kept[str(position)].to(device))
        elif isinstance(given, list):
            shape, strides, dtype = given
            sizes = [1 if stride == 0 else size for size, stride in zip(shape, strides, strict=True)]
            made.append(empty_strided(sizes, strides, dtype=getattr(torch, dtype), device=device).normal_().expand(shape))
        else:
            made.append(given)
    return made


def main() -> None:
    answers = sys.stdout
    state: list[Any] = []
    for line in sys.stdin:
        given = json.loads(line)
        with contextlib.redirect_stdout(sys.stderr):
            try:
                if not state:
                    job = Job.from_json(given)
                    inputs = inputs_of(given)
                    if inputs[0].is_cuda:
                        torch.cuda.set_device(inputs[0].device)
                    state = [job, inputs, given["layout"]]
                else:
                    state[0].compile(given["text"]).run(state[1], state[2])
                    torch.cuda.synchronize()
                problem = ""
            except Exception as error:  # whatever is wrong with one candidate, the others are run
                lines = str(error).strip().splitlines()
                problem = f"{type(error).__name__}: {lines[0] if lines else ''}"[:160]
        print(json.dumps(problem), file=answers, flush=True)


if __name__ == "__main__":
    main()
