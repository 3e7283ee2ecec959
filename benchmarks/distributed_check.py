"""Rings against float64: 13 rows, 8 masks, 3 placements, forward and all gradients, and the same bits in a second run.

    python benchmarks/distributed_check.py [--ranks 2] [--part 1/8] [--rows softmax,sinks] [--masks causal]

Starts its own processes, on the CPU with gloo. `--part 3/8` takes every eighth pair of a row and a mask from the third one on, so that
eight runs, one after the other or on several machines, are the whole. Compiling takes most of the time: about 6 s of CPU time a pair.
"""

import argparse
import itertools
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "test" / "unit"))
from ranks import Ranks
from ring_cases import MASKS, PLACEMENTS, ROWS


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--rows", default=",".join(ROWS))
    parser.add_argument("--masks", default=",".join(MASKS))
    parser.add_argument("--part", default="1/1", help="which part of the pairs, of how many")
    options = parser.parse_args()
    number, count = (int(x) for x in options.part.split("/"))
    if not 1 <= number <= count:
        parser.error(f"--part {options.part}: the first number is 1 to the second")
    pairs = list(itertools.product(options.rows.split(","), options.masks.split(",")))[number - 1 :: count]
    wrong, begin = 0, time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        ranks = Ranks(options.ranks, Path(folder), timeout=600)
        for row, mask in pairs:
            found = sorted({text for each in ranks.run("ring_cases:compare", row, mask, tuple(PLACEMENTS), seconds=600) for text in each})
            wrong += len(found)
            print(f"{row} {mask}: {'ok' if not found else '; '.join(found)}", flush=True)
        ranks.close()
    print(f"{len(pairs)} pairs, {len(PLACEMENTS)} placements, {options.ranks} ranks, {time.monotonic() - begin:.0f} s: {wrong} differences")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
