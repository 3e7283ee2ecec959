"""A process that compiles programs for a tuner: reads a line of JSON for each from stdin, answers with a line on stdout.

What it compiles goes to the disk cache, where the tuner's process finds it. It is a program of its own, rather than a child made by
`multiprocessing`, so that the user's script is not run again.
"""

import contextlib
import json
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from attn_mlir.backends import backend_for
from attn_mlir.errors import UnsupportedError


@dataclass(frozen=True)
class Job:
    """What a device compiles: `@attention` of a module itself (`function` ""), or a derivative of it, and the segments of its chunk scans;
    see `driver.compile_derivative`.
    """

    device: str
    function: str = ""
    wrt: tuple[str, ...] = ()
    deterministic: bool = False
    segment: int = 0

    @staticmethod
    def from_json(form: Mapping[str, Any]) -> "Job":
        """The job that a message describes."""
        return Job(form["device"], form["function"], tuple(form["wrt"]), form["deterministic"], form["segment"])

    def compile(self, text: str) -> Any:
        """The compiled function, as the backend's tuner makes it. Raises UnsupportedError where the device has none."""
        backend = backend_for(self.device)
        tuner = None if backend is None else backend.tuner()
        if tuner is None:
            raise UnsupportedError(f"device '{self.device}' has no tuner")
        return tuner.compile(text, self)


def compile_program(text: str, job: Job) -> str:
    """Compiles a program down to machine code. Returns what is wrong with it, in one line, or ""."""
    try:
        job.compile(text).binaries()
    except Exception as error:  # whatever is wrong with one candidate, the others are compiled
        lines = [line.strip() for line in str(error).splitlines() if line.strip()]
        return f"{type(error).__name__}: {lines[0] if lines else ''}"[:200]
    return ""


def main() -> None:
    answers = sys.stdout
    for line in sys.stdin:
        given = json.loads(line)
        with contextlib.redirect_stdout(sys.stderr):
            problem = compile_program(given["text"], Job.from_json(given))
        print(json.dumps(problem), file=answers, flush=True)


if __name__ == "__main__":
    main()
