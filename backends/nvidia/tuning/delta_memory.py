"""Shared memory that a delta rule takes through TileLang, as bytes of its tiles at their peak; an upper bound."""

from attn_mlir.backends.nvidia.tuning.chunk_scan_facts import NvidiaScanFacts

_BESIDE = 2048
"""What TileLang may want beside the tiles."""


def shared_delta(facts: NvidiaScanFacts, chunk: int, columns: int) -> int:
    """Of a chunk of so many positions, and so many columns of v."""
    return (_of_single if facts.single else _of_narrow)(facts, chunk, columns)


def _of_narrow(facts: NvidiaScanFacts, chunk: int, columns: int) -> int:
    """Of inputs of 16 bits: tiles of q, k and e, which decays of channels multiply for every distance, states in two pieces, the system."""
    rows = (21 if facts.channels else 5) + (7 if facts.apart else 0)
    return rows * chunk * facts.keys + (4 * facts.keys + 10 * chunk) * columns + 6 * chunk * chunk + _BESIDE


def _of_single(facts: NvidiaScanFacts, chunk: int, columns: int) -> int:
    """Of inputs of f32, whose factors have three pieces; tiles share memory, and leave gaps.

    The peak is where the state is read, where pairs of positions are multiplied, or where the state takes up what was written.
    """
    rows, keys = 6 * chunk * facts.keys, facts.keys
    prefix = 8 * chunk * keys if facts.channels else 0
    reads = prefix + rows + 6 * keys * columns + (0 if facts.channels else rows)
    pairs = 24 * chunk * keys if facts.channels else 3 * rows
    writes = prefix + 2 * rows + (10 * chunk if facts.solves else 6 * chunk) * (chunk + columns)
    sums = 16 * chunk * (columns + 64) if facts.channels and facts.factor else 0
    tiles = max(reads, pairs, writes) + sums + 16 * keys
    return tiles + tiles // 10 + _BESIDE
