"""Runs tools on damaged input in a process that may crash or hang, and says what is wrong with the answers."""

import json
import os
import re
import select
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

HERE = Path(__file__).resolve().parent
_SECONDS = 60.0
_FORBIDDEN = ("Traceback (most recent call last)", "internal error", "cannot be verified", "Error: std::", "LLVM ERROR", "Assertion")
_LINE = re.compile(r"^(?P<place>[^\n]*?:\d+:\d+: |[^\n]*?: )?error: \S", re.MULTILINE)


@dataclass(frozen=True)
class Job:
    """A tool, its arguments, and whether these are damaged, too: then the message need not be about the file at `path`."""

    tool: str
    arguments: tuple[str, ...]
    path: str
    damaged_arguments: bool = False


class Harness:
    """A process of `fuzz_harness.py`, started again after one that crashed."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[bytes] | None = None

    def wrong(self, job: Job) -> str | None:
        """What is wrong with the answer to a job, or None."""
        answer = self.answer(job)
        return answer if isinstance(answer, str) else judged(job, answer)

    def answer(self, job: Job) -> dict[str, object] | str:
        """The answer to a job, or what became of the process instead."""
        process = self._process = self._process or self._start()
        assert process.stdin is not None and process.stdout is not None
        try:
            process.stdin.write(json.dumps({"tool": job.tool, "arguments": job.arguments}).encode() + b"\n")
            process.stdin.flush()
            if not select.select([process.stdout], [], [], _SECONDS)[0]:
                self.close()
                return f"takes longer than {_SECONDS:g} s"
            line = process.stdout.readline()
        except BrokenPipeError:
            line = b""
        if not line:
            code = process.wait()
            self.close()
            return f"crash, exit code {code}"
        return json.loads(line)

    def close(self) -> None:
        """Ends the process."""
        if self._process is not None:
            self._process.kill()
            self._process.communicate()
        self._process = None

    def _start(self) -> subprocess.Popen[bytes]:
        environment = {**os.environ, "PYTHONPATH": str(HERE.parents[1] / "python"), "OMP_NUM_THREADS": "1"}
        command = [sys.executable, str(HERE / "fuzz_harness.py")]
        return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, env=environment)


def judged(job: Job, answer: dict[str, object]) -> str | None:
    """What is wrong with an answer, or None: exit code 0 or 1, or 2 for arguments; an error with its place, and nothing internal."""
    code, told = answer["code"], str(answer["stderr"])
    forbidden = next((words for words in _FORBIDDEN if words in told), None)
    if forbidden is not None:
        return told
    if code not in (0, 1) and not (code == 2 and job.damaged_arguments):
        return f"exit code {code}: {told}"
    if code == 0 or "TileLang is not started here" in told or (job.tool == "attn-run" and "FAIL" in str(answer["stdout"])):
        return None
    found = _LINE.search(told)
    if found is None:
        return f"no message: {told!r}"
    return None if job.damaged_arguments or re.search(r":\d+:\d+: $", found["place"] or "") else f"no line: {told}"
