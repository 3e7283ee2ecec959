"""Compares gradients of random attentions with autograd in float64: python benchmarks/fuzz_gradients.py --seconds 60.

With --compiled, the kernels of the CPU run in float64 instead of the evaluator. Prints each attention that is wrong, with the
number that makes it again (--only NUMBER), and how many were compared.
"""

import argparse
import sys
import time
import warnings
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).parent.parent / "test" / "unit"))
from gradient_checks import compiled_errors, errors
from random_attentions import random_attention

TOLERANCE = 1e-9


def wrong(number: int, compiled: bool) -> str | None:
    """What is wrong with the attention of this number."""
    rng = np.random.default_rng(number)
    made = random_attention(lambda count: int(rng.integers(count)))
    try:
        found = compiled_errors(made.case) if compiled else errors(made.case, second=True)
    except Exception as error:
        return f"{type(error).__name__}: {error}\n{made.text}"
    over = {name: f"{error:.1e}" for name, error in found.items() if not error <= TOLERANCE}
    return f"relative errors {over}\n{made.text}" if over else None


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--first", type=int, default=0, metavar="NUMBER", help="where to start")
    parser.add_argument("--only", type=int, metavar="NUMBER", help="this attention alone")
    parser.add_argument("--compiled", action="store_true", help="compare the CPU's kernels")
    args = parser.parse_args()
    warnings.simplefilter("ignore")
    end, number, failures = time.monotonic() + args.seconds, args.first if args.only is None else args.only, 0
    while True:
        found = wrong(number, args.compiled)
        if found is not None:
            failures += 1
            print(f"attention {number}: {found}\n", flush=True)
        number += 1
        if args.only is not None or time.monotonic() > end:
            break
    print(f"{number - args.first if args.only is None else 1} attentions compared, {failures} wrong")
    return 1 if failures else 0


if __name__ == "__main__":
    raise SystemExit(main())
