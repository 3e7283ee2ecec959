"""Runs the tools on damaged input: python benchmarks/fuzz_tools.py --count 5000 --seed 1.

Every input must end in exit code 0 or 1, with a message that tells the file and the line, and without anything internal. Prints
each one that does not, with what makes it again (--only NUMBER), and how many ran a second. Compilers of other projects are not started.
"""

import argparse
import collections
import re
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent / "test" / "unit"))
from fuzz_jobs import TOOLS, job_of
from fuzz_pool import Harness


def main() -> int:
    """Runs it; 1 where something is wrong."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--count", type=int, default=5000, help="inputs for each tool (default: 5000)")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--tool", choices=TOOLS, action="append", help="only this one")
    parser.add_argument("--only", type=int, help="only the input of this number, which is printed")
    options = parser.parse_args()
    failed = 0
    for tool in options.tool or TOOLS:
        with tempfile.TemporaryDirectory() as folder:
            failed += _fuzz(tool, options, Path(folder))
    return 1 if failed else 0


def _fuzz(tool: str, options: argparse.Namespace, folder: Path) -> int:
    """How many inputs of a tool are wrong."""
    harness, start = Harness(), time.perf_counter()
    kinds: collections.Counter[str] = collections.Counter()
    numbers = range(options.count) if options.only is None else [options.only]
    for number in numbers:
        job = job_of(tool, number, options.seed, folder)
        began = time.perf_counter()
        wrong = harness.wrong(job)
        took = time.perf_counter() - began
        if options.only is not None:
            print(Path(job.path).read_text(errors="replace"), *job.arguments, sep="\n")
        if wrong is not None:
            kinds[re.sub(r"\S*case\d+\.mlir[:\d]*|\d+|'[^']*'", "_", wrong)[:120]] += 1
            print(f"{tool} --only {number} --seed {options.seed}: {' '.join(job.arguments[1:])}\n  {wrong[:1500]}", flush=True)
        elif took > 10:
            print(f"{tool} --only {number} --seed {options.seed}: {took:.1f} s", flush=True)
        Path(job.path).unlink()
    harness.close()
    seconds = time.perf_counter() - start
    for kind, count in kinds.most_common():
        print(f"{count:6} {kind}")
    print(f"{tool}: {len(numbers)} inputs, {kinds.total()} wrong, {len(numbers) / seconds:.1f} a second", flush=True)
    return kinds.total()


if __name__ == "__main__":
    sys.exit(main())
