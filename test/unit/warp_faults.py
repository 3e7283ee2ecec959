"""Faults planted in the causal forward, each of which the verifiers, the count of registers or the evaluator must find."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from warp_edits import (
    Edit,
    arrivals,
    elected,
    few_messages,
    first_rows,
    late_message,
    no_free_keys,
    read_in_flight,
    two_barriers,
    two_stages_of,
)


@dataclass(frozen=True)
class Planted:
    """A fault, and the kinds under which it may be found: of `Fault`, "verifier", or "wrong numbers"."""

    name: str
    kinds: str
    edit: Callable[[Edit], Any]


_LATE = "overwritten while read"
_EARLY = "read before full"
_MISSED = "wrong phase missed phase"
_TWICE = "overwritten twice"
FAULTS = [
    Planted("no wait for the first keys", _EARLY, lambda e: e.drop("wait", 0, "k_full", "consumer")),
    Planted("no wait for keys", _EARLY, lambda e: e.drop("wait", 1, "k_full", "consumer")),
    Planted("no wait for values", _EARLY, lambda e: e.drop("wait", 0, "v_full", "consumer")),
    Planted("no wait for the last values", _EARLY, lambda e: e.drop("wait", 1, "v_full", "consumer")),
    Planted("no wait for queries", _EARLY, lambda e: e.drop("wait", 0, "q_full", "consumer")),
    Planted("keys loaded into a stage that is in use", f"{_LATE} {_TWICE} too many arrivals", no_free_keys),
    Planted("values loaded into a stage that is in use", f"{_LATE} {_TWICE}", lambda e: e.drop("wait", 0, "v_free", "producer")),
    Planted("queries loaded while they are in use", f"{_LATE} {_EARLY}", lambda e: e.drop("wait", 0, "q_free", "producer")),
    Planted("keys are not given back", "deadlock", lambda e: e.drop("arrive", 1, "k_free")),
    Planted("values are not given back", "deadlock", lambda e: e.drop("arrive", 0, "v_free")),
    Planted("queries are not given back", "deadlock", lambda e: e.drop("arrive", 0, "q_free")),
    Planted("bytes are not announced", "deadlock", lambda e: e.drop("arrive_expect", 0, "v_full")),
    Planted("half of the bytes announced", f"{_EARLY} deadlock", lambda e: e.set("arrive_expect", "bytes", 4096, 0, "k_full")),
    Planted("twice the bytes announced", "deadlock", lambda e: e.set("arrive_expect", "bytes", 16384, 0, "k_full")),
    Planted("copy that counts at another barrier", f"{_EARLY} deadlock", two_barriers),
    Planted("wrong phase of keys", f"{_MISSED} {_EARLY} deadlock", lambda e: e.flip(e.find("wait", 1, "k_full", "consumer"))),
    Planted("wrong phase of free values", f"{_LATE} deadlock wrong phase", lambda e: e.flip(e.find("wait", 0, "v_free", "producer"))),
    Planted("wrong phase of queries", f"{_MISSED} {_EARLY} deadlock", lambda e: e.flip(e.find("wait", 0, "q_full", "consumer"))),
    Planted("tiles of keys in a stage less than there are barriers", f"{_LATE} {_TWICE}", two_stages_of("k")),
    Planted("tiles of values in a stage less than there are barriers", f"{_LATE} {_TWICE}", two_stages_of("v")),
    Planted("a stage less in memory", "no such stage", lambda e: e.retype(e.buffers["k"], "memref<2x64x64xf16, #warp.shared<128 : i64>>")),
    Planted("messages of a stage less", "out of bounds", few_messages),
    Planted("first keys given back too early", _LATE, lambda e: e.find("mma_wait", 0).move_after(e.find("arrive", 0, "k_free"))),
    Planted("values given back too early", _LATE, lambda e: e.find("mma_wait", 2).move_after(e.find("arrive", 0, "v_free"))),
    Planted("scores read in flight", "verifier", read_in_flight),
    Planted("a wait that leaves scores in flight", "product in flight", lambda e: e.set("mma_wait", "pending", 2, 1)),
    Planted("a wait that leaves sums in flight", "product in flight", lambda e: e.set("mma_wait", "pending", 1, 2)),
    Planted("scores not committed", "product in flight", lambda e: e.drop("mma_commit", 1)),
    Planted("last sums not committed", "product in flight", lambda e: e.drop("mma_commit", 3)),
    Planted("no mma_begin before the last sums", "missing mma_begin", lambda e: e.drop("mma_begin", 3)),
    Planted("no fence before the store", "missing fence", lambda e: e.drop("fence_async")),
    Planted("fence before what it is to show", "missing fence", lambda e: e.find("fence_async").move_before(e.find("write"))),
    Planted("warps do not meet before the store", _EARLY, lambda e: e.drop("named_sync", 1)),
    Planted("store not committed", f"unfinished store {_LATE}", lambda e: e.drop("store_commit")),
    Planted("queries given back while the store reads", f"unfinished store {_LATE}", lambda e: e.drop("store_wait")),
    Planted("message written behind the arrival", _EARLY, lambda e: e.find("memref.store", 1).move_after(e.find("copy_async", 1))),
    Planted("message read after its stage was given back", _LATE, late_message),
    Planted("a barrier that awaits half of the warps", f"{_LATE} {_EARLY} too many arrivals wrong phase deadlock", arrivals("k_free", 4)),
    Planted("a barrier that awaits too many warps", "deadlock", arrivals("v_free", 9)),
    Planted("one warp gives a stage back for all", f"deadlock {_LATE}", elected),
    Planted("nobody begins the ping-pong", "deadlock", lambda e: e.drop("named_arrive", 0)),
    Planted("the ping-pong is not passed on", "deadlock", lambda e: e.drop("named_arrive", 1)),
    Planted("named barrier of the wrong number of threads", "wrong threads nobody waits", lambda e: e.set("named_sync", "threads", 128)),
    Planted("roles that ask for too many registers", "verifier", lambda e: e.set("role", "registers", 40, 0)),
    Planted("too few registers", "registers", lambda e: e.set("role", "registers", 96, 1)),
    Planted("accumulator not kept", "wrong numbers", lambda e: e.replace(e.find("mma_async", 2), 3, e.find("mma_async", 1).operands[3])),
    Planted("row values stored to the first rows", _TWICE, first_rows),
]  # fmt: skip

HARMLESS = [
    # The queries of the tile are given back later, by the same warps, before the next tile's blocks are loaded.
    Planted("last values given back too early", "", lambda e: e.find("mma_wait", 3).move_after(e.find("arrive", 1, "v_free"))),
    # No register was written since the one before the scores.
    Planted("no mma_begin before the sums of the loop", "", lambda e: e.drop("mma_begin", 2)),
]
"""Changes that look like faults, and are none."""
