"""Rings against float64: 12 rows, 8 masks, 3 placements, forward and all gradients, and the same bits in a second run.

    python benchmarks/distributed_check.py [--ranks 2] [--rows softmax,sinks] [--masks causal]

Starts its own processes, on the CPU with gloo. Compiling 96 programs takes most of the time.
"""

import argparse
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "test" / "unit"))
from ranks import Ranks
from ring_cases import MASKS, PLACEMENTS, ROWS


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--rows", default=",".join(ROWS))
    parser.add_argument("--masks", default=",".join(MASKS))
    options = parser.parse_args()
    wrong = 0
    with tempfile.TemporaryDirectory() as folder:
        ranks = Ranks(options.ranks, Path(folder), timeout=600)
        for row in options.rows.split(","):
            for mask in options.masks.split(","):
                found = sorted({text for each in ranks.run("ring_cases:compare", row, mask, tuple(PLACEMENTS)) for text in each})
                wrong += len(found)
                print(f"{row} {mask}: {'ok' if not found else '; '.join(found)}", flush=True)
        ranks.close()
    print(f"{wrong} differences")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
