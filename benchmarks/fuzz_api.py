"""Compares calls of random attentions on the CPU with the dense formula: python benchmarks/fuzz_api.py --count 1000 --jobs 2.

Each is called several times, with captured tensors and inputs changed in place in between, and its results, gradients and tangents
are compared; everything that the runtime allocates is filled with NaN before (ATTN_MLIR_POISON). --linear draws linear attentions,
--delta delta rules, which are called twice, with gradients the second time; --composed calls with strides, lists, dropout, packed
sequences and lengths of 0 together, and --emulated the same on emulated GPUs.
Prints what is wrong, with the number that makes it again (--first NUMBER --count 1), and how many were compared.
"""

import argparse
import importlib
import multiprocessing
import os
import sys
import time
import traceback
import warnings
from pathlib import Path

os.environ["ATTN_MLIR_POISON"] = "1"
sys.path.insert(0, str(Path(__file__).parent.parent / "test" / "unit"))


KINDS = {
    "attentions": "random_calls:attention_errors",
    "linear attentions": "random_calls:linear_errors",
    "delta rules": "random_delta:delta_errors",
    "compositions": "random_compositions:composition_errors",
    "emulated compositions": "random_compositions:emulated_errors",
}
"""What is drawn, and the function that says what is wrong with the one of a number."""


def wrong(work: tuple[int, str]) -> str | None:
    """What is wrong with the attention of this number and kind."""
    number, kind = work
    module, _, name = KINDS[kind].partition(":")
    told = "attention"
    try:
        told, found = getattr(importlib.import_module(module), name)(number)
    except Exception:
        return f"{number}: {told}\n{traceback.format_exc(limit=-6)}"
    if not found:
        return None
    return f"{number}: { ({name: f'{error:.1e}' for name, error in found.items()}) }\n{told}"


def _begin(level: int) -> None:
    import torch

    from attn_mlir.backends.cpu import engine

    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    engine.level_of = lambda module: level


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--count", type=int, default=200)
    parser.add_argument("--first", type=int, default=0, metavar="NUMBER")
    parser.add_argument("--jobs", type=int, default=1, help="processes")
    parser.add_argument("--linear", action="store_const", dest="kind", const="linear attentions", default="attentions")
    parser.add_argument("--delta", action="store_const", dest="kind", const="delta rules")
    parser.add_argument("--composed", action="store_const", dest="kind", const="compositions")
    parser.add_argument("--emulated", action="store_const", dest="kind", const="emulated compositions", help="those on emulated GPUs")
    parser.add_argument("--level", type=int, default=1, help="how much LLVM optimises: 3 as users have it, 1 compiles twice as fast")
    parser.add_argument("--seconds", type=float, default=float("inf"), help="stop after so long, whatever the count")
    args = parser.parse_args()
    end, compared, failures = time.monotonic() + args.seconds, 0, 0
    work = [(number, args.kind) for number in range(args.first, args.first + args.count)]
    # Each process compiles several hundred programs, and starts again then: compiled code stays until a process ends.
    with multiprocessing.get_context("spawn").Pool(args.jobs, _begin, (args.level,), maxtasksperchild=400) as pool:
        for found in pool.imap(wrong, work):
            compared += 1
            if found is not None:
                failures += 1
                print(f"{found}\n", flush=True)
            if time.monotonic() > end:
                pool.terminate()
                break
    print(f"{compared} {args.kind} compared ({args.first} to {args.first + compared - 1}), {failures} wrong")
    return 1 if failures else 0


if __name__ == "__main__":
    raise SystemExit(main())
