"""Walks of warm calls through the source files of attn-mlir: python benchmarks/call_walk.py [--only NAME] [--steps].

A walk is the order in which a call enters functions: `files` counts how many files that leads through, `returns` how often it comes back
to a file that it had left, `calls` and `opcodes` what Python does, which does not depend on the load of a machine.
--steps lists the functions.
"""

import argparse
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
_FOLDERS = tuple(f"{ROOT / name}/" for name in ("python", "backends", "passes", "dialects"))


@dataclass(frozen=True)
class Walk:
    """The functions that a call entered, each with its file, and the opcodes that it ran."""

    steps: tuple[tuple[str, str], ...]
    opcodes: int

    @property
    def stays(self) -> list[str]:
        """Files in the order in which they were entered."""
        files = [file for file, _ in self.steps]
        return [file for file, before in zip(files, ["", *files], strict=False) if file != before]

    @property
    def files(self) -> int:
        """How many files there are."""
        return len(set(self.stays))

    @property
    def returns(self) -> int:
        """How often a file was entered again."""
        return len(self.stays) - self.files


def walk(call: Callable[[], Any]) -> Walk:
    """The walk of a call, once it is warm."""
    for _ in range(3):
        call()
    steps: list[tuple[str, str]] = []
    opcodes = 0

    def trace(frame: FrameType, event: str, _: Any) -> Any:
        nonlocal opcodes
        code = frame.f_code
        file = str(Path(code.co_filename).resolve()) if event == "call" else ""
        if file.startswith(_FOLDERS) and not code.co_name.startswith("<"):
            steps.append((file.removeprefix(f"{ROOT}/"), code.co_qualname))
        frame.f_trace_opcodes = True
        opcodes += event == "opcode"
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        call()
    finally:
        sys.settrace(before)
    return Walk(tuple(steps), opcodes)


def main() -> None:
    """Walks all calls of `host_calls`."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="")
    parser.add_argument("--steps", action="store_true")
    options = parser.parse_args()
    from host_calls import calls

    print(f"{'warm call':36}{'files':>8}{'returns':>8}{'calls':>8}{'opcodes':>8}")
    for name, call in calls().items():
        if options.only in name:
            found = walk(call)
            print(f"{name:36}{found.files:8}{found.returns:8}{len(found.steps):8}{found.opcodes:8}")
            for file, function in found.steps if options.steps else ():
                print(f"    {file}  {function}")


if __name__ == "__main__":
    main()
