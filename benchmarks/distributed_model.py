"""A simulation of attention on clusters: which strategy costs the least, and what share of the ranks' rate is left, by a model.

    python benchmarks/distributed_model.py [--heads 64 --key-heads 8 --dim 128] [--bandwidth 45e9] [--window 0]

Nothing is measured here but what the model (`attn_mlir.distributed.model`) is given: FLOP/s of attention, bytes/s between ranks, memory.
"""

import argparse

from attn_mlir.distributed import model

RANKS = (8, 16, 32, 64, 128, 256, 512, 1024)
TOKENS = (1, 3, 10, 30, 100)
LETTERS = {model.RING: "r", model.ALL_GATHER: "g", model.ULYSSES: "u"}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--heads", type=int, default=64)
    parser.add_argument("--key-heads", type=int, default=8)
    parser.add_argument("--dim", type=int, default=128)
    parser.add_argument("--bandwidth", type=float, default=45e9, help="bytes/s of a rank between hosts (default: 400 Gbit/s)")
    parser.add_argument("--window", type=int, default=0, help="keys that a query sees; 0: all before it")
    options = parser.parse_args()
    machine = model.RankModel(bandwidth=options.bandwidth)
    heads = f"{options.heads}:{options.key_heads} heads of {options.dim}"
    print(
        f"simulation: {heads}, bf16, forward + backward, {machine.flops / 1e12:.0f} TFLOP/s and {machine.bandwidth / 1e9:.0f} GB/s a rank;"
    )
    print("share of the ranks' rate in percent, by the strategy of the least cost: r ring, g all_gather, u ulysses; -: no memory")
    print("  tokens" + "".join(f"{ranks:>7}" for ranks in RANKS))
    for millions in reversed(TOKENS):
        print(f"{millions:>6} M  " + "".join(f"{cell(options, machine, ranks, millions * 10**6):>7}" for ranks in RANKS))


def cell(options: argparse.Namespace, machine: model.RankModel, ranks: int, tokens: int) -> str:
    """What the model says of one number of ranks and tokens."""
    seen = min(options.window / tokens, 0.5) if options.window else 0.5
    sent = min(options.window * ranks / tokens / max(ranks - 1, 1), 1.0) if options.window else 0.75
    shape = (1, options.heads, options.key_heads, tokens, tokens, options.dim, options.dim)
    problem = model.CutProblem(ranks, *shape, seen=seen, sent=sent, backward=True)
    if 4 * (problem.query_bytes + problem.key_bytes) > machine.memory:  # of one layer, with gradients
        return "-"
    best = model.cheapest(problem, machine)
    return f"{100 * problem.flops / machine.flops / best.seconds:.0f}{LETTERS[best.strategy]}"


if __name__ == "__main__":
    main()
